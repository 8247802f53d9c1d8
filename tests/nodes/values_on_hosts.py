"""Tests of Values in sessions on several hosts (a group of nodes_test.py)."""


class ValuesOnHosts:
    def test_calls_of_all_nodes_use_them(self):
        for engine in self.for_each_engine(("openmpi", "mpich")):
            for nodes in (2, 3):
                self.succeeds(self.job(engine, ["values"], nodes=nodes), "as expected")

    def test_values_that_a_node_has_no_memory_for_fail_alone(self):
        for engine in self.for_each_engine(("openmpi",)):
            job = self.job(engine, ["too-much"], more=["--node-timeout", "30"], variables={"SYNCRUN_RESERVE_BYTES": str(400 << 20)})
            self.succeeds(job)
            self.assertGreaterEqual(job.text.count("it has room"), 3, job.text)
            self.assertRegex(job.text, r"rank 5 \(n3:cpu1.*\) failed in call 'move of value #\d+' .*too little memory for 10485760 bytes that come from rank \d")

    def test_examples_run_unchanged(self):
        named = ["--devices", "dev0=n1:cpu0,dev1=n2:cpu0"]
        examples = (("dataflow", [], "w = 2.9966"), ("two_products", named, "64 64 262144"), ("gradient_loop", named, "params: 0.500"))
        for name, more, expected in examples:
            program = self.examples / f"example_{name}"
            if not program.exists():
                self.skipTest("the examples were not built")
            for engine in self.for_each_engine(("openmpi", "mpich")):
                self.succeeds(self.job(engine, [], workers=1, nodes=2, program=program, more=more), expected)

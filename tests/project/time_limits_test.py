"""Tests that time_limits.py finds tests that compute and have a short limit."""

import sys
import unittest

sys.dont_write_bytecode = True
from time_limits import short_limits  # noqa: E402


def test_of(name, *labels, command=("program",), **properties):
    values = {"LABELS": list(labels), **properties}
    return {
        "name": name,
        "command": list(command),
        "properties": [{"name": key, "value": value} for key, value in values.items()],
    }


class TimeLimits(unittest.TestCase):
    def test_tests_that_compute_need_the_whole_limit(self):
        for labels, more in [
            (["unit"], {}),
            (["process"], {}),
            (["install"], {}),
            (["fault"], {"RUN_SERIAL": True}),
            (["fault"], {"command": ["/build/tests/demos/program"]}),
        ]:
            with self.subTest(labels=labels, more=more):
                self.assertEqual(short_limits([test_of("a", *labels, TIMEOUT=180.0, **more)], 1200), {"a": 180.0})
                self.assertEqual(short_limits([test_of("a", *labels, TIMEOUT=1200.0, **more)], 1200), {})
                self.assertEqual(short_limits([test_of("a", *labels, **more)], 1200), {})

    def test_tests_that_wait_or_use_gpus_have_limits_of_their_own(self):
        for labels, more in [(["fault"], {}), (["fault", "nodes"], {"RUN_SERIAL": True}), (["nodes"], {}), (["gpu"], {})]:
            with self.subTest(labels=labels, more=more):
                self.assertEqual(short_limits([test_of("a", *labels, TIMEOUT=60.0, **more)], 1200), {})


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""The house rules catch what they are for: each is shown a small project that breaks it."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
import house_rules  # noqa: E402

HEADER = "#pragma once\n\n// What it is for.\n"
PROJECT = {
    "include/syncrun/api.hpp": HEADER + "#include <vector>\n",
    "include/syncrun/detail/seam.hpp": HEADER,
    "common/block.hpp": HEADER + '#include "syncrun/api.hpp"\n#include <boost/any.hpp>\n',
    "launcher/spawn.hpp": HEADER + '#include "common/block.hpp"\n',
    "worker/serve.hpp": HEADER + '#include "common/block.hpp"\n#include <nccl.h>\n',
    "demos/common/gemm.hpp": HEADER,
    "demos/mnist/rows.hpp": HEADER + '#include "demos/common/gemm.hpp"\n#include <syncrun/api.hpp>\n',
    "demos/mnist/main.cpp": '#include "demos/mnist/rows.hpp"\n',
    "tests/unit.cpp": '#include "launcher/spawn.hpp"\n#include "worker/serve.hpp"\n#include "support.hpp"\n',
    "tests/support.hpp": HEADER,
}


class HouseRules(unittest.TestCase):
    def violations(self, rule, changed=None):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for name, text in {**PROJECT, **(changed or {})}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return [f"{v.file}:{v.line}: {v.what}" for v in house_rules.RULES[rule](root)]

    def assert_caught(self, rule, file, text, words):
        found = self.violations(rule, {file: text})
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(f"{file}:"), found[0])
        self.assertIn(words, found[0])

    def test_a_project_that_keeps_the_rules_passes(self):
        for rule in house_rules.RULES:
            self.assertEqual(self.violations(rule), [], rule)

    def test_launcher_and_worker_never_include_each_other(self):
        self.assert_caught("include_rules", "launcher/a.cpp", '#include "worker/serve.hpp"\n', "worker/serve.hpp")
        self.assert_caught("include_rules", "worker/a.cpp", '#include "launcher/spawn.hpp"\n', "launcher/spawn.hpp")

    def test_common_includes_neither_side(self):
        self.assert_caught("include_rules", "common/a.cpp", '#include "worker/serve.hpp"\n', "worker/serve.hpp")
        self.assert_caught("include_rules", "common/a.cpp", '#include "launcher/spawn.hpp"\n', "launcher/spawn.hpp")

    def test_the_public_api_shows_no_third_party_and_no_inside(self):
        self.assert_caught("include_rules", "include/syncrun/a.hpp", HEADER + "#include <boost/any.hpp>\n", "boost")
        self.assert_caught("include_rules", "include/syncrun/a.hpp", HEADER + "#include <spdlog/logger.h>\n", "spdlog")
        self.assert_caught("include_rules", "include/syncrun/a.hpp", HEADER + '#include "common/block.hpp"\n', "common")
        self.assertEqual(self.violations("include_rules", {"include/syncrun/a.hpp": HEADER + "#include <nccl.h>\n"}), [])

    def test_tests_include_what_they_share_precompiled(self):
        self.assert_caught("shared_headers", "tests/a.cpp", "\nTEST(A, B) { EXPECT_EQ(1, 1); }\n", "gtest/")
        self.assert_caught("shared_headers", "tests/a.cpp", '#include <gtest/gtest.h>\nEXPECT_THAT(1, Eq(1));\n', "gmock/")
        self.assert_caught("shared_headers", "tests/a.cpp", "sr::Session session;\n", "syncrun/")
        through = {
            "tests/on_workers.hpp": HEADER + "#include <gmock/gmock.h>\n#include <syncrun/api.hpp>\n",
            "tests/api/a.cpp": '#include "tests/on_workers.hpp"\nTEST(A, B) { EXPECT_THAT(sr::Session(), Eq(1)); }\n',
            "tests/api/b.cpp": '// TEST(A, B)\nstd::puts("syncrun::run");\nresnet::testing::run();\n',
        }
        self.assertEqual(self.violations("shared_headers", through), [])

    def test_the_master_never_sees_cuda(self):
        self.assert_caught("include_rules", "launcher/a.cpp", "#include <cuda_runtime.h>\n", "CUDA")
        self.assert_caught("include_rules", "common/a.cpp", "#include <nccl.h>\n", "CUDA")

    def test_demos_use_the_public_api_only(self):
        self.assert_caught("include_rules", "demos/mnist/a.cpp", '#include "common/block.hpp"\n', "common/block.hpp")
        self.assert_caught("include_rules", "demos/other/a.cpp", '#include "demos/mnist/rows.hpp"\n', "demos/mnist")
        self.assert_caught("include_rules", "demos/mnist/a.cpp", "#include <syncrun/detail/seam.hpp>\n", "stranger")
        self.assert_caught("include_rules", "demos/common/a.cpp", "#include <syncrun/api.hpp>\n", "syncrun/api.hpp")

    def test_includes_are_written_from_the_root(self):
        self.assert_caught("include_rules", "common/a.cpp", '#include "block.hpp"\n', "from the root")
        self.assert_caught("include_rules", "common/a.cpp", '  #  include "../worker/serve.hpp"\n', "worker/serve.hpp")

    def test_headers_have_their_guard_and_their_paragraph(self):
        self.assert_caught("headers", "common/a.hpp", "// What it is for.\nint f();\n", "#pragma once")
        self.assert_caught("headers", "common/a.hpp", "#pragma once\n#include <vector>\n// Late.\n", "paragraph")

    def test_types_have_names_of_their_own(self):
        one = "#pragma once\n// One.\nclass Staging {\n};\n"
        other = "#pragma once\n// Another.\nclass Staging final : public Base {\n};\n"
        found = self.violations("unique_types", {"launcher/a.hpp": one, "worker/cuda/b.hpp": other})
        self.assertEqual(len(found), 1)
        self.assertIn("launcher/a.hpp has a type Staging as well", found[0])
        exported = "#pragma once\n// One more.\nclass SYNCRUN_EXPORT Staging {\n};\n"
        self.assertEqual(len(self.violations("unique_types", {"launcher/a.hpp": one, "worker/b.hpp": exported})), 1)
        declared = {"launcher/a.hpp": one, "worker/b.hpp": "#pragma once\n// B.\nclass Staging;\n"}
        self.assertEqual(self.violations("unique_types", declared), [])

    def test_the_seam_is_in_two_headers(self):
        inside = "namespace detail {\n/// Does it.\nSYNCRUN_EXPORT void f();\n}  // namespace detail\n"
        self.assert_caught("seam_headers", "include/syncrun/a.hpp", HEADER + inside, "master_seam.hpp")
        for name in ("master_seam.hpp", "worker_seam.hpp"):
            seam = f"include/syncrun/detail/{name}"
            self.assertEqual(self.violations("seam_headers", {seam: HEADER + inside}), [])
            self.assert_caught("seam_headers", seam, HEADER + inside.replace("/// Does it.\n", "\n"), "docstring")
            fatal = inside.replace("/// Does it.\nSYNC", "\n[[noreturn]] SYNC")
            self.assert_caught("seam_headers", seam, HEADER + fatal, "docstring")
        public = HEADER + "namespace syncrun {\nSYNCRUN_EXPORT void f();\n}  // namespace syncrun\n"
        self.assertEqual(self.violations("seam_headers", {"include/syncrun/a.hpp": public}), [])

    def test_files_stay_short(self):
        self.assertEqual(self.violations("file_length", {"common/a.cpp": "\n" * 600}), [])
        self.assert_caught("file_length", "common/a.cpp", "\n" * 601, "601 lines")

    def test_no_path_of_a_home(self):
        for home in ("/home" + "/somebody/x", "/Users" + "/somebody", "/root" + "/x"):
            self.assert_caught("no_home_paths", "scripts/a.sh", f"cd {home}\n", "home")
            self.assert_caught("no_home_paths", "README.md", f"see {home}\n", "home")
        self.assertEqual(self.violations("no_home_paths", {"scripts/a.sh": 'cd "$HOME/home/root"\n'}), [])


if __name__ == "__main__":
    unittest.main()

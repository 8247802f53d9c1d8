#!/usr/bin/env python3
"""Tests that each house rule finds the violation in a small project that breaks it."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
import house_rules  # noqa: E402

HEADER = "#pragma once\n\n// What it is for.\n"
PROJECT = {
    "include/syncrun/api.hpp": HEADER + "#include <vector>\n",
    "include/syncrun/detail/interface.hpp": HEADER,
    "common/block.hpp": HEADER + '#include "syncrun/api.hpp"\n#include <boost/any.hpp>\n',
    "master/process/spawn.hpp": HEADER + '#include "common/block.hpp"\n',
    "worker/loop/serve.hpp": HEADER + '#include "common/block.hpp"\n#include <nccl.h>\n',
    "demos/common/gemm.hpp": HEADER,
    "demos/mnist/rows.hpp": HEADER + '#include "demos/common/gemm.hpp"\n#include <syncrun/api.hpp>\n',
    "demos/mnist/main.cpp": '#include "demos/mnist/rows.hpp"\n',
    "tests/unit.cpp": '#include "master/process/spawn.hpp"\n#include "worker/loop/serve.hpp"\n#include "support.hpp"\n',
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

    def test_master_and_worker_never_include_each_other(self):
        self.assert_caught("include_rules", "master/a.cpp", '#include "worker/loop/serve.hpp"\n', "worker/loop/serve.hpp")
        self.assert_caught("include_rules", "worker/a.cpp", '#include "master/process/spawn.hpp"\n', "master/process/spawn.hpp")

    def test_a_folder_includes_only_itself_and_what_stands_below(self):
        above = {"master/api/a.hpp": HEADER}
        self.assertEqual(self.violations("floors", {**above, "master/api/b.cpp": '#include "master/api/a.hpp"\n'}), [])
        wrong = self.violations("floors", {**above, "master/process/b.cpp": '#include "master/api/a.hpp"\n'})
        self.assertEqual(len(wrong), 1, wrong)
        self.assertIn("master/api/ stands above master/process/", wrong[0])
        self.assert_caught("floors", "master/new/a.hpp", HEADER, "is not in FLOORS")

    def test_common_includes_neither_side(self):
        self.assert_caught("include_rules", "common/a.cpp", '#include "worker/loop/serve.hpp"\n', "worker/loop/serve.hpp")
        self.assert_caught("include_rules", "common/a.cpp", '#include "master/process/spawn.hpp"\n', "master/process/spawn.hpp")

    def test_the_public_api_shows_no_third_party_and_no_inside(self):
        self.assert_caught("include_rules", "include/syncrun/a.hpp", HEADER + "#include <boost/any.hpp>\n", "boost")
        self.assert_caught("include_rules", "include/syncrun/a.hpp", HEADER + "#include <spdlog/logger.h>\n", "spdlog")
        self.assert_caught("include_rules", "include/syncrun/a.hpp", HEADER + '#include "common/block.hpp"\n', "common")
        self.assertEqual(self.violations("include_rules", {"include/syncrun/a.hpp": HEADER + "#include <nccl.h>\n"}), [])

    def test_the_public_api_does_without_heavy_headers(self):
        self.assert_caught("include_rules", "include/syncrun/a.hpp", HEADER + "#include <functional>\n", "takes long")

    def test_only_the_part_for_libtorch_sees_libtorch(self):
        for file in ("include/syncrun/a.hpp", "worker/a.hpp", "demos/examples/a.hpp"):
            self.assert_caught("include_rules", file, HEADER + "#include <torch/torch.h>\n", "never sees LibTorch")
        for file in ("include/syncrun/torch/a.hpp", "libtorch/a.hpp", "demos/gpt/a.hpp"):
            self.assertEqual(self.violations("include_rules", {file: HEADER + "#include <torch/torch.h>\n"}), [])
        self.assert_caught("include_rules", "libtorch/a.cpp", '#include "worker/loop/serve.hpp"\n', "worker/loop/serve.hpp")
        self.assert_caught("include_rules", "include/syncrun/torch/a.hpp", HEADER + '#include "common/block.hpp"\n', "common")

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
        self.assert_caught("include_rules", "master/a.cpp", "#include <cuda_runtime.h>\n", "CUDA")
        self.assert_caught("include_rules", "common/a.cpp", "#include <nccl.h>\n", "CUDA")
        self.assert_caught("include_rules", "libtorch/a.cpp", "#include <cuda_runtime_api.h>\n", "CUDA")
        self.assertEqual(self.violations("include_rules", {"libtorch/cuda/a.cpp": "#include <cuda_runtime_api.h>\n"}), [])

    def test_demos_use_the_public_api_only(self):
        self.assert_caught("include_rules", "demos/mnist/a.cpp", '#include "common/block.hpp"\n', "common/block.hpp")
        self.assert_caught("include_rules", "demos/other/a.cpp", '#include "demos/mnist/rows.hpp"\n', "demos/mnist")
        self.assert_caught("include_rules", "demos/mnist/a.cpp", "#include <syncrun/detail/interface.hpp>\n", "stranger")
        self.assert_caught("include_rules", "demos/common/a.cpp", "#include <syncrun/api.hpp>\n", "syncrun/api.hpp")

    def test_the_network_of_resnet_does_not_know_the_program(self):
        self.assert_caught("include_rules", "demos/resnet/network/cpu/a.cpp", "#include <syncrun/api.hpp>\n", "syncrun/api.hpp")
        program = {"demos/resnet/program/b.hpp": HEADER + '#include "demos/resnet/network/cpu/c.hpp"\n',
                   "demos/resnet/network/cpu/c.hpp": HEADER + "#include <cuda_runtime.h>\n"}
        self.assertEqual(self.violations("include_rules", program), [])
        program["demos/resnet/network/a.cpp"] = '#include "demos/resnet/program/b.hpp"\n'
        self.assertIn("demos/resnet/program/b.hpp", self.violations("include_rules", program)[0])

    def test_includes_are_written_from_the_root(self):
        self.assert_caught("include_rules", "common/a.cpp", '#include "block.hpp"\n', "from the root")
        self.assert_caught("include_rules", "common/a.cpp", '  #  include "../worker/loop/serve.hpp"\n', "worker/loop/serve.hpp")

    def test_headers_have_their_guard_and_their_paragraph(self):
        self.assert_caught("headers", "common/a.hpp", "// What it is for.\nint f();\n", "#pragma once")
        self.assert_caught("headers", "common/a.hpp", "#pragma once\n#include <vector>\n// Late.\n", "paragraph")

    def test_a_room_has_a_namespace_of_its_own(self):
        def header(name, line):
            return f"#pragma once\n// One.\nnamespace syncrun::detail{name} {{\n\n{line}\n\n}}  // namespace syncrun::detail{name}\n"
        for file, name in (("master/pool/a.hpp", "::master::pool"), ("common/os/a.hpp", "::os"), ("common/a.hpp", ""),
                           ("worker/devices/cuda/a.cuh", "::worker::devices::cuda::kernels"), ("master/api/a.hpp", "")):
            self.assertEqual(self.violations("namespaces", {file: header(name, "class Staging {};")}), [], file)
        for name in ("", "::master", "::master::pools", "::worker::comm"):
            self.assert_caught("namespaces", "master/pool/a.hpp", header(name, "class Staging {};"), "put it into")
        other = header("::worker::comm", "class Staging;\nenum class Kind : int;")
        self.assertEqual(self.violations("namespaces", {"master/pool/a.hpp": other}), [])
        self.assertEqual(self.violations("namespaces", {"master/pool/a.cpp": header("", "int f() { return 1; }")}), [])

    def test_the_interface_is_in_two_headers(self):
        inside = "namespace detail {\n/// Does it.\nSYNCRUN_EXPORT void f();\n}  // namespace detail\n"
        self.assert_caught("interface_headers", "include/syncrun/a.hpp", HEADER + inside, "master_interface.hpp")
        for name in ("master_interface.hpp", "worker_interface.hpp"):
            interface = f"include/syncrun/detail/{name}"
            self.assertEqual(self.violations("interface_headers", {interface: HEADER + inside}), [])
            self.assert_caught("interface_headers", interface, HEADER + inside.replace("/// Does it.\n", "\n"), "docstring")
            fatal = inside.replace("/// Does it.\nSYNC", "\n[[noreturn]] SYNC")
            self.assert_caught("interface_headers", interface, HEADER + fatal, "docstring")
        public = HEADER + "namespace syncrun {\nSYNCRUN_EXPORT void f();\n}  // namespace syncrun\n"
        self.assertEqual(self.violations("interface_headers", {"include/syncrun/a.hpp": public}), [])

    def test_handles_of_cuda_are_no_data_members(self):
        for handle in ("cudaStream_t", "cudaEvent_t", "cudaGraph_t", "cudaGraphExec_t", "cublasHandle_t", "cublasLtHandle_t",
                       "cudnnHandle_t", "ncclComm_t", "ncclWindow_t", "CUstream_st*", "cublasContext*", "cudnnContext*"):
            member = f"class Network : public Base {{\n public:\n  void f();\n\n  {handle} handle_ = nullptr;\n}};\n"
            self.assert_caught("raw_handles", "worker/devices/cuda/a.cpp", member, f"a data member of type {handle}")
            self.assertIn("a.cpp:5:", self.violations("raw_handles", {"worker/devices/cuda/a.cpp": member})[0])
        for member in ("cudaEvent_t handle{};", "CUstream_st *one, *other;", "std::vector<cudaStream_t> all_;",
                       "void f() {}\n  alignas(64) ncclComm_t comm_;", "static cudnnContext* one;", "private:cudaGraph_t graph_;",
                       "union {\n cudaStream_t stream;\n };", "cublasHandle_t handle_ = made([] { return 1; });"):
            text = f"struct Lent {{\n  {member}\n}};\n"
            for file in ("demos/mnist/a.hpp", "bench/a.cu", "tests/a.cpp", "worker/owners_list.hpp"):
                self.assert_caught("raw_handles", file, HEADER + text, "a data member of type")
        inside = "template <class T>\nvoid f() {\n  struct Local {\n    ncclComm_t comm;\n  };\n}\n"
        self.assert_caught("raw_handles", "worker/a.cpp", inside, "ncclComm_t")

    def test_handles_of_cuda_that_are_no_data_members_pass(self):
        for text in (
            "class Owner : public CudaOwner<cudaStream_t, cudaStreamDestroy> {\n  using CudaOwner::CudaOwner;\n};\n",
            "class A {\n  cudaStream_t fork(cudaStream_t worker);\n  CUstream_st* get() const { return stream_.get(); }\n};\n",
            "class A {\n  static ncclComm_t made(Wait wait = {}, CUstream_st* stream = nullptr);\n};\n",
            "class A {\n  operator cudaStream_t() const;\n  using Raw = cudaStream_t;\n  friend cudaStream_t;\n};\n",
            "class A {\n  std::unique_ptr<CUstream_st, EndCuda> stream_;\n  HandleView<cudnnContext> cudnn_;\n};\n",
            "class A {\n  // cudaStream_t stream_;\n  /* cudaStream_t a;\n cudaStream_t b; */\n};\n",
            "class A {\n  void f() {\n    cudaStream_t stream = nullptr;\n    if (stream) { cudaEvent_t event; }\n  }\n};\n",
            "cudaStream_t f(class A& a) {\n  cudaStream_t stream = nullptr;\n  return stream;\n}\n",
        ):
            self.assertEqual(self.violations("raw_handles", {"worker/a.cpp": text}), [], text)
        for file in ("worker/devices/cuda/owners.hpp", "demos/mnist/cuda_owners.hpp"):
            view = HEADER + "class View {\n  cudaStream_t stream_;\n};\n"
            self.assertEqual(self.violations("raw_handles", {file: view}), [])

    def test_members_that_the_library_defines_are_typed(self):
        def of_class(head, body):
            return HEADER + "namespace syncrun {\n" + head + " {\n" + body + "};\n}  // namespace syncrun\n"

        exported, plain = "class SYNCRUN_EXPORT A : public B", "class A"
        file = "include/syncrun/a.hpp"
        for head, body in (
            (exported, " private:\n  void* scratch_bytes(std::size_t bytes);\n"),
            (exported, "  int rank() const noexcept;\n"),  # the members at the beginning of a class are private
            (exported, " public:\n  void f() { g(); }\n\n private:\n  void reduce(std::size_t n,\n              int root);\n"),
            (exported, " public:\n  void all_reduce(void* values, std::size_t elements);\n"),
            (exported, " private:\n  struct Source {\n    int n;\n  };\n  void gather(Source part) const;\n"),
            ("struct SYNCRUN_EXPORT A", " protected:\n  void f();\n"),
            (plain, " private:\n  SYNCRUN_EXPORT static int f(int n) noexcept;\n"),
        ):
            self.assert_caught("interface_headers", file, of_class(head, body), "untyped member")
        typed = """ public:
  explicit A(Core& core) noexcept : core_(&core) {}
  A(const A&) = delete;
  A& operator=(const A&) = delete;
  int rank() const noexcept;
  template <class T>
  void f(T&& values) {
    if (values.empty()) { return; }
    detail::f(*core_, values.data());  // void* f();
  }

 private:
  template <class R>
  static Source source_of(const R& range) noexcept {
    return {range.data()};
  }
  friend void g(const A& a);
  void (*copy_)(const void* from) = nullptr;
  std::function<void()> done_;
  int count_{};
  Core* core_;
"""
        self.assertEqual(self.violations("interface_headers", {file: of_class(exported, typed)}), [])
        # If a class is not exported, only functions that are defined in the header can be called.
        inside = " private:\n  static int round_from(float value) noexcept;\n"
        self.assertEqual(self.violations("interface_headers", {file: of_class(plain, inside)}), [])
        interface = "include/syncrun/detail/worker_interface.hpp"
        call = of_class(exported, " public:\n  void* object();\n").replace("class", "/// A call.\nclass")
        self.assertEqual(self.violations("interface_headers", {interface: call.replace("syncrun {", "syncrun::detail {")}), [])

    def test_files_stay_short(self):
        self.assertEqual(self.violations("file_length", {"common/a.cpp": "\n" * 600}), [])
        self.assert_caught("file_length", "common/a.cpp", "\n" * 601, "601 lines")

    def test_numbers_do_not_follow_the_locale(self):
        for code in ("std::strtod(text, &end)", "std::stod(text)", 'snprintf(to, 9, "%.3f", x)', 'printf("%-8.2Lg|", x)',
                     "std::ostringstream stream;"):  # fmt: skip
            self.assert_caught("locale_free", "master/a.cpp", code + ";\n", "follows the locale")
        for code in ('snprintf(to, 9, "%d of %s", n, name)', "std::to_chars(a, b, x)", '"100%"', "// like printf's %f"):
            self.assertEqual(self.violations("locale_free", {"master/a.cpp": code + ";\n"}), [], code)
        self.assertEqual(self.violations("locale_free", {"demos/a.cpp": 'printf("%f", x);\n'}), [])

    def test_clang_checks_every_lock(self):
        for code in ("std::mutex mutex_;", "std::recursive_mutex mutex_;", "const std::lock_guard lock(mutex_);", "std::unique_lock a(b);"):
            self.assert_caught("checked_locks", "master/a.cpp", code + "\n", "use common/os/mutex.hpp")
        guarded = "  mutable Mutex mutex_;\n  int value_ SYNCRUN_GUARDED_BY(mutex_) = 0;\n"
        self.assertEqual(self.violations("checked_locks", {"worker/a.hpp": guarded}), [])
        self.assert_caught("checked_locks", "worker/a.hpp", HEADER + "  detail::Mutex lock_;\n  int value_ = 0;\n", "GUARDED_BY(lock_)")

    def test_no_path_of_a_home(self):
        for home in ("/home" + "/somebody/x", "/Users" + "/somebody", "/root" + "/x"):
            self.assert_caught("no_home_paths", "scripts/a.sh", f"cd {home}\n", "home")
            self.assert_caught("no_home_paths", "README.md", f"see {home}\n", "home")
        self.assertEqual(self.violations("no_home_paths", {"scripts/a.sh": 'cd "$HOME/home/root"\n'}), [])

    def test_phrases_that_the_guide_replaces_are_caught(self):
        for file in ("README.md", "docs/a.md", "common/a.cpp", "include/syncrun/a.hpp", "scripts/a.sh", "bench/a.py"):
            self.assert_caught("plain_phrases", file, "# Eight were not to be had.\n", "'available'")
        self.assertEqual(self.violations("plain_phrases", {"README.md": "Eight were not available.\n"}), [])

    def test_lines_of_pages_end_at_120_columns(self):
        line = "word " * 24
        self.assert_caught("page_columns", "docs/a.md", f"# A\n\n{line}words\n", "125 columns")
        for text in (f"{line[:-1]}.\n", f"```\n{line}words\n```\n", f"| {line}words |\n", "x" * 130 + "\n"):
            self.assertEqual(self.violations("page_columns", {"docs/a.md": text}), [], text)

    def test_pages_name_files_that_exist(self):
        for text in ("common/gone.hpp", "common/{block,gone}.hpp", "master/gone/", "tests/gone*.cpp", "gone.hpp", "scripts/gone.sh --all"):
            for page in ("README.md", "docs/a.md", "packaging/README.md"):
                self.assert_caught("paths_in_pages", page, f"\nSee `{text}`.\n", "there is no ")
        for text in ("common/block.hpp", "common/{block,block}.hpp", "master/process/", "tests/s*.hpp", "block.hpp", "tests/unit.cpp --all",
                     "tests/api/my_test.cpp", "my_test.cpp", "demos/NAME/main.cpp", "demos/<name>/main.cpp", "tests/..."):  # fmt: skip
            self.assertEqual(self.violations("paths_in_pages", {"docs/a.md": f"See `{text}`.\n"}), [], text)


if __name__ == "__main__":
    unittest.main()

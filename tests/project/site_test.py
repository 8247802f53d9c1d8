#!/usr/bin/env python3
"""Tests that the reference site (docs/site) refuses broken links and public names without a comment. Skipped (exit code
77) without Doxygen."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

STAGE = Path(__file__).resolve().parents[2] / "docs/site/stage.py"
PAGE = "# Start\n\nSee [here](#start), [the file](a.cpp) and `[not](a link)`.\n"
HEADER = """#pragma once

// For this test. `kNamed` is explained here.

namespace syncrun {
/// Explained.
class Explained {
 public:
  /// Returns one, or first() and second() of it.
  int first() const;
  int first(int);
  int second() const;
  int begin() const;
  Explained(const Explained&) = delete;

 private:
  int hidden_;
};
inline constexpr int kNamed = 1;
namespace detail {
int own();
}
}  // namespace syncrun
"""


def findings(page: str, header: str) -> list[str]:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "root"
        (root / "include/syncrun").mkdir(parents=True)
        (root / "README.md").write_text(page, encoding="utf-8")
        (root / "a.cpp").write_text("int main() {}\n", encoding="utf-8")
        (root / "include/syncrun/a.hpp").write_text(header, encoding="utf-8")
        command = [sys.executable, "-B", str(STAGE), str(root), f"{name}/pages"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = done.stdout.splitlines()
        assert done.stderr == "" and (done.returncode == 1) == bool(found), done.stderr
        return found


class Site(unittest.TestCase):
    def test_accepts_what_is_right(self):
        self.assertEqual(findings(PAGE, HEADER), [])

    def test_refuses_links_that_lead_nowhere(self):
        page = PAGE + "\n[One](docs/nowhere.md),\n[two](README.md#nowhere) and [three](../root.md).\n"
        self.assertEqual(
            findings(page, HEADER),
            [
                "README.md:5: a link that leads nowhere: docs/nowhere.md",
                "README.md:6: a link to a heading that is not there: README.md#nowhere",
                "README.md:6: a link that leads nowhere: ../root.md",
            ],
        )

    def test_refuses_names_without_a_comment(self):
        for old, new, line, name in [
            ("/// Explained.\n", "\n", 7, "syncrun::Explained"),
            ("  int begin", "  int third();\n  int begin", 13, "syncrun::Explained::third"),
            ("kNamed = 1", "kOther = 1", 19, "syncrun::kOther"),
            ("namespace detail {", "enum class Kind { one };", 20, "syncrun::Kind"),
        ]:
            with self.subTest(name=name):
                found = findings(PAGE, HEADER.replace(old, new))
                self.assertIn(f"include/syncrun/a.hpp:{line}: {name} has no comment (///)", found)

    def test_refuses_comments_that_refer_to_nothing(self):
        found = findings(PAGE, HEADER.replace("/// Explained.", "/// See @ref nowhere."))
        self.assertEqual(len(found), 1)
        self.assertIn("unable to resolve reference to 'nowhere'", found[0])


if __name__ == "__main__":
    if shutil.which("doxygen") is None:
        sys.exit(77)
    unittest.main()

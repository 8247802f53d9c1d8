"""Checks the recipes in packaging/ without the package managers that read them: their syntax, the options that they give
to CMake, and the version."""

import ast
import json
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"


class Recipes(unittest.TestCase):
    def test_options_exist(self):
        scripts = [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake")]
        cmake = "\n".join(script.read_text() for script in scripts)
        recipes = [path for path in PACKAGING.rglob("*") if path.is_file()]
        used = {name for recipe in recipes for name in re.findall(r"SYNCRUN_[A-Z_]+", recipe.read_text())}
        self.assertIn("SYNCRUN_TESTS", used)
        for name in used:
            self.assertRegex(cmake, rf"(option|set|find_path)\({name} ")

    def test_spack_recipe_is_python(self):
        ast.parse(next(PACKAGING.rglob("package.py")).read_text())

    def test_vcpkg_port_has_this_version(self):
        version = re.search(r"VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text().split("project(")[1])
        port = json.loads(next(PACKAGING.rglob("vcpkg.json")).read_text())
        self.assertEqual(port["version"], version[1])

    def test_commands_of_the_container_file_are_shell(self):
        text = (PACKAGING / "Containerfile").read_text().replace("\\\n", "")
        commands = re.findall(r"^RUN (.*)$", text, re.MULTILINE)
        self.assertTrue(commands)
        for command in commands:
            subprocess.run(["bash", "-n", "-c", command], check=True)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

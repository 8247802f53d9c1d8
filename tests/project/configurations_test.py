"""Tests that scripts/configurations.py finds names that clash, and does not check anything twice."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import configurations  # noqa: E402
from configurations import Configuration  # noqa: E402

COMPILER = sys.argv.pop()
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(clash LANGUAGES CXX)
add_library(parts OBJECT first.cpp second.cpp)
set_target_properties(parts PROPERTIES UNITY_BUILD ON)
if(FAST)
  set_source_files_properties(second.cpp PROPERTIES COMPILE_OPTIONS -O3)
endif()
if(EXTRA)
  target_compile_definitions(parts PRIVATE EXTRA)
endif()
if(CUDA)
  target_compile_definitions(parts PRIVATE PARTS_HAVE_CUDA)
endif()
"""
FIRST = "namespace { struct Variables { int first; }; }\nint first(Variables v) { return v.first; }\n"
SECOND = "namespace { struct %s { int second; }; }\nint second(%s v) { return v.second; }\n"


class Configurations(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.source = Path(folder.name) / "source"
        self.folder = Path(folder.name)
        self.source.mkdir()
        self.write("CMakeLists.txt", PROJECT)
        self.write("first.cpp", FIRST)
        self.write("second.cpp", SECOND % ("Others", "Others"))

    def write(self, name, text):
        (self.source / name).write_text(text, encoding="utf-8")

    def configure(self, name, *options, has_cuda=False):
        build = self.folder / name
        configuration = Configuration(name, (f"CMAKE_CXX_COMPILER={COMPILER}", *options), source=self.source, has_cuda=has_cuda)
        self.assertEqual(configurations.configure(configuration, build), "")
        return configuration, build

    def errors(self, name, *options):
        _, build = self.configure(name, *options)
        return [configurations.read(unit, build) for unit in configurations.units_of(build)]

    def test_different_names_pass(self):
        self.assertEqual(self.errors("build"), [""])

    def test_a_name_that_clashes_is_found(self):
        self.write("second.cpp", SECOND % ("Variables", "Variables"))
        self.assertIn("Variables", self.errors("build")[0])

    def test_a_name_that_clashes_is_found_though_an_option_separates_the_sources(self):
        self.write("second.cpp", SECOND % ("Variables", "Variables"))
        self.assertIn("Variables", self.errors("build", "FAST=ON")[0])

    def test_a_name_that_clashes_only_with_cuda_is_found(self):
        self.write("second.cpp", "#ifdef PARTS_HAVE_CUDA\n" + SECOND % ("Variables", "Variables") + "#endif\n")
        self.assertEqual(self.errors("build"), [""])
        builds = [self.configure("reference"), self.configure("CUDA", "CUDA=ON", has_cuda=True)]
        (_, build, units), = configurations.new_units([each for each, _ in builds], [build for _, build in builds])
        self.assertIn("Variables", "".join(configurations.read(unit, build) for unit in units))

    def test_only_what_differs_is_new(self):
        builds = [self.configure("reference"), self.configure("other", "EXTRA=ON"), self.configure("again", "EXTRA=ON")]
        new = configurations.new_units([each for each, _ in builds], [build for _, build in builds])
        self.assertEqual([len(units) for _, _, units in new], [1, 0])

    def test_a_configuration_that_is_the_reference_is_an_error(self):
        builds = [self.configure("reference"), self.configure("without nothing")]
        with self.assertRaisesRegex(SystemExit, "without nothing: the compile commands are those of the reference"):
            configurations.new_units([each for each, _ in builds], [build for _, build in builds])


if __name__ == "__main__":
    unittest.main()

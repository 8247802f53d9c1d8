#!/usr/bin/env python3
"""Checks that every supported configuration compiles: without each optional package, without tests, demos or benchmarks,
for debugging, with another compiler, generator or CMake, and as a part of another project.

usage: configurations.py [NAME...]   (only the configurations whose names contain a NAME)

The reference is the build that scripts/test.sh compiles. Each configuration is configured, and its compile commands are
compared with those of the reference and of the configurations before it. Only the commands that are new are checked: the
compiler reads the sources and generates no code. It reads all sources of a target in one unit if the build compiles any
of them together. So no two names clash, whichever sources an option leaves out.

One configuration is really built and run: a project of a user that fetches Syncrun, in C++23, for debugging, with only
the required packages, with Makefiles and with the newest CMake, which pip fetches from PyPI.

Requires all packages that scripts/test.sh installs, Open MPI, MPICH and clang 16. Otherwise a configuration without one
of them would be the reference, which is an error.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts/lib"))
sys.dont_write_bytecode = True
from lint_units import sources_of  # noqa: E402

PLACE = "@BUILD@"  # stands for the build folder
# What makes CMake not find each optional package.
WITHOUT = {
    "libdw": ("SYNCRUN_LIBDW_INCLUDE_DIR=OFF",),
    "hwloc": ("SYNCRUN_HWLOC_INCLUDE_DIR=OFF",),
    "zlib": ("CMAKE_DISABLE_FIND_PACKAGE_ZLIB=ON",),
    "BLAS": ("CMAKE_DISABLE_FIND_PACKAGE_BLAS=ON",),
    "oneDNN": ("DEMOS_DNNL_INCLUDE_DIR=OFF",),
    "OpenMP": ("CMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON",),
    "CLI11": ("CMAKE_DISABLE_FIND_PACKAGE_CLI11=ON", "CLI11_INCLUDE_DIR=OFF"),
    "TurboJPEG": ("TURBOJPEG_INCLUDE_DIR=OFF",),
    "libarchive": ("CMAKE_DISABLE_FIND_PACKAGE_LibArchive=ON",),
    "benchmark": ("CMAKE_DISABLE_FIND_PACKAGE_benchmark=ON",),
    "nlohmann-json": ("CMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON",),
    "toml++": ("CMAKE_DISABLE_FIND_PACKAGE_tomlplusplus=ON",),
    "LibTorch": ("SYNCRUN_TORCH=OFF",),
    "Open MPI": ("SYNCRUN_OPENMPI_WRAPPER=OFF",),
    "MPICH": ("SYNCRUN_MPICH_WRAPPER=OFF",),
    "PMIx": ("SYNCRUN_PMIX_INCLUDE_DIR=OFF",),
    "MPI": ("SYNCRUN_MPI=OFF", "CMAKE_DISABLE_FIND_PACKAGE_MPI=ON"),
}
REQUIRED_ONLY = tuple(option for options in WITHOUT.values() for option in options)
# As on hosts with GPUs, which have no libdw.
CUDA = (*WITHOUT["libdw"], "SYNCRUN_CUDA=ON", "CMAKE_CUDA_ARCHITECTURES=90")
CLANG = ("CMAKE_C_COMPILER=clang-16", "CMAKE_CXX_COMPILER=clang++-16")


@dataclass(frozen=True)
class Configuration:
    name: str
    options: tuple[str, ...] = ()
    generator: str = "Ninja"
    cmake: str = "cmake"
    source: Path = ROOT
    may_be_reference: bool = False  # it may have the same compile commands
    is_built: bool = False  # and run, instead of being compared
    has_cuda: bool = False  # only the units with other sources than the reference, or with a definition *_HAVE_CUDA, are checked
    is_only_configured: bool = False  # too slow to read here; .ci/run compiles asan and tsan in turn, scripts/fuzz.sh fuzz


@dataclass(frozen=True)
class Unit:
    """Sources that one run of a compiler reads. The options contain no path of the build folder, and none that only
    changes the code that the compiler generates. So equal units of two configurations have the same result. Versions of
    CMake write options in different orders."""
    sources: tuple[str, ...]
    compiler: str
    options: frozenset[str]
    command: tuple[str, ...] = field(compare=False)


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def configure(configuration: Configuration, folder: Path) -> str:
    """Configures into the folder. Returns what CMake printed if it failed."""
    command = [configuration.cmake, "-G", configuration.generator, "-S", configuration.source, "-B", folder,
               "-DSYNCRUN_CUDA=OFF", "-DSYNCRUN_UNITY=ON", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
               f"-DPython3_EXECUTABLE={sys.executable}",  # CMake starts it several times, and a wrapper takes long
               *(f"-D{option}" for option in ("CMAKE_BUILD_TYPE=Release", *configuration.options))]
    result = subprocess.run(command, capture_output=True, text=True)
    return "" if result.returncode == 0 else result.stdout + result.stderr


def is_precompiled(entry: dict) -> bool:
    return entry["file"].endswith("/cmake_pch.hxx.cxx")


def options_of(entry: dict, build: Path) -> tuple[str, ...]:
    """The options of a command, without the file that it writes."""
    words = shlex.split(entry["command"].replace(str(build), PLACE))[1:]
    at = words.index("-o")
    return tuple(words[:at])


def units_of(build: Path) -> set[Unit]:
    """The units of a build folder, without sources of other languages. The checks that each public header compiles by
    itself are left out, because the reference makes them."""
    targets: dict[str, list[dict]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        words = shlex.split(entry["command"])
        target = re.match(r"(?:.*/)?CMakeFiles/([^/]+)\.dir/", words[words.index("-o") + 1])
        if target and entry["file"].endswith((".cpp", "_cxx.cxx")) and not is_precompiled(entry):
            targets.setdefault(target[0], []).append(entry)
    units = set()
    for entries in targets.values():
        together = [entry for entry in entries if "/Unity/" in entry["file"]]
        others = [entry for entry in entries if entry not in together]
        for group in [together + others] if together else [[entry] for entry in others]:
            options = list(options_of(group[0], build))
            for entry in group[1:]:  # definitions and include folders of single sources
                options += [option for option in options_of(entry, build)
                            if option.startswith(("-D", "-I")) and option not in options]
            sources = sorted(source for entry in group for source in sources_of(entry))
            compiler = shlex.split(group[0]["command"])[0]
            units.add(Unit(tuple(source.replace(str(build), PLACE) for source in sources), compiler,
                           frozenset(option for option in options if not re.fullmatch(r"-O.|-g\d?", option)),
                           (compiler, *options)))
    return units


def precompile_headers(build: Path, units: set[Unit]) -> list[str]:
    """Precompiles the headers that the units include. Returns what failed."""
    words = {word for unit in units for word in unit.command}
    failures = []
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        if is_precompiled(entry) and entry["file"].removesuffix(".cxx").replace(str(build), PLACE) in words:
            result = subprocess.run(entry["command"], shell=True, cwd=entry["directory"], capture_output=True, text=True)
            if result.returncode != 0:
                failures.append(result.stderr)
    return failures


def read(unit: Unit, build: Path) -> str:
    """Reads a unit with its compiler. Returns what the compiler printed if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "unit.cpp"
        text = "".join(f'#include "{name}"\n' for name in unit.sources).replace(PLACE, str(build))
        source.write_text(text, encoding="utf-8")
        command = [word.replace(PLACE, str(build)) for word in unit.command]
        result = subprocess.run([*command, "-fsyntax-only", source], cwd=build, capture_output=True, text=True)
    return "" if result.returncode == 0 else result.stderr


def missing_exports(unit: Unit, build: Path) -> str:
    """The library for CUDA devices may use only what libsyncrun exports (SYNCRUN_EXPORT_FOR_CUDA). Compiles its C++, which
    takes much less time than its kernels, and returns the functions that it would not find. Those in its own folder may be
    kernels. The library of the reference exports the same as one with CUDA."""
    library = ROOT / "build/release/lib/libsyncrun.so"
    if not any(source.endswith("worker/devices/cuda/cuda_device.cpp") for source in unit.sources):
        return ""
    if not library.exists():
        return f"there is no {library} to compare with: run scripts/test.sh first"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "unit.cpp"
        source.write_text("".join(f'#include "{name}"\n' for name in unit.sources).replace(PLACE, str(build)), encoding="utf-8")
        command = [word.replace(PLACE, str(build)) for word in unit.command]
        result = subprocess.run([*command, "-c", source, "-o", f"{folder}/unit.o"], cwd=build, capture_output=True, text=True)
        if result.returncode != 0:
            return result.stderr
        used = subprocess.run(["nm", "-u", "-C", f"{folder}/unit.o"], capture_output=True, text=True, check=True).stdout
    exported = subprocess.run(["nm", "-D", "-C", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    exports = {line.split(" ", 2)[2] for line in exported.splitlines()}
    own = "syncrun::detail::worker::devices::cuda::"
    names = [line.split(None, 1)[1] for line in used.splitlines() if " syncrun::" in line]
    return "".join(f"libsyncrun does not export {name}\n" for name in names if name not in exports and not name.startswith(own))


def new_units(configurations: list[Configuration], folders: list[Path]) -> list[tuple[Configuration, Path, set[Unit]]]:
    """The units of each configuration that no configuration before it has. The first one is the reference."""
    seen = units_of(folders[0])
    reference = set(seen)
    sources = {source for unit in reference for source in unit.sources}
    result = []
    for configuration, folder in zip(configurations[1:], folders[1:]):
        if configuration.is_only_configured:
            continue
        units = units_of(folder)
        if configuration.has_cuda:
            units = {unit for unit in units if not sources.issuperset(unit.sources)
                     or any(re.fullmatch(r"-D\w+_HAVE_CUDA", option) for option in unit.options)}
        if units == reference and not configuration.may_be_reference:
            raise SystemExit(f"error: {configuration.name}: the compile commands are those of the reference. Install what "
                             "this configuration leaves out, or correct its options")
        result.append((configuration, folder, units - seen))
        seen |= units
    return result


def fetch_cmake() -> str:
    """The newest CMake, from PyPI."""
    folder = ROOT / ".cache/newest-cmake"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--root-user-action=ignore"]
    subprocess.run([*pip, "--retries", "1", "--timeout", "20", "--target", folder, "cmake"], check=True)
    return str(folder / "cmake/data/bin/cmake")


def write_project(folder: Path) -> Path:
    """A project of a user that fetches Syncrun (docs/cmake.md)."""
    folder.mkdir()
    shutil.copy(ROOT / "docs/samples/fetch_content/CMakeLists.txt", folder)
    shutil.copy(ROOT / "tests/project/stranger/main.cpp", folder)
    return folder


def build_and_run(cmake: str, build: Path) -> str:
    """Builds the project of write_project and runs it on two devices. Returns what failed."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    for command in ([cmake, "--build", build, "-j", str(os.cpu_count()), "--target", "mine", "syncrun_command"],
                    [build / "_deps/syncrun-build/bin/syncrun", "-n", "2", build / "mine"]):
        result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)
        if result.returncode != 0:
            return result.stdout + result.stderr
    return "" if "2 workers, 500 rows" in result.stdout else f"printed something else: {result.stdout}"


def sanitized() -> list[Configuration]:
    """The presets for the sanitizers, as they are in CMakePresets.json."""
    presets = json.loads((ROOT / "CMakePresets.json").read_text(encoding="utf-8"))["configurePresets"]
    return [Configuration(f"preset {preset['name']}", tuple(f"{name}={value}" for name, value in preset["cacheVariables"].items()),
                          is_only_configured=True)
            for preset in presets if "SYNCRUN_SANITIZER" in preset.get("cacheVariables", {})]


def all_configurations(cmake: str, project: Path) -> list[Configuration]:
    cuda = [Configuration("CUDA, newest CMake", CUDA, cmake=cmake, has_cuda=True)]
    fetched = (f"FETCHCONTENT_SOURCE_DIR_SYNCRUN={ROOT}", "CMAKE_CXX_STANDARD=23", "CMAKE_BUILD_TYPE=Debug",
               "CMAKE_CXX_FLAGS_DEBUG=")  # without debug information, which takes long to write
    return [
        Configuration("reference"),
        Configuration("newest CMake", cmake=cmake, may_be_reference=True),
        Configuration("Makefiles", generator="Unix Makefiles", may_be_reference=True),
        *(Configuration(f"without {name}", options) for name, options in WITHOUT.items()),
        Configuration("required packages only", REQUIRED_ONLY),
        *(cuda if shutil.which("nvcc") else []),
        Configuration("without tests", ("SYNCRUN_TESTS=OFF",)),
        Configuration("without tests of faults", ("SYNCRUN_FAULT_TESTS=OFF",)),
        Configuration("without demos", ("SYNCRUN_DEMOS=OFF",)),
        Configuration("without benchmarks", ("SYNCRUN_BENCH=OFF",)),
        # .ci/run compiles most tests with clang too, with the sanitizers, but with one of them only.
        Configuration("clang, Debug", (*CLANG, "CMAKE_BUILD_TYPE=Debug", "SYNCRUN_TESTS=OFF")),
        *sanitized(),
        Configuration("project in C++23, built", (*REQUIRED_ONLY, *fetched), "Unix Makefiles", cmake, project, is_built=True),
    ]


def main(names: list[str]) -> int:
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(os.cpu_count()) as threads:
        reference, *others = all_configurations(fetch_cmake(), write_project(Path(temporary) / "project"))
        unknown = [name for name in names if not any(name in each.name for each in others)]
        if unknown:
            raise SystemExit(f"error: no configuration is named {', '.join(unknown)}")
        chosen = [reference, *(each for each in others if not names or any(name in each.name for name in names))]
        folders = [Path(temporary) / str(number) for number in range(len(chosen))]
        if not shutil.which("nvcc"):
            say("Left out: CUDA, because there is no nvcc")
        say(f"Configuring {len(chosen)} builds")
        for configuration, output in zip(chosen, threads.map(configure, chosen, folders)):
            if output:
                raise SystemExit(f"error: {configuration.name}: CMake failed:\n{output}")
        failures = []
        for configuration, folder, units in new_units(chosen, folders):
            if configuration.is_built:
                say(f"{configuration.name}: building and running it")
                outputs = [build_and_run(configuration.cmake, folder)]
            else:
                say(f"{configuration.name}: {len(units)} new units")
                outputs = precompile_headers(folder, units)
                outputs += threads.map(read, units, [folder] * len(units))
                outputs += threads.map(missing_exports, units, [folder] * len(units)) if configuration.has_cuda else []
            failures += [f"error: {configuration.name}: {output}" for output in outputs if output]
    for failure in failures:
        print(failure, file=sys.stderr)
    say(f"{len(chosen)} configurations, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

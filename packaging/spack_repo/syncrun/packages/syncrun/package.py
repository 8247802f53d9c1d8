"""Builds the checkout in which this file is: spack repo add packaging/spack_repo/syncrun && spack install syncrun"""

from pathlib import Path

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Syncrun(CMakePackage, CudaPackage):
    """Runs the functions of a serial program on all GPUs or CPU cores of one machine or several."""

    git = Path(__file__).resolve().parents[5].as_uri()
    license("MIT")

    version("main", branch="main")

    variant("mpi", default=True, description="Run on several nodes")
    variant("libdw", default=True, description="Show native stacks in the report of a deadline")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("boost@1.74:", type="build")
    depends_on("spdlog", type="build")
    depends_on("tomlplusplus", type="build")
    depends_on("mpi", when="+mpi")
    depends_on("elfutils", when="+libdw")
    depends_on("nccl", when="+cuda")
    conflicts("cuda_arch=none", when="+cuda", msg="choose the GPUs to compile for: cuda_arch=90")
    conflicts("%gcc@:11", msg="requires C++20 of g++ 12 or later")

    def cmake_args(self):
        args = [
            self.define("SYNCRUN_TESTS", False),
            self.define("SYNCRUN_BENCH", False),
            self.define("SYNCRUN_DEMOS", False),
            self.define("SYNCRUN_TORCH", False),
            # Without hwloc, `syncrun --bind-to core` and `--bind-to socket` are errors.
            self.define("SYNCRUN_HWLOC_INCLUDE_DIR", False),
            self.define_from_variant("SYNCRUN_CUDA", "cuda"),
            self.define_from_variant("SYNCRUN_MPI", "mpi"),
        ]
        if self.spec.satisfies("~libdw"):
            args.append(self.define("SYNCRUN_LIBDW_INCLUDE_DIR", False))
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args

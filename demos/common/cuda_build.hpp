#pragma once

// In the packages, a demo is two programs. The one in the user's PATH is built without CUDA, so it runs where CUDA is not
// installed. The package syncrun-cuda has the same program with CUDA. All nodes of a job must run the same one, so all or
// none of them have this package and CUDA's libraries.

#include <string>

namespace demos {

/// Replaces this process by the program with CUDA if that is installed, and if the CUDA part of Syncrun and `library` can
/// be loaded. `library` is one that only this program requires, or null. Call it first in main, in the master and in
/// workers. The result says why the installed program could not run, if SYNCRUN_DEVICES names CUDA devices. Otherwise it
/// is empty.
std::string run_cuda_build(char** argv, const char* library = nullptr);

}  // namespace demos

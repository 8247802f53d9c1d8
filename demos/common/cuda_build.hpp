#pragma once

// In the packages, a demo is two programs. The one in the user's PATH is built without CUDA, so it runs where CUDA is not
// installed. The package syncrun-cuda has the same program with CUDA.

namespace demos {

/// Replaces this process by the program with CUDA if that is installed and its libraries can be loaded. Otherwise
/// returns. Call it first in main, in the master and in workers.
void run_cuda_build(char** argv);

}  // namespace demos

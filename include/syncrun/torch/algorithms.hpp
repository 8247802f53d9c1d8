#pragma once

// Which algorithms LibTorch uses on a worker: those that give the same bits each time, and those that compute with all
// digits of float32. Without these functions, LibTorch uses the fastest.

#include "syncrun/detail/export.hpp"

namespace syncrun::libtorch {

// Call these functions on every rank: in the constructor of a module, or in that of a class of your own. They hold for
// all of LibTorch in this worker, until it ends. A worker that replaces a lost one constructs the module again, so it
// calls them too.
//
//   struct Net : torch::nn::Module {
//     Net() { lt::use_deterministic_algorithms(); ... }

/// From now on, LibTorch adds in an order that does not change from run to run, as with Python's
/// torch.use_deterministic_algorithms(True). Without it, some operations on GPUs add in the order in which thread
/// blocks finish: the backward pass of scaled_dot_product_attention for more than some hundred tokens, some of cuDNN's
/// convolutions, and those that scatter values, such as the gradient of `gather`.
///
/// These operations get slower, and attention needs more memory. An operation that LibTorch cannot do in a fixed order
/// throws Error (function), which names it. Some versions of LibTorch require the variable CUBLAS_WORKSPACE_CONFIG,
/// which they read at the first matrix product of a worker. So call this function before: if the user has not set the
/// variable, it sets ":4096:8".
SYNCRUN_EXPORT void use_deterministic_algorithms();

/// From now on, products, convolutions and recurrent layers of float32 on GPUs compute with all 24 bits of the
/// significand. Without it, LibTorch lets cuDNN use TF32, which has 11 bits, for convolutions and recurrent layers.
/// That is faster. Matrix products have all bits by default.
SYNCRUN_EXPORT void use_full_float32();

}  // namespace syncrun::libtorch

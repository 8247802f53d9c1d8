#include "syncrun/torch/algorithms.hpp"

#include <ATen/Context.h>

#include <cstdlib>

namespace syncrun::libtorch {

namespace {

/// Newer versions of LibTorch also fill new tensors with NaN, to find reads of what nobody wrote. Older ones do not.
template <class Context>
void leave_new_tensors_as_they_are(Context& context) {
  if constexpr (requires { context.setDeterministicFillUninitializedMemory(false); })
    context.setDeterministicFillUninitializedMemory(false);
}

}  // namespace

void use_deterministic_algorithms() {
  static_cast<void>(::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0));
  auto& context = at::globalContext();
  leave_new_tensors_as_they_are(context);
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
}

void use_full_float32() {
  at::globalContext().setAllowTF32CuDNN(false);
  at::globalContext().setAllowTF32CuBLAS(false);
}

}  // namespace syncrun::libtorch

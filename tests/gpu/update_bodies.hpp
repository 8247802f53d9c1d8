#pragma once

// Bodies that compute a gradient on a GPU, for tests of updates and train steps. They are as simple as possible.

#include <syncrun/syncrun.hpp>

namespace gpu_test {

namespace sr = syncrun;

/// Least squares: the mean over rows of (x p - y)^2, and its gradient. T is float or double.
template <class T>
sr::Avg<double> loss_and_gradient(sr::CudaWorker& worker, sr::Scattered<const T, 2> x, sr::Scattered<const T, 1> y,
                                  sr::Local<T, 1> params, sr::Local<T, 1> gradient);

/// The gradient is the parameters themselves.
void gradient_is_params(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, sr::Local<float, 1> params,
                        sr::Local<float, 1> gradient);

}  // namespace gpu_test

#pragma once

// The optimizer of the demos: stochastic gradient descent with Nesterov momentum over flat vectors.

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>

namespace demos {

/// One step of Nesterov's accelerated gradient, in a single pass over the three vectors:
///
///     velocity = momentum * velocity - rate * gradient
///     params   = params + momentum * velocity - rate * gradient
///
/// `velocity` starts at zero. Throws std::invalid_argument if the lengths differ. Source: Y. Bengio, N.
/// Boulanger-Lewandowski, R. Pascanu, "Advances in Optimizing Recurrent Networks", arXiv 1212.0901, equations 6 and 7.
/// They rewrite the method of I. Sutskever et al. (ICML 2013), so that the gradient is taken at the parameters
/// themselves.
template <typename T>
void nesterov_update(std::span<T> params, std::span<T> velocity, std::span<const T> gradient, T rate, T momentum) {
  if (velocity.size() != params.size() || gradient.size() != params.size()) {
    throw std::invalid_argument("nesterov_update: expected velocity and gradient of " + std::to_string(params.size()) +
                                " elements like params, got " + std::to_string(velocity.size()) + " and " +
                                std::to_string(gradient.size()));
  }
  for (std::size_t i = 0; i < params.size(); ++i) {
    const T descent = rate * gradient[i];
    const T v = momentum * velocity[i] - descent;
    velocity[i] = v;
    params[i] += momentum * v - descent;
  }
}

}  // namespace demos

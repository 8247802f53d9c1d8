#include "demos/mnist/training.hpp"

#include "demos/common/network.hpp"
#include "demos/mnist/digits.hpp"

namespace mnist {

template <class T>
std::vector<T> initial_parameters(const demos::ModelSpec& model, std::size_t image_height, std::size_t image_width,
                                  std::uint64_t seed) {
  const demos::Network<T> network(model, image_height, image_width, kClasses);
  std::vector<T> params(network.parameter_count());
  network.initialize(params, seed);
  return params;
}

template std::vector<float> initial_parameters(const demos::ModelSpec&, std::size_t, std::size_t, std::uint64_t);
template std::vector<double> initial_parameters(const demos::ModelSpec&, std::size_t, std::size_t, std::uint64_t);

}  // namespace mnist

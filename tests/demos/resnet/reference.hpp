#pragma once

// The references that demos/resnet/tools/resnet_reference.py has written. That script and these tests share a formula
// for weights and images, so that these need not be stored.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "demos/resnet/network/architecture.hpp"

namespace resnet::testing {

/// A number in [-1, 1) with 24 bits, which depends on the place only. This is the finalizer of splitmix64 (G. Steele,
/// D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, figure 16).
double uniform_at(std::uint64_t place);

/// The initial parameters [parameter_count] and statistics [statistics_count] of the references.
std::vector<float> reference_params(const Architecture& architecture);
std::vector<float> reference_statistics(const Architecture& architecture);

/// The images [rows, image_size, image_size, 3] and the labels of every step.
std::vector<float> reference_images(const Architecture& architecture, std::size_t rows);
std::vector<std::int64_t> reference_labels(const Architecture& architecture, std::size_t rows);

inline constexpr double kReferenceSmoothing = 0.1;
inline constexpr float kReferenceRate = 0.02F;
inline constexpr float kReferenceMomentum = 0.9F;
inline constexpr std::size_t kReferenceSteps = 10;

/// The elements of a .npy file of T, which is float, double or std::int64_t. Throws std::runtime_error if it is no such
/// file.
template <typename T>
std::vector<T> load_npy(const std::string& file);

/// The folder of the references that are part of this repository.
std::string carried_references();

/// Relative distances of logits, loss and gradient: the norm of the difference over the norm.
struct Distances {
  double logits;
  double loss;
  double gradient;
};

/// The results of torch for one network. Every folder of references contains them. The network is torchvision's, or
/// that of demos/resnet/tools/resnet_modules.py if torchvision was not available.
struct Computed {
  std::string networks;  // torchvision's or resnet_modules.py's, and the versions
  Architecture architecture;
  std::size_t rows;
  std::vector<float> logits;            // [rows, classes], with the initial running statistics
  std::vector<float> moved_statistics;  // after one step
  std::vector<double> losses;           // of kReferenceSteps steps of SGD with momentum, on the same rows
  Distances float32;                    // distance of torch's own float32 from this
  Distances autocast;                   // distance of its bfloat16, by autocast, from its float32
};

/// References of a small network, from the folder of that name. Of the gradient, they contain only norms, samples and
/// projections.
struct Reference : Computed {
  explicit Reference(const std::string& name, const std::string& folder = carried_references());

  std::vector<std::string> arrays;           // "conv1.weight 16 7 7 3": name and shape, in the order of torchvision
  std::vector<float> training_logits;        // [rows, classes], with the statistics of the batch
  std::vector<double> gradient_norms;        // norms of the first step's gradient, by parameter array
  std::vector<float> gradient_samples;       // [arrays, kSamples]
  std::vector<double> gradient_projections;  // [arrays, kProjections]

  static constexpr std::size_t kSamples = 64;
  static constexpr std::size_t kProjections = 8;
};

/// The arrays that are parameters, in the order of named_arrays().
std::vector<NamedArray> parameter_arrays(const Architecture& architecture);

/// Compares `gradient` [parameter_count], array by array, with what the reference contains of it. The difference may be
/// `tolerance` times the norm of the array.
void expect_reference_gradient(const Reference& reference, std::span<const float> gradient, double tolerance);

/// The relative distance of `gradient` [parameter_count] from the reference's whole gradient, estimated from
/// projections.
double gradient_distance(const Reference& reference, std::span<const float> gradient);

/// References of a network of any size, with all values of its gradient, from a folder that resnet_reference.py --full
/// has written.
struct FullReference : Computed {
  explicit FullReference(const std::string& folder);

  std::vector<float> gradient;  // [parameter_count], of the first step
  std::vector<double>
      float32_array_distances;  // torch's own float32 from this, by parameter array, as worst_array() has it
};

struct ArrayDistance {
  std::string name;
  double distance;
};

/// The parameter array whose gradient is the furthest from the expected one, relative to its norm. Both gradients are
/// [parameter_count]. An array with at most 1e-12 of the norm of the whole gradient is zero, except for the rounding of
/// the float64 in which it was computed. Its own norm says nothing, so its distance is relative to the norm of the
/// whole.
ArrayDistance worst_array(const Architecture& architecture, std::span<const float> gradient,
                          std::span<const float> expected);

/// The same for torch's own float32.
ArrayDistance torch_worst_array(const FullReference& reference);

/// |a - b| / |b|, or |a| if b is 0.
double relative_error(std::span<const float> a, std::span<const float> b);

}  // namespace resnet::testing

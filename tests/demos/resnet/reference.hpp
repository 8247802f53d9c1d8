#pragma once

// What scripts/resnet_reference.py has written, and the closed formula that it and these tests share, so that weights and
// images need not be stored.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "demos/resnet/architecture.hpp"

namespace resnet::testing {

/// In [-1, 1), 24 bits: a function of the place alone. The finalizer of splitmix64 (G. Steele, D. Lea, C. Flood, "Fast
/// Splittable Pseudorandom Number Generators", OOPSLA 2014, figure 16).
double uniform_at(std::uint64_t place);

/// The parameters [parameter_count] and statistics [statistics_count] that references start from.
std::vector<float> reference_params(const Architecture& architecture);
std::vector<float> reference_statistics(const Architecture& architecture);

/// The images [rows, image_size, image_size, 3] and labels of every step.
std::vector<float> reference_images(const Architecture& architecture, std::size_t rows);
std::vector<std::int64_t> reference_labels(const Architecture& architecture, std::size_t rows);

inline constexpr double kReferenceSmoothing = 0.1;
inline constexpr float kReferenceRate = 0.02F;
inline constexpr float kReferenceMomentum = 0.9F;
inline constexpr std::size_t kReferenceSteps = 10;

/// The elements of a .npy file of T: float, double or std::int64_t. Throws std::runtime_error where it is no such file.
template <typename T>
std::vector<T> load_npy(const std::string& file);

/// The folder of the references that are carried here.
std::string carried_references();

/// Relative distances of logits, loss and gradient (the norm of the difference over the norm).
struct Distances {
  double logits;
  double loss;
  double gradient;
};

/// What every folder of references holds of a network as torchvision computes it.
struct Computed {
  std::string networks;  // whose they are, with versions, in words
  Architecture architecture;
  std::size_t rows;
  std::vector<float> logits;            // [rows, classes], by the statistics that it starts from
  std::vector<float> moved_statistics;  // after one step
  std::vector<double> losses;           // of kReferenceSteps steps of SGD with momentum, on the same rows
  Distances float32;                    // torch's own float32 from this
  Distances autocast;                   // its bfloat16, by autocast, from its float32
};

/// A small network, from the folder of that name: of its gradient, what tells it from others.
struct Reference : Computed {
  explicit Reference(const std::string& name, const std::string& folder = carried_references());

  std::vector<std::string> arrays;           // "conv1.weight 16 7 7 3": name and shape, in torchvision's order
  std::vector<float> training_logits;        // [rows, classes], by the statistics of the batch
  std::vector<double> gradient_norms;        // of the first step's, by parameter array
  std::vector<float> gradient_samples;       // [arrays, kSamples]
  std::vector<double> gradient_projections;  // [arrays, kProjections]

  static constexpr std::size_t kSamples = 64;
  static constexpr std::size_t kProjections = 8;
};

/// The arrays that are parameters, in their order.
std::vector<NamedArray> parameter_arrays(const Architecture& architecture);

/// Expects of `gradient` [parameter_count], array by array, what the reference has of it, to a part `tolerance` of each
/// array's norm.
void expect_reference_gradient(const Reference& reference, std::span<const float> gradient, double tolerance);

/// The distance of `gradient` [parameter_count] from the reference's as a whole, estimated from projections.
double gradient_distance(const Reference& reference, std::span<const float> gradient);

/// A network of any size with all its values, from a folder that --full was written to.
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

/// The parameter array whose gradient is the furthest from what is expected of it, relative to its norm; both
/// [parameter_count]. An array that has no more than 1e-12 of the whole gradient's norm is 0, but for the rounding of the
/// float64 that it was computed in: its distance is relative to the norm of the whole, since its own says nothing.
ArrayDistance worst_array(const Architecture& architecture, std::span<const float> gradient,
                          std::span<const float> expected);

/// The same of torch's own float32.
ArrayDistance torch_worst_array(const FullReference& reference);

/// |a - b| / |b|, or |a| where b is 0.
double relative_error(std::span<const float> a, std::span<const float> b);

}  // namespace resnet::testing

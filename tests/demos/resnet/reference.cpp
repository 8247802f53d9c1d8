#include "tests/demos/resnet/reference.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <type_traits>

namespace resnet::testing {
namespace {

// The first place of each kind of draws. Those for parameters begin at 0.
constexpr std::uint64_t kStatisticsDraws = std::uint64_t{1} << 40;
constexpr std::uint64_t kProjectionDraws = std::uint64_t{1} << 44;
constexpr std::uint64_t kImageDraws = std::uint64_t{1} << 48;

// The same as ZERO_GRADIENT in demos/resnet/tools/resnet_reference.py.
constexpr double kZeroGradient = 1e-12;

/// The distribution of an array's values: center + spread * uniform.
struct Distribution {
  double center;
  double spread;
};

Distribution distribution_of(const NamedArray& array) {
  const auto fan_in = [&] { return static_cast<double>(array.elements() / array.shape[0]); };
  if (array.name.ends_with("running_var")) return {1, 0.5};
  if (array.name.ends_with("running_mean") || array.name == "fc.bias") return {0, 0.1};
  if (array.name == "fc.weight") return {0, std::sqrt(3 / fan_in())};
  if (array.shape.size() == 4) return {0, std::sqrt(6 / fan_in())};
  if (array.name.ends_with("bias")) return {0.2, 0.2};
  if (array.name.find("downsample") != std::string::npos) return {1, 0.25};
  return {0.3, 0.1};
}

void fill(const Architecture& architecture, NamedArray::Where where, std::uint64_t draws, std::vector<float>& values) {
  for (const NamedArray& array : named_arrays(architecture)) {
    if (array.where != where) continue;
    const auto [center, spread] = distribution_of(array);
    for (std::size_t i = array.offset; i < array.offset + array.elements(); ++i) {
      values[i] = static_cast<float>(center + spread * uniform_at(draws + i));
    }
  }
}

std::string read(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot read " + file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

template <typename T>
std::string_view description_of() {
  if constexpr (std::is_same_v<T, float>) return "'<f4'";
  if constexpr (std::is_same_v<T, double>) return "'<f8'";
  return "'<i8'";
}

std::vector<std::string> lines_of(const std::string& file) {
  std::ifstream stream(file);
  if (!stream) throw std::runtime_error("cannot read " + file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

double norm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

double norm_of_difference(std::span<const float> a, std::span<const float> b) {
  std::vector<float> difference(a.begin(), a.end());
  for (std::size_t i = 0; i < b.size(); ++i) difference[i] -= b[i];
  return norm(difference);
}

double projection(std::span<const float> values, std::size_t k) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += static_cast<double>(values[i]) * uniform_at(kProjectionDraws * (k + 1) + i);
  }
  return sum;
}

/// The norm of the error of `values`, estimated from the errors of projections on vectors of variance 1/3.
double error_by_projections(std::span<const float> values, std::span<const double> expected) {
  double sum = 0;
  for (std::size_t k = 0; k < expected.size(); ++k) {
    const double error = projection(values, k) - expected[k];
    sum += error * error;
  }
  return std::sqrt(3 * sum / static_cast<double>(expected.size()));
}

/// The array with the largest distance_of(array, its place among parameter arrays). NaN counts as the largest.
template <typename DistanceOf>
ArrayDistance worst_of(const Architecture& architecture, const DistanceOf& distance_of) {
  ArrayDistance worst{.name = "", .distance = -1};
  std::size_t place = 0;
  for (const NamedArray& array : parameter_arrays(architecture)) {
    const double distance = distance_of(array, place++);
    if (!(distance <= worst.distance)) worst = {array.name, distance};
    if (std::isnan(distance)) break;
  }
  return worst;
}

Distances load_distances(const std::string& file) {
  const auto values = load_npy<double>(file);
  return {values.at(0), values.at(1), values.at(2)};
}

Architecture architecture_of(const std::vector<std::int64_t>& made) {
  return plan({.depth = static_cast<int>(made.at(0)),
               .image_size = static_cast<std::size_t>(made.at(2)),
               .classes = static_cast<std::size_t>(made.at(3)),
               .width = static_cast<std::size_t>(made.at(1))});
}

std::string networks_of(const std::string& folder) {
  const std::string file = folder + "networks.txt";
  const auto lines = std::filesystem::exists(file) ? lines_of(file) : std::vector<std::string>{};
  return lines.empty() ? "not recorded" : lines[0];
}

std::vector<double> load_losses(const std::string& file) {
  if (!std::filesystem::exists(file)) {
    throw std::runtime_error(file +
                             " is missing: make these references again, with demos/resnet/tools/resnet_reference.py");
  }
  auto losses = load_npy<double>(file);
  if (losses.size() != kReferenceSteps) {
    throw std::runtime_error(file + ": expected " + std::to_string(kReferenceSteps) + " losses, found " +
                             std::to_string(losses.size()));
  }
  return losses;
}

Computed load_computed(const std::string& folder) {
  const auto made = load_npy<std::int64_t>(folder + "case.npy");  // depth, width, image size, classes, rows
  return {.networks = networks_of(folder),
          .architecture = architecture_of(made),
          .rows = static_cast<std::size_t>(made.at(4)),
          .logits = load_npy<float>(folder + "logits.npy"),
          .moved_statistics = load_npy<float>(folder + "moved_statistics.npy"),
          .losses = load_losses(folder + "losses.npy"),
          .float32 = load_distances(folder + "float32_distances.npy"),
          .autocast = load_distances(folder + "autocast_distances.npy")};
}

}  // namespace

double uniform_at(std::uint64_t place) {
  std::uint64_t bits = (place + 1) * 0x9E3779B97F4A7C15;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
  bits ^= bits >> 31;
  return static_cast<double>(bits >> 40) * 0x1p-23 - 1;
}

std::vector<float> reference_params(const Architecture& architecture) {
  std::vector<float> params(architecture.parameter_count);
  fill(architecture, NamedArray::Where::kParameters, 0, params);
  return params;
}

std::vector<float> reference_statistics(const Architecture& architecture) {
  std::vector<float> statistics(architecture.statistics_count);
  fill(architecture, NamedArray::Where::kStatistics, kStatisticsDraws, statistics);
  return statistics;
}

std::vector<float> reference_images(const Architecture& architecture, std::size_t rows) {
  std::vector<float> images(rows * architecture.stem().elements_in());
  for (std::size_t i = 0; i < images.size(); ++i) {
    images[i] = static_cast<float>(2 * uniform_at(kImageDraws + i));
  }
  return images;
}

std::vector<std::int64_t> reference_labels(const Architecture& architecture, std::size_t rows) {
  std::vector<std::int64_t> labels(rows);
  for (std::size_t i = 0; i < rows; ++i) labels[i] = static_cast<std::int64_t>((3 * i + 1) % architecture.spec.classes);
  return labels;
}

template <typename T>
std::vector<T> load_npy(const std::string& file) {
  constexpr std::size_t kPrefix = 10;  // the magic, version 1.0, and the length of the header
  const std::string bytes = read(file);
  if (bytes.size() < kPrefix || !bytes.starts_with("\x93NUMPY\x01")) {
    throw std::runtime_error(file + ": expected a .npy file of version 1");
  }
  const auto byte = [&](std::size_t at) { return static_cast<std::size_t>(static_cast<unsigned char>(bytes[at])); };
  const std::size_t begin = kPrefix + byte(8) + 256 * byte(9);
  const std::string_view header = std::string_view(bytes).substr(kPrefix, begin - kPrefix);
  if (header.find(description_of<T>()) == std::string_view::npos ||
      header.find("'fortran_order': False") == std::string_view::npos || bytes.size() < begin ||
      (bytes.size() - begin) % sizeof(T) != 0) {
    throw std::runtime_error(file + ": expected elements " + std::string(description_of<T>()) + " in C order");
  }
  std::vector<T> values((bytes.size() - begin) / sizeof(T));
  std::memcpy(values.data(), bytes.data() + begin, values.size() * sizeof(T));
  return values;
}

template std::vector<float> load_npy<float>(const std::string&);
template std::vector<double> load_npy<double>(const std::string&);
template std::vector<std::int64_t> load_npy<std::int64_t>(const std::string&);

std::string carried_references() { return DEMOS_RESNET_REFERENCES; }

Reference::Reference(const std::string& name, const std::string& root)
    : Computed(load_computed(root + "/" + name + "/")) {
  const std::string folder = root + "/" + name + "/";
  arrays = lines_of(folder + "arrays.txt");
  training_logits = load_npy<float>(folder + "training_logits.npy");
  gradient_norms = load_npy<double>(folder + "gradient_norms.npy");
  gradient_samples = load_npy<float>(folder + "gradient_samples.npy");
  gradient_projections = load_npy<double>(folder + "gradient_projections.npy");
}

FullReference::FullReference(const std::string& root)
    : Computed(load_computed(root + "/")),
      gradient(load_npy<float>(root + "/gradient.npy")),
      float32_array_distances(load_npy<double>(root + "/float32_array_distances.npy")) {
  if (gradient.size() != architecture.parameter_count ||
      float32_array_distances.size() != parameter_arrays(architecture).size()) {
    throw std::runtime_error(root + ": gradient.npy or float32_array_distances.npy is another network's");
  }
}

std::vector<NamedArray> parameter_arrays(const Architecture& architecture) {
  std::vector<NamedArray> arrays = named_arrays(architecture);
  std::erase_if(arrays, [](const NamedArray& array) { return array.where != NamedArray::Where::kParameters; });
  return arrays;
}

void expect_reference_gradient(const Reference& reference, std::span<const float> gradient, double tolerance) {
  const std::vector<NamedArray> arrays = parameter_arrays(reference.architecture);
  ASSERT_EQ(arrays.size(), reference.gradient_norms.size());
  ASSERT_EQ(gradient.size(), reference.architecture.parameter_count);
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    const std::size_t elements = arrays[a].elements();
    const std::span<const float> got = gradient.subspan(arrays[a].offset, elements);
    const double expected_norm = reference.gradient_norms[a];
    EXPECT_NEAR(norm(got), expected_norm, tolerance * expected_norm) << arrays[a].name;
    const std::size_t samples = std::min(elements, Reference::kSamples);
    for (std::size_t i = 0; i < samples; ++i) {
      const std::size_t at = i * elements / samples;
      EXPECT_NEAR(got[at], reference.gradient_samples[a * Reference::kSamples + i], tolerance * expected_norm)
          << arrays[a].name << " at " << at;
    }
    const auto projections = std::span(reference.gradient_projections).subspan(a * Reference::kProjections);
    EXPECT_LT(error_by_projections(got, projections.first(Reference::kProjections)), tolerance * expected_norm)
        << arrays[a].name;
  }
}

double gradient_distance(const Reference& reference, std::span<const float> gradient) {
  const std::vector<NamedArray> arrays = parameter_arrays(reference.architecture);
  double error = 0;
  double size = 0;
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    const auto projections = std::span(reference.gradient_projections).subspan(a * Reference::kProjections);
    const double of_array = error_by_projections(gradient.subspan(arrays[a].offset, arrays[a].elements()),
                                                 projections.first(Reference::kProjections));
    error += of_array * of_array;
    size += reference.gradient_norms[a] * reference.gradient_norms[a];
  }
  return std::sqrt(error / size);
}

ArrayDistance worst_array(const Architecture& architecture, std::span<const float> gradient,
                          std::span<const float> expected) {
  const double whole = norm(expected);
  return worst_of(architecture, [&](const NamedArray& array, std::size_t) {
    const auto wanted = expected.subspan(array.offset, array.elements());
    const double size = norm(wanted) > kZeroGradient * whole ? norm(wanted) : whole;
    return norm_of_difference(gradient.subspan(array.offset, array.elements()), wanted) / size;
  });
}

ArrayDistance torch_worst_array(const FullReference& reference) {
  return worst_of(reference.architecture,
                  [&](const NamedArray&, std::size_t place) { return reference.float32_array_distances.at(place); });
}

double relative_error(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  if (a.size() != b.size()) return 1;
  const double size = norm(b);
  return size > 0 ? norm_of_difference(a, b) / size : norm_of_difference(a, b);
}

}  // namespace resnet::testing

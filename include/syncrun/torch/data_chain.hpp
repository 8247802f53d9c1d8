#pragma once

// A data set of torch::data with its transforms, taken apart: what computes one example by itself has random numbers of
// its own, and an error names the index. Users never name anything in this header.

#include <torch/torch.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/torch/loader_interface.hpp"
#include "syncrun/torch/loader_options.hpp"
#include "syncrun/torch/tensor.hpp"

namespace syncrun::libtorch::detail {

namespace data = ::torch::data;

// ---- the types of a chain -----------------------------------------------------------------------------------------

template <class Set>
inline constexpr bool kIsMap = false;
template <class Source, class Transform>
inline constexpr bool kIsMap<data::datasets::MapDataset<Source, Transform>> = true;
template <class Set>
inline constexpr bool kIsSharedSet = false;
template <class Set>
inline constexpr bool kIsSharedSet<data::datasets::SharedBatchDataset<Set>> = true;

/// Whether a member function is that of LibTorch's class, which handles each example by itself.
template <class Pointer>
inline constexpr bool kIsOfDataset = false;
template <class R, class Self, class Example, class... P>
inline constexpr bool kIsOfDataset<R (data::datasets::Dataset<Self, Example>::*)(P...)> = true;
template <class Pointer>
inline constexpr bool kIsOfTransform = false;
template <class R, class In, class Out, class... P>
inline constexpr bool kIsOfTransform<R (data::transforms::Transform<In, Out>::*)(P...)> = true;

/// Whether the data set gives single examples: it has get(), no get_batch() of its own, and no transform of batches.
template <class Set>
inline constexpr bool kGivesExamples = [] {
  if constexpr (requires { &Set::get_batch; }) return kIsOfDataset<decltype(&Set::get_batch)>;
  else return false;
}();
template <class Transform>
inline constexpr bool kMapsExamples = [] {
  if constexpr (requires { &Transform::apply_batch; }) return kIsOfTransform<decltype(&Transform::apply_batch)>;
  else return false;
}();
template <class Source, class Transform>
inline constexpr bool kGivesExamples<data::datasets::MapDataset<Source, Transform>> =
    kGivesExamples<Source> && kMapsExamples<Transform>;
template <class Set>
inline constexpr bool kGivesExamples<data::datasets::SharedBatchDataset<Set>> = kGivesExamples<Set>;

/// Whether the last transform only stacks single examples. Their tensors then go to the batch without it.
template <class Set>
inline constexpr bool kStacksExamples = false;
template <class Source, class Example>
inline constexpr bool kStacksExamples<data::datasets::MapDataset<Source, data::transforms::Stack<Example>>> =
    kGivesExamples<Source>;

// The accessors of LibTorch return references to const. The objects are not const: the loader has made them.
template <class Map>
auto& source_of(Map& map) {
  return const_cast<typename Map::DatasetType&>(map.dataset());
}
template <class Map>
auto& transform_of(Map& map) {
  return const_cast<typename Map::TransformType&>(map.transform());
}

// ---- one example, one batch ---------------------------------------------------------------------------------------

/// The place of a batch in the training.
struct BatchPlace {
  std::uint64_t seed;
  LoaderPosition position;
  std::int64_t first;  // the place of its first example in the epoch
};

/// Runs code that gets an example or a batch. `where()` makes the text for an error.
template <class Where, class Code>
decltype(auto) with_place(const Where& where, const Code& code) {
  try {
    return code();
  } catch (const std::exception& error) {
    fail_at(where(), error);
  }
}

template <class Set>
auto raw_example(Set& set, std::size_t index) {
  if constexpr (kIsMap<Set>) return transform_of(set).apply(raw_example(source_of(set), index));
  else if constexpr (kIsSharedSet<Set>) return raw_example(*set, index);
  else return set.get(index);
}

/// The example `number` of a batch, through all transforms of single examples.
template <class Set>
auto example_of(Set& set, std::size_t index, std::int64_t number, const BatchPlace& place) {
  seed_place(place.seed, SeedOf::example, place.position.epoch, place.first + number);
  return with_place([&] { return text_of_place(place.position, index); }, [&] { return raw_example(set, index); });
}

template <class Set>
auto raw_batch(Set& set, std::span<const std::size_t> indices, const BatchPlace& place) {
  if constexpr (kGivesExamples<Set>) {
    std::vector<decltype(raw_example(set, 0))> examples;
    examples.reserve(indices.size());
    for (std::size_t i = 0; i < indices.size(); ++i)
      examples.push_back(example_of(set, indices[i], static_cast<std::int64_t>(i), place));
    seed_place(place.seed, SeedOf::batch, place.position.epoch, place.position.batch);
    return examples;
  } else if constexpr (kIsMap<Set>) {
    auto source = raw_batch(source_of(set), indices, place);
    return with_place([&] { return text_of_place(place.position, indices); },
                      [&] { return transform_of(set).apply_batch(std::move(source)); });
  } else if constexpr (kIsSharedSet<Set>) {
    return raw_batch(*set, indices, place);
  } else {
    seed_place(place.seed, SeedOf::batch, place.position.epoch, place.position.batch);
    return with_place([&] { return text_of_place(place.position, indices); },
                      [&] { return set.get_batch(::torch::ArrayRef<std::size_t>(indices.data(), indices.size())); });
  }
}

// ---- the tensors of an example or a batch -------------------------------------------------------------------------

template <class T>
inline constexpr bool kIsExample = false;
template <class Data, class Target>
inline constexpr bool kIsExample<data::Example<Data, Target>> = true;
template <class T>
inline constexpr bool kIsExamples = false;
template <class E>
inline constexpr bool kIsExamples<std::vector<E>> = !std::is_same_v<E, ::torch::Tensor>;

/// Appends the tensors of an example or of a stacked batch: those of an Example, a tuple, an array or a vector. A number
/// becomes a tensor of its type without dimensions.
template <class T>
void append_tensors(Tensors& tensors, const T& value) {
  if constexpr (std::is_same_v<T, ::torch::Tensor>) {
    tensors.push_back(value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    tensors.push_back(::torch::scalar_tensor(value, ::torch::TensorOptions().dtype(ScalarTypeOf<T>::value)));
  } else if constexpr (kIsExample<T>) {
    append_tensors(tensors, value.data);
    if constexpr (requires { value.target; }) append_tensors(tensors, value.target);
  } else if constexpr (std::is_same_v<T, Tensors>) {
    tensors.insert(tensors.end(), value.begin(), value.end());
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([&](const auto&... each) { (append_tensors(tensors, each), ...); }, value);
  } else {
    static_assert(sizeof(T) == 0,
                  "a loader takes the tensors of a torch::data::Example, a tensor, or a std::tuple, std::pair, "
                  "std::array or std::vector of tensors. Add a transform that makes one of them");
  }
}
template <class T>
Tensors tensors_of(const T& value) {
  Tensors tensors;
  append_tensors(tensors, value);
  return tensors;
}

// ---- the arrays of a batch ----------------------------------------------------------------------------------------

template <class T, std::size_t N>
LoaderArray loader_array(const ArrayView<T, N>& view) {
  LoaderArray array{view.data(), ScalarTypeOf<T>::value, {}};
  for (std::size_t i = 0; i < N; ++i) array.extents.push_back(view.shape(i));
  return array;
}

template <class Result>
LoadedBatch loaded_batch(const Result& result) {
  static_assert(
      !std::is_same_v<Result, Tensors>,
      "a std::vector of tensors may be a list of examples or of the fields of a batch: add a Stack, or return "
      "a std::tuple of the fields");
  LoadedBatch loaded;
  if constexpr (kIsExamples<Result>) {
    for (const auto& example : result) loaded.examples.push_back(tensors_of(example));
  } else {
    loaded.stacked = tensors_of(result);
  }
  return loaded;
}
}  // namespace syncrun::libtorch::detail

#pragma once

// The types of a batch, at compile time. A batch is a Data, or a plain struct of several.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "syncrun/data.hpp"
#include "syncrun/detail/fields.hpp"

namespace syncrun::detail {

inline constexpr std::size_t kMaxBatchArrays = kMaxFields;

struct BatchArrayType {
  DType dtype;
  std::uint8_t dimensions;
};

/// A batch that a producer fills: its number in the queue (-1: no batch), and the addresses and extents of its arrays.
struct RawDraft {
  int batch = -1;
  std::array<RawArray, kMaxBatchArrays> arrays{};
};

template <class T>
struct DataTraits {
  static constexpr bool is_data = false;
};
template <class T, std::size_t N>
struct DataTraits<Data<T, N>> {
  static constexpr bool is_data = true;
  static constexpr BatchArrayType type{dtype_of<T>, static_cast<std::uint8_t>(N)};
  using ShapeType = Shape<N>;
  using View = ArrayView<T, N>;
  static View view(const RawArray& array) noexcept { return array.view<T, N>(); }
};

template <class Batch>
consteval auto fields_of_batch() {
  if constexpr (DataTraits<Batch>::is_data) {
    return FieldList<Batch>{};
  } else if constexpr (std::is_aggregate_v<Batch> && !std::is_array_v<Batch> && !std::is_empty_v<Batch>) {
    if constexpr (field_count<Batch>() == 0) {
      return FieldList<>{};
    } else {
      return decltype(with_fields(std::declval<Batch&>(), [](auto&... field) {
        return FieldList<std::remove_reference_t<decltype(field)>...>{};
      })){};
    }
  } else {
    return FieldList<>{};
  }
}

template <class List>
struct BatchTraitsOf {
  static constexpr bool is_batch = false;
};
template <class... Fields>
  requires(sizeof...(Fields) > 0 && (DataTraits<Fields>::is_data && ...))
struct BatchTraitsOf<FieldList<Fields...>> {
  static constexpr bool is_batch = true;
  static constexpr std::size_t size = sizeof...(Fields);
  static constexpr std::array<BatchArrayType, size> types{DataTraits<Fields>::type...};
  using Shapes = std::tuple<typename DataTraits<Fields>::ShapeType...>;
  using Views = std::tuple<typename DataTraits<Fields>::View...>;
  static Views views(std::span<const RawArray> arrays) noexcept {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return Views{DataTraits<Fields>::view(arrays[I])...};
    }(std::make_index_sequence<size>{});
  }
  template <class Batch>
  static Batch make(std::span<const std::shared_ptr<DataRecord>> records) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      if constexpr (DataTraits<Batch>::is_data) return Batch(records[0]);
      else return Batch{Fields(records[I])...};
    }(std::make_index_sequence<size>{});
  }
};

template <class Batch>
using BatchTraits = BatchTraitsOf<decltype(fields_of_batch<Batch>())>;

}  // namespace syncrun::detail

namespace syncrun {

/// The type of a batch: a Data<T, N>, or a plain struct of several.
template <class Batch>
concept BatchType = detail::BatchTraits<Batch>::is_batch;

/// The shapes of a batch's arrays, in the order of its fields. Their numbers of rows are the largest that a batch can
/// have.
template <BatchType Batch>
using BatchShapes = typename detail::BatchTraits<Batch>::Shapes;

}  // namespace syncrun

#include "common/arrays/reduce.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <type_traits>

namespace syncrun::detail::arrays {

namespace {

// The number of elements that are combined at a time. Their partial results stay in the first-level cache.
constexpr std::size_t kTile = 1024;

template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>, float, T>;

// Integers wrap around on overflow, as in two's complement. The arithmetic is unsigned, since signed overflow is
// undefined.
template <class A>
A add(A a, A b) noexcept {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}
template <class A>
A multiply(A a, A b) noexcept {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  } else {
    return a * b;
  }
}

template <Reduction kReduction, class A>
A combine(A a, A b) noexcept {
  // NaN is the result if one of the values is NaN, as in NumPy. If `a` is NaN, both comparisons are false.
  if constexpr (kReduction == Reduction::min) return b < a || b != b ? b : a;
  else if constexpr (kReduction == Reduction::max) return a < b || b != b ? b : a;
  else if constexpr (kReduction == Reduction::prod) return multiply(a, b);
  else if constexpr (kReduction == Reduction::sum || kReduction == Reduction::avg) return add(a, b);
  else static_assert(kReduction == Reduction::sum, "say how this reduction combines two values");
}

template <class From, class To, Reduction kReduction>
void reduce_tiles(std::span<void* const> destinations, std::span<const void* const> sources,
                  std::span<const double> weights, std::size_t elements) {
  using A = Accumulator<From>;
  alignas(64) std::array<A, kTile> tile;
  for (std::size_t start = 0; start < elements; start += kTile) {
    const std::size_t count = std::min(kTile, elements - start);
    const auto load = [&](std::size_t source, std::size_t i) -> A {
      const A value = static_cast<const From*>(sources[source])[start + i];
      if constexpr (kReduction == Reduction::avg) return value * static_cast<A>(weights[source]);
      else return value;
    };
    if (sources.size() == 1) {
      for (std::size_t i = 0; i < count; ++i) tile[i] = load(0, i);
    } else {
      for (std::size_t i = 0; i < count; ++i) tile[i] = combine<kReduction, A>(load(0, i), load(1, i));
    }
    for (std::size_t source = 2; source < sources.size(); ++source) {
      for (std::size_t i = 0; i < count; ++i) tile[i] = combine<kReduction, A>(tile[i], load(source, i));
    }
    for (void* destination : destinations) {
      To* to = static_cast<To*>(destination) + start;
      if constexpr (std::is_same_v<A, To>) {
        std::memcpy(to, tile.data(), count * sizeof(To));
      } else {
        for (std::size_t i = 0; i < count; ++i) to[i] = To(tile[i]);
      }
    }
  }
}

using Kernel = void (*)(std::span<void* const>, std::span<const void* const>, std::span<const double>, std::size_t);

template <class From, class To = From>
Kernel kernel_for(Reduction reduction) noexcept {
  switch (reduction) {
    case Reduction::avg:
      if constexpr (FloatingElement<From>) return &reduce_tiles<From, To, Reduction::avg>;
      return nullptr;
    case Reduction::sum: return &reduce_tiles<From, To, Reduction::sum>;
    case Reduction::min: return &reduce_tiles<From, To, Reduction::min>;
    case Reduction::max: return &reduce_tiles<From, To, Reduction::max>;
    case Reduction::prod: return &reduce_tiles<From, To, Reduction::prod>;
    case Reduction::gather: return nullptr;
  }
  return nullptr;
}

Kernel kernel_for(DType dtype, Reduction reduction) noexcept {
  switch (dtype) {
    case DType::float16: return kernel_for<float16>(reduction);
    case DType::bfloat16: return kernel_for<bfloat16>(reduction);
    case DType::float32: return kernel_for<float>(reduction);
    case DType::float64: return kernel_for<double>(reduction);
    case DType::int8: return kernel_for<std::int8_t>(reduction);
    case DType::int16: return kernel_for<std::int16_t>(reduction);
    case DType::int32: return kernel_for<std::int32_t>(reduction);
    case DType::int64: return kernel_for<std::int64_t>(reduction);
    case DType::uint8: return kernel_for<std::uint8_t>(reduction);
    case DType::uint16: return kernel_for<std::uint16_t>(reduction);
    case DType::uint32: return kernel_for<std::uint32_t>(reduction);
    case DType::uint64: return kernel_for<std::uint64_t>(reduction);
    case DType::boolean: return nullptr;
  }
  return nullptr;
}

Kernel kernel_for(ElementTypes types, Reduction reduction) noexcept {
  if (types.from == types.to) return kernel_for(types.from, reduction);
  if (types.from == DType::float16) return kernel_for<float16, float>(reduction);
  if (types.from == DType::bfloat16) return kernel_for<bfloat16, float>(reduction);
  if (types.to == DType::float16) return kernel_for<float, float16>(reduction);
  return kernel_for<float, bfloat16>(reduction);
}

}  // namespace

void reduce_elements(ElementTypes types, Reduction reduction, std::span<void* const> destinations,
                     std::span<const void* const> sources, std::span<const double> weights, std::size_t elements) {
  if (sources.empty() || elements == 0) return;
  kernel_for(types, reduction)(destinations, sources, weights, elements);
}

void accumulate_elements(DType dtype, Reduction reduction, void* into, const void* value, std::array<double, 2> weights,
                         std::size_t elements) {
  const std::array<void*, 1> destinations{into};
  const DType partial = partial_type(dtype);
  if (partial == dtype) {
    const std::array<const void*, 2> sources{into, value};
    return reduce_elements(dtype, reduction, destinations, sources, weights, elements);
  }
  std::array<float, kTile> tile;
  for (std::size_t start = 0; start < elements; start += kTile) {
    const std::size_t count = std::min(kTile, elements - start);
    convert_elements({dtype, partial}, static_cast<const std::byte*>(value) + start * size_of(dtype), tile.data(),
                     count);
    float* const total = static_cast<float*>(into) + start;
    const std::array<void*, 1> to{total};
    const std::array<const void*, 2> sources{total, tile.data()};
    reduce_elements(partial, reduction, to, sources, weights, count);
  }
}

void convert_elements(ElementTypes types, const void* from, void* to, std::size_t elements) {
  if (types.from == types.to) {
    if (elements != 0) std::memcpy(to, from, elements * size_of(types.to));
    return;
  }
  // A sum of one array.
  reduce_elements(types, Reduction::sum, {&to, 1}, {&from, 1}, {}, elements);
}

bool can_reduce(DType dtype, Reduction reduction) noexcept { return kernel_for(dtype, reduction) != nullptr; }

}  // namespace syncrun::detail::arrays

#pragma once

// Access to the fields of a plain struct, by structured bindings. It finds the outputs of a result type without macros.

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "syncrun/keep.hpp"
#include "syncrun/output.hpp"

namespace syncrun::detail {

template <class T>
inline constexpr bool kIsOutput = false;
template <Reduction kReduction, class T, std::size_t N>
inline constexpr bool kIsOutput<Output<kReduction, T, N>> = true;
template <class T, std::size_t N>
inline constexpr bool kIsOutput<Stack<T, N>> = true;
template <class T, std::size_t N>
inline constexpr bool kIsOutput<Keep<T, N>> = true;
template <class T>
inline constexpr bool kIsKeep = false;
template <class T, std::size_t N>
inline constexpr bool kIsKeep<Keep<T, N>> = true;

/// Converts to any field type. field_count() uses it as an initialiser.
struct AnyField {
  template <class T>
  operator T() const noexcept;  // NOLINT(google-explicit-constructor): never defined, only its type is used
};

template <class T, std::size_t... I>
constexpr bool takes_fields(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), AnyField{})...}; };
}

/// Number of fields of an aggregate, at most kMaxFields.
inline constexpr std::size_t kMaxFields = 12;
template <class T, std::size_t kTry = kMaxFields>
constexpr std::size_t field_count() {
  if constexpr (kTry == 0) return 0;
  else if constexpr (takes_fields<T>(std::make_index_sequence<kTry>{})) return kTry;
  else return field_count<T, kTry - 1>();
}

// clang-format off
template <class T, class F>
constexpr decltype(auto) with_fields(T& t, F&& f) {
  constexpr std::size_t kCount = field_count<std::remove_const_t<T>>();
  if constexpr (kCount == 1) { auto& [a] = t; return f(a); }
  else if constexpr (kCount == 2) { auto& [a, b] = t; return f(a, b); }
  else if constexpr (kCount == 3) { auto& [a, b, c] = t; return f(a, b, c); }
  else if constexpr (kCount == 4) { auto& [a, b, c, d] = t; return f(a, b, c, d); }
  else if constexpr (kCount == 5) { auto& [a, b, c, d, e] = t; return f(a, b, c, d, e); }
  else if constexpr (kCount == 6) { auto& [a, b, c, d, e, g] = t; return f(a, b, c, d, e, g); }
  else if constexpr (kCount == 7) { auto& [a, b, c, d, e, g, h] = t; return f(a, b, c, d, e, g, h); }
  else if constexpr (kCount == 8) { auto& [a, b, c, d, e, g, h, i] = t; return f(a, b, c, d, e, g, h, i); }
  else if constexpr (kCount == 9) { auto& [a, b, c, d, e, g, h, i, j] = t; return f(a, b, c, d, e, g, h, i, j); }
  else if constexpr (kCount == 10) { auto& [a, b, c, d, e, g, h, i, j, k] = t; return f(a, b, c, d, e, g, h, i, j, k); }
  else if constexpr (kCount == 11) { auto& [a, b, c, d, e, g, h, i, j, k, l] = t; return f(a, b, c, d, e, g, h, i, j, k, l); }
  else { auto& [a, b, c, d, e, g, h, i, j, k, l, m] = t; return f(a, b, c, d, e, g, h, i, j, k, l, m); }
}
// clang-format on

/// True for a tuple, that is, for outputs that were chosen from a struct.
template <class T>
inline constexpr bool kIsTuple = false;
template <class... T>
inline constexpr bool kIsTuple<std::tuple<T...>> = true;

/// Calls f on every output of a result. The result is an output, or a tuple or struct of outputs. Calls are in the
/// order of the fields.
template <class R, class F>
constexpr void for_each_output(R& result, F&& f) {
  using Plain = std::remove_const_t<R>;
  if constexpr (kIsOutput<Plain>) {
    f(result);
  } else if constexpr (kIsTuple<Plain>) {
    std::apply([&](auto&... output) { (f(output), ...); }, result);
  } else {
    with_fields(result, [&](auto&... field) { (f(field), ...); });
  }
}

template <class... Fields>
struct FieldList {};

/// The types of the outputs of R.
template <class R>
struct OutputsOf {
  using type = decltype(with_fields(
      std::declval<R&>(), [](auto&... field) { return FieldList<std::remove_reference_t<decltype(field)>...>{}; }));
};
template <>
struct OutputsOf<void> {
  using type = FieldList<>;
};
template <class R>
  requires(kIsOutput<R>)
struct OutputsOf<R> {
  using type = FieldList<R>;
};
template <class... F>
struct OutputsOf<std::tuple<F...>> {
  using type = FieldList<F...>;
};

template <class List>
inline constexpr bool kListHasKeep = false;
template <class... F>
inline constexpr bool kListHasKeep<FieldList<F...>> = (kIsKeep<F> || ...);
template <class List>
inline constexpr bool kListIsKept = false;
template <class... F>
inline constexpr bool kListIsKept<FieldList<F...>> = sizeof...(F) != 0 && (kIsKeep<F> && ...);

template <class R>
inline constexpr bool kHasKeep = kListHasKeep<typename OutputsOf<R>::type>;
/// Whether all outputs are Keeps, and there is one or more.
template <class R>
inline constexpr bool kAllKept = kListIsKept<typename OutputsOf<R>::type>;

/// What the caller of a function gets: a Value instead of a Keep, otherwise R.
template <class R>
struct ReturnedFor {
  using type = R;
};
template <class T, std::size_t N>
struct ReturnedFor<Keep<T, N>> {
  using type = Value<T, N>;
};
template <class R>
using Returned = typename ReturnedFor<R>::type;

template <class R>
consteval bool is_result() {
  if constexpr (std::is_void_v<R> || kIsOutput<R>) {
    return true;
  } else if constexpr (std::is_aggregate_v<R> && !std::is_array_v<R> && !std::is_empty_v<R>) {
    if constexpr (field_count<R>() == 0) {
      return false;
    } else {
      using Types = decltype(with_fields(
          std::declval<R&>(), [](auto&... field) { return FieldList<std::remove_reference_t<decltype(field)>...>{}; }));
      return []<class... Fields>(FieldList<Fields...>) { return (kIsOutput<Fields> && ...); }(Types{});
    }
  } else {
    return false;
  }
}

/// The types that a replicated function can return: nothing, one output, or a plain struct of outputs.
template <class R>
concept Result = is_result<R>();

}  // namespace syncrun::detail

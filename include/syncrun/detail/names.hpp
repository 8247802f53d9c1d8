#pragma once

// The compiler's names of types and of the fields of result structs, at compile time and without macros.

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "syncrun/detail/fields.hpp"

#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-var-template"  // `imagined` is never defined, and need not be,
#pragma clang diagnostic ignored "-Wundefined-internal"      // also for types with internal linkage
#endif

namespace syncrun::detail {

/// Returns text such as "... [with T = Options]" or "... [T = Options]". Does not return a std::string_view: the
/// compiler would explain that type in the text as well.
template <class T>
consteval const char* spelt_type() {
  return __PRETTY_FUNCTION__;
}
template <auto* kPlace>
consteval const char* spelt_place() {
  return __PRETTY_FUNCTION__;
}

/// The name of a type in messages: "double", "Options".
template <class T>
consteval std::string_view type_name() {
  std::string_view text = spelt_type<T>();
  const auto begin = text.find("T = ");
  const auto end = text.rfind(']');
  return begin == std::string_view::npos || end == std::string_view::npos ? "a value"
                                                                          : text.substr(begin + 4, end - begin - 4);
}

template <auto kFunction>
consteval std::string_view spelt_function() {
  return __PRETTY_FUNCTION__;
}
/// The name of a function in messages: "loss".
template <auto kFunction>
consteval std::string_view function_name() {
  std::string_view text = spelt_function<kFunction>();
  const auto begin = text.find("kFunction = ");
  if (begin == std::string_view::npos) return "a function";
  text = text.substr(begin + 12);
  text = text.substr(0, text.find_first_of("];<"));
  return text.substr(text.find_last_of(":&") + 1);
}

/// An R that is declared but not defined. The code only takes addresses of its fields.
template <class R>
struct Imagined {
  R value;
};
template <class R>
extern const Imagined<R> imagined;

template <class R, std::size_t kField>
consteval auto place_of_field() {
  return with_fields(imagined<R>.value,
                     [](const auto&... field) { return std::get<kField>(std::tuple<decltype(&field)...>(&field...)); });
}

consteval bool is_identifier(std::string_view text) {
  for (const char c : text) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!is_letter && !(c >= '0' && c <= '9') && c != '_') return false;
  }
  return !text.empty();
}

/// The name of a field. Empty if the compiler does not provide it. This is the case for Clang before 18, and for nvcc's
/// own front end, which describes most fields by their distance from the last field.
template <class R, std::size_t kField>
consteval std::string_view field_name() {
  if constexpr (requires { spelt_place<place_of_field<R, kField>()>(); }) {
    std::string_view text = spelt_place<place_of_field<R, kField>()>();
    while (text.ends_with(']') || text.ends_with(')')) text.remove_suffix(1);
    text = text.substr(text.find_last_of(":.") + 1);
    return is_identifier(text) ? text : std::string_view();
  } else {
    return {};
  }
}

template <class R>
inline constexpr bool kIsStruct = !std::is_void_v<R> && !kIsOutput<R>;

/// The names of a result's outputs. The name is empty if the result is a single output.
template <class R>
consteval auto output_names() {
  if constexpr (std::is_void_v<R>) {
    return std::array<std::string_view, 0>{};
  } else if constexpr (!kIsStruct<R>) {
    return std::array<std::string_view, 1>{};
  } else {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      return std::array{field_name<R, I>()...};
    }(std::make_index_sequence<field_count<R>()>{});
  }
}

// ---- outputs that are chosen ----------------------------------------------------------------------------------

template <class Member>
inline constexpr bool kIsField = false;
template <class F, class R>
inline constexpr bool kIsField<F R::*> = true;
template <class Member>
struct StructOf;
template <class F, class R>
struct StructOf<F R::*> {
  using type = R;
};

/// The index of an output in its struct. kOutput is a member pointer such as `&Stats::mean`, or the index itself.
template <auto kOutput>
consteval std::size_t output_index() {
  if constexpr (kIsField<decltype(kOutput)>) {
    using R = typename StructOf<decltype(kOutput)>::type;
    const void* wanted = &(imagined<R>.value.*kOutput);
    return with_fields(imagined<R>.value, [wanted](const auto&... field) {
      std::size_t index = 0;
      static_cast<void>(((static_cast<const void*>(&field) == wanted || (++index, false)) || ...));
      return index;
    });
  } else {
    static_assert(std::is_integral_v<decltype(kOutput)>, "an output is named as &Result::field or by its number");
    static_assert(kOutput >= 0, "this output is out of range: outputs are numbered from 0");
    return static_cast<std::size_t>(kOutput);
  }
}

template <class R, auto kOutput>
consteval bool is_output_of() {
  if constexpr (kIsField<decltype(kOutput)>) return std::is_same_v<typename StructOf<decltype(kOutput)>::type, R>;
  else return output_index<kOutput>() < field_count<R>();
}

template <class R, std::size_t kField>
using FieldType = std::remove_const_t<std::remove_pointer_t<decltype(place_of_field<R, kField>())>>;

}  // namespace syncrun::detail

#ifdef __clang__
#pragma clang diagnostic pop
#endif

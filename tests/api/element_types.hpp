#pragma once

// Runs a check for each element type: for_arithmetic_types([]<class T> { ... }).

#include <cstdint>
#include <syncrun/syncrun.hpp>

template <class... T, class Check>
void for_types(Check&& check) {
  (check.template operator()<T>(), ...);
}

/// All types that have sums, minima and maxima.
template <class Check>
void for_arithmetic_types(Check&& check) {
  for_types<syncrun::float16, syncrun::bfloat16, float, double, std::int8_t, std::int16_t, std::int32_t, std::int64_t,
            std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>(check);
}

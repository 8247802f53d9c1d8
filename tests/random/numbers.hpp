#pragma once

// The arithmetic of the oracle: arrays of doubles, each with a bound of its error, and random numbers.

#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "tests/random/bodies.hpp"

namespace random_test {

/// A difference between a program and the oracle.
class Difference : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Random choices, which are the same on every machine.
class Choices {
 public:
  explicit Choices(std::uint64_t seed) : next_(seed) {}
  /// From `low` to `high`, both included.
  std::int64_t number(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
  }
  int index(std::size_t count) { return static_cast<int>(number(0, static_cast<std::int64_t>(count) - 1)); }
  bool chance(int percent) { return number(0, 99) < percent; }
  template <class C>
  decltype(auto) one_of(C&& list) {
    return list[static_cast<std::size_t>(index(std::size(list)))];
  }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return list.begin()[index(list.size())];
  }

 private:
  /// SplitMix64.
  std::uint64_t next() {
    next_ += 0x9e3779b97f4a7c15U;
    std::uint64_t z = next_;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  }

  std::uint64_t next_;
};

/// How a type rounds.
struct Rounding {
  double unit = 0;   // the largest relative error of one rounding; 0 for integers
  double steps = 0;  // the same for one step of a long sum
  double exact = 0;  // integers up to this number are exact
  double (*round)(double) = nullptr;
};

template <class T>
Rounding rounding_of() {
  const auto round = [](double number) { return static_cast<double>(element_of<T>(number)); };
  if constexpr (std::is_integral_v<T>) return {0, 0, 0x1p62, round};
  else if constexpr (std::is_same_v<T, double>) return {0x1p-53, 0x1p-53, 0x1p53, round};
  else if constexpr (std::is_same_v<T, float>) return {0x1p-24, 0x1p-24, 0x1p24, round};
  else if constexpr (std::is_same_v<T, sr::float16>) return {0x1p-11, 0x1p-24, 0x1p11, round};
  else return {0x1p-8, 0x1p-24, 0x1p8, round};
}

/// An array of rows, and how far each element of the program may be away.
struct Numbers {
  std::int64_t rows = 0;
  std::int64_t columns = 1;
  std::vector<double> values;
  double slack = 0;

  std::size_t size() const { return values.size(); }
  double magnitude() const;  // of the largest finite element
};

template <class T>
Numbers numbers_of(std::span<const T> elements, std::int64_t rows, std::int64_t columns) {
  Numbers numbers{.rows = rows, .columns = columns, .values = {}, .slack = 0};
  numbers.values.reserve(elements.size());
  for (const T& element : elements) numbers.values.push_back(static_cast<double>(element));
  return numbers;
}

template <class T>
std::vector<T> elements_of(const Numbers& numbers) {
  std::vector<T> elements;
  elements.reserve(numbers.size());
  for (const double value : numbers.values) elements.push_back(element_of<T>(value));
  return elements;
}

/// scale * x + y + shift, as the function Scale computes it. The elements of `y` are repeated.
Numbers scaled(const Numbers& x, double scale, const Numbers* y, double shift, const Rounding& rounding);
/// Of each column, the reduction of the rows in `of`, in the type of results. With avg, the mean.
Numbers reduced_columns(const Numbers& rows, sr::Reduction reduction, const Rounding& rounding);
/// Adds the sums of the columns of `rows` to the elements. The columns are repeated.
Numbers with_sums(const Numbers& original, const Numbers& rows, const Rounding& rounding);
/// Element by element over the arrays.
Numbers reduced(const std::vector<Numbers>& arrays, sr::Reduction reduction, const Rounding& rounding);
/// Rows of one array after the other.
Numbers joined(const std::vector<Numbers>& arrays);
Numbers rows_of(const Numbers& numbers, std::int64_t begin, std::int64_t end);
Numbers rows_of(const Numbers& numbers, const std::vector<std::int64_t>& indices);

/// True if the program's number may be `got`.
bool is_close(double got, double expected, double slack);
/// Throws Difference, which says `what` differs.
void compare(const Numbers& got, const Numbers& expected, const std::string& what);

}  // namespace random_test

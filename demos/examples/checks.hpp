#pragma once

// The examples check their own results with this class. It prints a line for each check, and a verdict at the end.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <ranges>
#include <string>

namespace examples {

class Checks {
 public:
  /// Prints the question and "yes" or "NO".
  void that(const std::string& question, bool holds) {
    std::printf("  %-60s %s\n", question.c_str(), holds ? "yes" : "NO");
    all_hold_ = all_hold_ && holds;
  }

  /// Checks that two ranges of numbers are equal, except for rounding: sums may have been made in another order.
  template <std::ranges::sized_range Expected, std::ranges::sized_range Got>
  void close(const std::string& question, const Expected& expected, const Got& got) {
    constexpr double kTolerance = 1e-10;
    that(question, std::ranges::equal(expected, got, [](double a, double b) {
           return std::abs(a - b) <= kTolerance * std::max({1.0, std::abs(a), std::abs(b)});
         }));
  }

  /// Prints the verdict. Returns the exit code for the program: 0 if all checks held, otherwise 1.
  int conclude() const {
    std::printf("%s\n", all_hold_ ? "as expected" : "NOT AS EXPECTED");
    return all_hold_ ? 0 : 1;
  }

 private:
  bool all_hold_ = true;
};

}  // namespace examples

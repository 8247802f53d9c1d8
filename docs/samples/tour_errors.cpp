// Tour, step 8: errors.

#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

// [function]
sr::Sum<double> logs(sr::Scattered<const double, 1> x) {
  double sum = 0;
  for (std::int64_t i = 0; i < x.rows(); ++i) {
    if (x[i] <= 0) throw std::domain_error("row " + std::to_string(x.first_row() + i) + " is not positive");
    sum += std::log(x[i]);
  }
  return sum;
}
// [/function]

void program(sr::Session& session) {
  // [calls]
  auto x = session.data(std::vector<double>{1, 2, 3, 4, 5, 6, 0, 8});
  const auto f = session.function(logs);
  try {
    f(x);
  } catch (const sr::Error& error) {
    std::printf("%s\n", error.what());
    std::printf("kind: %s, rank: %d\n", std::string(sr::to_string(error.kind())).c_str(), error.rank());
  }
  try {
    f(x, {.batch = std::vector{3, 8}});
  } catch (const sr::Error& error) {
    std::printf("%s\n", error.what());
  }
  x.write()[6] = 7;
  std::printf("sum of logarithms: %.6f\n", f(x).value());
  // [/calls]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

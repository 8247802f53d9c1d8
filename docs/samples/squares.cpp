#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <vector>

syncrun::Sum<double> squares(syncrun::Scattered<const double, 1> x) {  // runs on every worker, on its own rows
  double sum = 0;
  for (const double value : x) sum += value * value;
  return sum;
}
void program(syncrun::Session& session) {  // runs once, in the master
  const auto x = session.data(std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8});
  std::printf("%g\n", session.function(squares)(x).value());
}
int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

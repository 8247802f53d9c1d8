// docs/api/session-and-run.md

#include <cstdio>
#include <numeric>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

struct Mean {
  sr::Avg<double> mean;
  sr::Stack<std::int64_t> rows;  // of each rank
};

Mean mean_of(sr::Scattered<const double, 1> x) {
  return {.mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.rows()), .rows = x.rows()};
}

void print(const char* what, const Mean& result) {
  std::printf("%s mean %g,", what, result.mean.value());
  for (const auto rows : result.rows) std::printf(" %d", static_cast<int>(rows));
  std::printf(" rows\n");
}

void program(sr::Session& session) {
  std::vector<double> values(100);
  std::iota(values.begin(), values.end(), 0);
  // [weights]
  const auto x = session.data(values);
  const auto f = session.function(mean_of);
  print("equal shares:", f(x));
  session.set_weights({1, 4});  // rank 1 gets four times as many rows as rank 0
  print("weights 1, 4:", f(x));
  session.set_weights({});  // equal shares again
  // [/weights]
  // [balance]
  const std::vector<double> weights = session.balance(f, x);  // measures the weights and sets them
  // [/balance]
  std::printf("%d weights were measured\n", static_cast<int>(weights.size()));
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

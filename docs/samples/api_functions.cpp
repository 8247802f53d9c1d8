// docs/api/functions-and-signatures.md

#include <cstdint>
#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

// [function]
struct Options {  // trivially copyable: passed by value
  double scale;
  std::int64_t offset;
};

sr::Sum<double> weighted(sr::CpuWorker& worker, sr::Scattered<const double, 1> x, sr::Broadcast<const double, 1> table,
                         Options options, sr::PerWorker<double> weight) {
  double sum = 0;
  for (std::int64_t i = 0; i < x.rows(); ++i) sum += x[i] * table[(x.first_row() + i) % table.rows()];
  worker.log(sr::LogLevel::debug, "one slice is done");
  return weight * (options.scale * sum + static_cast<double>(options.offset));
}
// [/function]

template <class T>
sr::Max<T> largest(sr::Scattered<const T, 1> x) {
  T value = x[0];
  for (const T v : x) value = v > value ? v : value;
  return value;
}

void program(sr::Session& session) {
  // [call]
  const auto x = session.data(std::vector<double>(12, 1.0));
  const auto table = session.data(std::vector<double>{1, 2, 3});
  const auto f = session.function(weighted);
  const std::vector<double> weights(static_cast<std::size_t>(session.world_size()), 0.5);
  std::printf("%g\n", f(x, table, {.scale = 2, .offset = 1}, weights).value());
  // [/call]
  // [kinds]
  const auto from_template = session.function(largest<double>);
  const auto from_lambda = session.function([](double value) -> sr::Sum<double> { return value; }, "my lambda");
  std::printf("%s: %g\n", from_template.name().c_str(), from_template(x).value());
  std::printf("%s: %g\n", from_lambda.name().c_str(), from_lambda(2.0).value());
  // [/kinds]
  // [describe]
  std::printf("%s", f.describe().c_str());
  // [/describe]
  // [inputs]
  const std::vector<int> counts{1, 2, 3, 4, 5, 6};
  const std::vector<float> factors{0.5F, 2};
  const auto [own_x, own_table] = f.inputs(counts, factors);  // of double, as `weighted` wants them
  std::printf("%g\n", f(own_x, own_table, {.scale = 1, .offset = 0}, weights).value());
  // [/inputs]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

// docs/api/shared-variables.md

#include <cstdio>
#include <numeric>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

// [functions]
/// The rows of this rank's own copy that batch_s and slices select.
sr::Gather<int, 1> rows_of(sr::Sliced<const int, 1> x) { return {x, {x.rows()}}; }

void twice(sr::Local<int, 1> x) {
  for (int& value : x) value *= 2;
}
// [/functions]

void print(const char* what, const std::vector<int>& values) {
  std::printf("%-22s", what);
  for (const int value : values) std::printf(" %d", value);
  std::printf("\n");
}

void program(sr::Session& session) {
  // [master]
  auto x = session.shared<int, 1>("x");
  x.scatter(std::vector{0, 1, 2, 3, 4, 5, 6, 7});  // rows 0 1 2 | 3 4 5 | 6 7 on three workers
  print("rank 1 has", x.get(1).to_vector());
  session.function(twice)(x);
  print("all, gathered", x.gather().to_vector());

  const auto f = session.function(rows_of);
  print("row 1 of each rank", f(x, {.batch_s = std::vector{1}}).to_vector());
  const std::vector<std::vector<int>> lists{{0}, {2, 2}, {1}};
  print("a list for each rank", f(x, {.batch_s = lists}).to_vector());

  x.broadcast(std::vector{1, 2, 3});
  x.all_reduce(sr::Reduction::sum);
  print("reduced, on rank 2", x.get(2).to_vector());
  // [/master]

  // [several]
  auto weights = session.shared("weights", std::vector<float>{1, 2, 3, 4, 5, 6}, sr::Shape{3, 2});  // on every rank
  auto bias = session.shared("bias", std::vector<double>{1, 2, 3, 4, 5});
  session.all_reduce({weights, "bias"}, sr::Reduction::sum);  // of any types; by name as well
  const auto sum = weights.reduce(sr::Reduction::sum);        // to the master
  session.reduce_scatter({weights, bias}, sr::Reduction::max);
  std::printf("sum of the first %g, rows by rank", sum(0, 0));
  for (const auto rows : session.find_shared<double, 1>("bias").lengths()) std::printf(" %d", static_cast<int>(rows));
  session.all_gather({weights, bias});
  std::printf(", and everywhere again %d\n", static_cast<int>(bias.lengths()[0]));

  const auto images = session.data(std::vector<float>(20, 1), sr::Shape{10, 2});
  const std::vector<int> labels{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  auto x_train = session.shared<float, 2>("images");
  auto y_train = session.shared<int, 1>("labels");
  session.scatter({{x_train, images}, {y_train, labels}}, {.batch = std::vector{9, 0, 4, 4}});
  print("scattered labels", y_train.gather().to_vector());
  // [/several]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

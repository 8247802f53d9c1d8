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
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

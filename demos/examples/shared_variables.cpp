// Shared variables: arrays with a copy on every device. The program scatters one variable, so that each device holds
// some of its rows. It broadcasts another one, so that each device holds all of it. A function computes with both, and
// collectives move their values.

#include <cstdio>
#include <string>

#include "demos/examples/checks.hpp"
#include "demos/examples/columns.hpp"

namespace examples {
namespace {

using Matrix = sr::Shared<double, 2>;

void print(const char* when, const Matrix& variable) {
  std::printf("%s: '%s' has", when, variable.name().c_str());
  for (const auto& shape : variable.shapes()) std::printf(" %s", to_string(shape).c_str());
  std::printf("\n");
}

std::int64_t sum(const std::vector<std::int64_t>& lengths) {
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths) sum += length;
  return sum;
}

int program(sr::Session& session) {
  if (session.world_size() < 2) {
    std::fprintf(stderr, "this example requires two devices or more: syncrun -n 2 ...\n");
    return 2;
  }
  const auto workers = static_cast<std::size_t>(session.world_size());
  const int last = session.world_size() - 1;
  const auto x_values = random_numbers(kRows * kInner, 1);
  const auto y_values = random_numbers(kInner * kColumns, 2);
  Checks check;

  // Give some rows of x, and all of y, to each worker.
  Matrix x = session.shared<double, 2>("x");
  Matrix y = session.shared<double, 2>("y");
  print("new", x);
  x.scatter(x_values, {kRows, kInner});
  y.broadcast(y_values, {kInner, kColumns});
  print("scattered", x);
  print("broadcast", y);
  const auto lengths = x.lengths();
  check.that("the lengths add up", lengths.size() == workers && sum(lengths) == kRows);
  check.that("gather(scatter(x)) is x", x.gather().to_vector() == x_values);
  const auto begin = x_values.begin() + lengths[0] * kInner;
  check.that("rank 1 holds the rows after those of rank 0",
             x.get(1).to_vector() == std::vector(begin, begin + lengths[1] * kInner));
  const auto stacked = y.gather_stacked();
  std::printf("y, stacked: %s\n", to_string(stacked.shape()).c_str());
  std::vector<double> y_repeated;
  for (std::size_t rank = 0; rank < workers; ++rank)
    y_repeated.insert(y_repeated.end(), y_values.begin(), y_values.end());
  check.that("all copies of y are equal", stacked.to_vector() == y_repeated);

  // Call a function on the rows that the devices hold, and compare with one device that gets all rows.
  const auto f = columns_of_shards_function(session);
  const auto g = columns_function(session);
  const auto x_data = session.data(x_values, sr::Shape{kRows, kInner});
  const auto y_data = session.data(y_values, sr::Shape{kInner, kColumns});
  const auto on_one = values_of(g.on_rank(0)(x_data, y_data));
  check.close("a function of x and y has the result of one device", on_one, values_of(f(x, y)));
  check.close("in two slices, too", on_one, values_of(f(x, y, {.slices = 2})));
  check.close("which is the serial one", serially(x_values, y_values, rows_from(0, kRows)), on_one);

  // Make the copies of y different, and average them.
  for (int rank = 0; rank <= last; ++rank) {
    y.set(rank, random_numbers(kInner * kColumns, 10 + static_cast<unsigned>(rank)), {kInner, kColumns});
  }
  std::vector<double> mean(y_values.size());
  const auto copies = y.gather_stacked();
  for (int rank = 0; rank <= last; ++rank) {
    for (std::size_t i = 0; i < mean.size(); ++i) {
      mean[i] += copies[rank].span()[i] / static_cast<double>(workers);
    }
  }
  check.close("reduced to the master, y is the mean of its copies", mean, y.reduce(sr::Reduction::avg).to_vector());
  y.all_reduce(sr::Reduction::avg);
  check.close("all_reduced, it is that on the first rank", mean, y.get(0).to_vector());
  check.close("and on the last", mean, y.get(last).to_vector());
  y.set(1, y_values, {kInner, kColumns});
  check.that("rank 1 alone is set back", y.get(1).to_vector() == y_values && y.get(0).to_vector() != y_values);

  // Gather all of x on every worker. The call names the variable.
  session.all_gather({"x"});
  print("all_gathered", x);
  bool has_everything = true;
  for (int rank = 0; rank <= last; ++rank) has_everything &= x.get(rank).to_vector() == x_values;
  check.that("every rank holds all of x", has_everything);
  return check.conclude();
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) { return syncrun::run(argc, argv, examples::program); }

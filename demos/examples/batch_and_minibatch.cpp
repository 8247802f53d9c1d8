// Calls on some of the rows. `batch` selects the rows of the scattered inputs that a call computes on. The workers read
// them from shared memory, and the master makes no copy. An input that is made for one batch (weights, noise, ...) is a
// minibatch: it has as many rows as the batch, and its first row belongs to the first row of the batch.

#include <cstdio>
#include <random>
#include <string>

#include "demos/examples/checks.hpp"
#include "demos/examples/columns.hpp"

namespace examples {
namespace {

struct Batch {
  std::string name;
  sr::Rows rows;                      // as passed to the call
  std::vector<std::int64_t> indices;  // the same rows, listed
};

int program(sr::Session& session) {
  const auto x_values = random_numbers(kRows * kInner, 1);
  const auto y_values = random_numbers(kInner * kColumns, 2);
  const auto x = session.data(x_values, sr::Shape{kRows, kInner});
  const auto y = session.data(y_values, sr::Shape{kInner, kColumns});
  const auto f = columns_function(session);
  const auto g = weighted_columns_function(session);

  std::vector<std::int64_t> some(100);
  std::mt19937 random(3);
  std::uniform_int_distribution<std::int64_t> any_row(0, kRows - 1);
  for (std::int64_t& row : some) row = any_row(random);

  Checks check;
  for (const Batch& batch :
       {Batch{"the first 100", 100, rows_from(0, 100)}, Batch{"rows 10 to 99", sr::Slice{10, 100}, rows_from(10, 100)},
        Batch{"rows 100 to 999", sr::Slice{100, 1000}, rows_from(100, 1000)},
        Batch{"100 rows by index, some twice", some, some}}) {
    std::printf("%s\n", batch.name.c_str());
    const auto expected = serially(x_values, y_values, batch.indices);
    check.close("all workers have the serial result", expected, values_of(f(x, y, {.batch = batch.rows})));
    check.close("in four slices", expected, values_of(f(x, y, {.batch = batch.rows, .slices = 4})));
    check.close("on one device", expected, values_of(f.on_rank(0)(x, y, {.batch = batch.rows})));

    const auto weights = random_numbers(static_cast<std::int64_t>(batch.indices.size()), 4);
    const auto w = session.data(weights);
    const auto weighted = serially(x_values, y_values, batch.indices, weights);
    check.close("with a minibatch of weights", weighted, values_of(g(x, sr::minibatch(w), y, {.batch = batch.rows})));
    check.close("in four slices", weighted, values_of(g(x, sr::minibatch(w), y, {.batch = batch.rows, .slices = 4})));
    check.close("on one device", weighted,
                values_of(g.on_rank(session.world_size() - 1)(x, sr::minibatch(w), y, {.batch = batch.rows})));
  }
  return check.conclude();
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) { return syncrun::run(argc, argv, examples::program); }

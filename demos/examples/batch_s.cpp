// Calls on some of the rows that the devices already hold. The data set is scattered to the devices once. `batch_s`
// selects rows of each worker's own part, and only the indices are moved. One selection can be for all workers, or each
// worker gets its own.

#include <cstdio>
#include <random>
#include <string>

#include "demos/examples/checks.hpp"
#include "demos/examples/columns.hpp"

namespace examples {
namespace {

using Indices = std::vector<std::int64_t>;

/// A selection as passed to the call, and for each rank the rows of its part that it means.
struct Selection {
  std::string name;
  sr::LocalRows rows;
  std::vector<Indices> by_rank;
};

int program(sr::Session& session) {
  const auto workers = static_cast<std::size_t>(session.world_size());
  const auto x_values = random_numbers(kRows * kInner, 1);
  const auto y_values = random_numbers(kInner * kColumns, 2);
  auto x = session.shared<double, 2>("x");
  auto y = session.shared<double, 2>("y");
  x.scatter(x_values, {kRows, kInner});
  y.broadcast(y_values, {kInner, kColumns});
  const auto f = columns_of_shards_function(session);
  const auto lengths = x.lengths();

  // One list for all workers, and a list for each worker. The lists have different lengths and repeat rows.
  std::mt19937 random(3);
  const auto any_of = [&](std::int64_t length, std::size_t count) {
    std::uniform_int_distribution<std::int64_t> any_row(0, length - 1);
    Indices indices(count);
    for (std::int64_t& row : indices) row = any_row(random);
    return indices;
  };
  const Indices list = any_of(lengths.back(), 50);
  std::vector<sr::Slice> slices;
  std::vector<Indices> rows_of_slices, lists;
  for (std::size_t rank = 0; rank < workers; ++rank) {
    const auto first = static_cast<std::int64_t>(10 * rank);
    slices.push_back({first, first + 40});
    rows_of_slices.push_back(rows_from(first, first + 40));
    lists.push_back(any_of(lengths[rank], 30 + 7 * rank));
  }

  Checks check;
  for (const Selection& selection :
       {Selection{"one slice for all", sr::Slice{20, 90}, std::vector<Indices>(workers, rows_from(20, 90))},
        Selection{"one list for all", list, std::vector<Indices>(workers, list)},
        Selection{"a slice for each worker", slices, rows_of_slices},
        Selection{"a list for each worker", lists, lists}}) {
    Indices all;  // the selected rows, numbered within the whole data set
    std::int64_t begin = 0;
    for (std::size_t rank = 0; rank < workers; ++rank) {
      for (const std::int64_t row : selection.by_rank[rank]) all.push_back(begin + row);
      begin += lengths[rank];
    }
    std::printf("%s: %zu rows\n", selection.name.c_str(), all.size());
    const auto expected = serially(x_values, y_values, all);
    check.close("the workers have the serial result of all these rows", expected,
                values_of(f(x, y, {.batch_s = selection.rows})));
    check.close("in four slices, too", expected, values_of(f(x, y, {.batch_s = selection.rows, .slices = 4})));
  }
  return check.conclude();
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) { return syncrun::run(argc, argv, examples::program); }

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/nodes/actions.hpp"

namespace syncrun::test {

namespace {

/// For each row: its first element, and the rank that has read it.
struct RowsRead {
  Gather<double, 1> firsts;
  Gather<std::int64_t, 1> ranks;
  Sum<double> sum;
};

RowsRead read_rows(CpuWorker& worker, Scattered<const double, 2> x) {
  std::vector<double> firsts;
  double sum = 0;
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    firsts.push_back(x(row, 0));
    for (std::int64_t column = 0; column < x.shape()[1]; ++column) sum += x(row, column);
  }
  const std::vector<std::int64_t> ranks(firsts.size(), worker.rank());
  return {{firsts, Shape{x.rows()}}, {ranks, Shape{x.rows()}}, {sum}};
}

void read_beside(CpuWorker&, Scattered<const double, 2> x, Scattered<const double, 1> firsts) {
  require(x.rows() == firsts.rows(), "as many rows of both");
  for (std::int64_t row = 0; row < x.rows(); ++row) require(x(row, 0) == firsts(row), "the rows of an array in memory");
}

void read_two(CpuWorker&, Scattered<const double, 2>, Scattered<const double, 2>) {}
void read_all(CpuWorker&, Broadcast<const double, 2>) {}

int node_of(int rank) { return rank / 2; }

// ---- rows in memory --------------------------------------------------------------------------------------------

constexpr std::int64_t kRowsInMemory = 480;
constexpr std::int64_t kWide = 1 << 13;  // a row has 64 KiB

/// Rows of an array in memory: each node reads its own, by index, in several calls and orders.
void read_own_rows(Session& session) {
  const int nodes = (session.world_size() + 1) / 2;
  std::vector<double> values(kRowsInMemory * kWide);
  std::iota(values.begin(), values.end(), 0.0);
  auto x = session.data(values, Shape{kRowsInMemory, kWide}, "x");
  const auto f = session.function(read_rows, "read_rows");
  // Rows [begin, end) of the rows of each node, the last one first.
  const auto read = [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t own = kRowsInMemory / nodes;
    std::vector<std::int64_t> rows;
    for (std::int64_t node = 0; node < nodes; ++node) {
      for (std::int64_t row = end; row > begin; --row) rows.push_back(node * own + row - 1);
    }
    const auto result = f(x, {.batch = rows});
    for (std::size_t i = 0; i < rows.size(); ++i)
      require(result.firsts(static_cast<std::int64_t>(i)) == x.at(rows[i], 0), "the rows by index");
    return own;
  };
  announce("ready to read");
  const std::int64_t own = read(0, kRowsInMemory / nodes / 2);
  read(own / 4, own);
  announce("read");
  for (int epoch = 0; epoch < 3; ++epoch) read(0, own);
  announce("read again");
  x.set_rows(own * (nodes - 1), std::vector<double>(kWide, 7));  // of the last node
  read(0, own);
  announce("read what has changed");
}

// ---- files of each node ----------------------------------------------------------------------------------------

constexpr std::int64_t kRowColumns = 4096;  // a row has 32 KiB

std::vector<double> range_of(const Slice& rows) {
  std::vector<double> values(static_cast<std::size_t>(rows.end - rows.begin));
  std::iota(values.begin(), values.end(), static_cast<double>(rows.begin));
  return values;
}

/// Row i of all rows begins with i. Each rank reads rows of its node.
void check_rows(const RowsRead& read, const std::vector<double>& expected, const Data<double, 2>& x) {
  require(read.firsts.to_vector() == expected, "the rows");
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Slice there = x.rows_of_node(node_of(static_cast<int>(read.ranks(static_cast<std::int64_t>(i)))));
    require(expected[i] >= static_cast<double>(there.begin) && expected[i] < static_cast<double>(there.end),
            "a rank reads rows of its node");
  }
}

template <class F>
void refuses(const std::string& what, F&& f) {
  try {
    f();
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::usage && std::string(error.what()).find(what) != std::string::npos,
            std::string("the message is: ") + error.what());
    return;
  }
  throw std::runtime_error("not refused: " + what);
}

/// Calls read the files of all nodes as one array. `rows` are those of each node.
void use_files(Session& session, const Data<double, 2>& x, const std::vector<std::int64_t>& rows) {
  const auto f = session.function(read_rows, "read_rows");
  const int nodes = static_cast<int>(rows.size());
  const std::int64_t all = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  require(x.rows() == all && x.shape()[1] == kRowColumns, "the shape");
  for (std::int64_t node = 0, begin = 0; node < nodes; begin += rows[static_cast<std::size_t>(node++)])
    require(x.rows_of_node(static_cast<int>(node)) == Slice{begin, begin + rows[static_cast<std::size_t>(node)]},
            "the rows of a node");

  for (int weighted = 0; weighted < 2; ++weighted) {
    std::vector<double> weights(static_cast<std::size_t>(session.world_size()), 1.0);
    weights[0] = weighted == 0 ? 1 : 0;
    session.set_weights(weights);
    check_rows(f(x), range_of({0, all}), x);
    check_rows(f(x, {.slices = 2}), range_of({0, all}), x);
    check_rows(f(x, {.batch = Slice{2, all - 1}}), range_of({2, all - 1}), x);
    // By index, in any order within a node.
    std::vector<double> expected;
    for (int node = 0; node < nodes; ++node) {
      const Slice there = x.rows_of_node(node);
      for (std::int64_t row = there.end - 1; row >= there.begin; row -= 1 + node)
        expected.push_back(static_cast<double>(row));
    }
    const std::vector<std::int64_t> list(expected.begin(), expected.end());
    check_rows(f(x, {.batch = list}), expected, x);
    // With arrays in memory, whose rows travel to the ranks that get the rows of the files.
    const auto firsts = session.data(range_of({0, all}), Shape{all});
    const auto beside = session.function(read_beside, "read_beside");
    beside(x, firsts);
    beside(x, firsts, {.batch = list});
    beside(x, minibatch(session.data(expected, Shape{static_cast<std::int64_t>(expected.size())})), {.batch = list});
  }
  session.set_weights({});
  const Slice last = x.rows_of_node(nodes - 1);
  check_rows(f.on_rank(session.world_size() - 1)(x, {.batch = last}), range_of(last), x);
}

void check_refusals(Session& session, const Data<double, 2>& x, const Data<double, 2>& other) {
  const auto f = session.function(read_rows, "read_rows");
  const std::int64_t last = x.rows() - 1;
  refuses("batch has index 0 at position 1, after one of node 2", [&] {
    f(x, {.batch = std::vector<std::int64_t>{last, 0}});
  });
  refuses("rows of node 1, but it has no rank there", [&] { f.on_rank(0)(x); });
  refuses("only calls can read it", [&] { static_cast<void>(x.at(0, 0)); });
  refuses("only calls can read it", [&] { session.shared<double, 2>().scatter(x); });
  refuses("it can only be a Scattered argument", [&] { session.function(read_all, "read_all")(x); });
  refuses("rows in its file of node 0, but argument 0", [&] { session.function(read_two, "read_two")(x, other); });
  // The list is one of the rows of an array in memory, which has more.
  const auto large = session.data<double, 2>({1000, 1}, "large");
  refuses("and no minibatch", [&] {
    const std::vector<std::int64_t> list(static_cast<std::size_t>(x.rows()), 999);
    session.function(read_two, "read_two")(large, minibatch(x), {.batch = list});
  });
  refuses("balance requires equal shares", [&] { session.balance(f, x); });
  refuses("requires a node from 0 to 2", [&] { static_cast<void>(x.rows_of_node(3)); });
}

}  // namespace

bool use_data(Session& session, const std::string& action, const Words& words) {
  if (action == "own-rows") {
    read_own_rows(session);
    return true;
  }
  if (action != "files" && action != "map-parts") return false;
  const auto x = session.map_npy<double, 2>(words.at(0) + "/x-{node}.npy", "x");
  if (action == "map-parts") return true;
  std::vector<std::int64_t> rows;
  for (std::size_t i = 1; i < words.size(); ++i) rows.push_back(std::stoll(words[i]));
  announce("ready to read");
  use_files(session, x, rows);
  use_files(session, session.map_raw<double, 2>(words[0] + "/x-{node}.npy", {-1, kRowColumns}, 128),
            rows);  // after the header
  announce("read");
  if (rows.size() == 3) check_refusals(session, x, session.map_npy<double, 2>(words[0] + "/y-{node}.npy", "y"));
  say("as expected");
  return true;
}

}  // namespace syncrun::test

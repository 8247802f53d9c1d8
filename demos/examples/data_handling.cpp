// An array in shared memory. The program makes it from values, reads and writes rows, enlarges it with room to spare,
// shortens it, frees it, and sets it again. It also makes an array from values of another type. After each step it
// compares the values that the workers see with the expected ones. The function has a body for CPU devices only. On a
// machine with GPUs, run this with `syncrun -n cpu`.

#include <cstdio>
#include <numeric>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/examples/checks.hpp"

namespace examples {
namespace {

namespace sr = syncrun;

constexpr std::int64_t kWidth = 4;

/// Returns the rows as the workers see them.
sr::Gather<float, 2> seen(sr::Scattered<const float, 2> rows) { return {rows, rows.shape()}; }

std::vector<float> counting(std::int64_t count, float first) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

void print(const char* when, const sr::Data<float, 2>& x) {
  std::printf("%s: shape %s, length %d, %zu bytes allocated\n", when, to_string(x.shape()).c_str(),
              static_cast<int>(x.rows()), x.capacity_bytes());
}

int program(sr::Session& session) {
  Checks check;
  const auto f = session.function(seen);
  const auto workers_see = [&](const std::string& what, const sr::Data<float, 2>& x, const std::vector<float>& values) {
    check.that("the workers see " + what, f(x).to_vector() == values);
  };

  // Make the array from values. `expected` follows every change below.
  std::vector<float> expected = counting(10 * kWidth, 1);
  auto x = session.data(expected, sr::Shape{10, kWidth}, "x");
  print("made of values", x);
  workers_see("the values", x, expected);

  // Read and write some rows. While a write guard exists, a call on the array throws, so the guard has a block of its
  // own.
  for (const float value : x.slice({2, 4})) std::printf(" %g", static_cast<double>(value));
  std::printf("  are rows 2 and 3\n");
  x.set_rows(3, std::vector<float>(kWidth, 0));
  std::fill_n(expected.begin() + 3 * kWidth, kWidth, 0.0F);
  workers_see("row 3 zeroed", x, expected);
  {
    const auto w = x.write();
    for (float& value : w.span()) value += 100;
  }
  for (float& value : expected) value += 100;
  workers_see("all that was written", x, expected);

  // Set a larger value, with room for a tenth more. The next value then fits.
  expected = counting(20 * kWidth, 7);
  x.set(expected, {20, kWidth}, {.oversize = 1.1});
  print("larger, with room to spare", x);
  check.that("the room is a tenth more", x.capacity_bytes() >= 22 * kWidth * sizeof(float));
  workers_see("the larger value", x, expected);
  const float* place = x.view().data();
  const std::size_t capacity_bytes = x.capacity_bytes();
  expected = counting(22 * kWidth, 9);
  x.set(expected, {22, kWidth});
  check.that("what fits is put in place", x.view().data() == place && x.capacity_bytes() == capacity_bytes);
  workers_see("the value that fits", x, expected);

  // Shorten the array and fill it in place. The memory stays allocated.
  x.resize_rows(5);
  x.fill(3);
  print("shorter", x);
  check.that("shrinking keeps the allocation", x.capacity_bytes() == capacity_bytes);
  workers_see("five rows of threes", x, std::vector<float>(5 * kWidth, 3));
  x.resize_rows(6);
  expected.assign(5 * kWidth, 3);
  expected.insert(expected.end(), kWidth, 0);
  workers_see("old rows, and new ones of zeros", x, expected);

  // Free the memory, and set the array again.
  x.free();
  print("given back", x);
  check.that("nothing is allocated any more", x.capacity_bytes() == 0 && x.rows() == 0);
  expected = counting(3 * kWidth, -1);
  x.set(expected, {3, kWidth});
  workers_see("what it was set to after that", x, expected);

  // Make an array of floats from doubles. This compiles only with sr::lossy, which permits the loss of digits.
  const std::vector<double> doubles{0.1, 0.2, 0.3, 0.4};
  const auto forced = session.data_as<float>(sr::lossy(sr::view_of(doubles, sr::Shape{1, kWidth})));
  workers_see("doubles, rounded", forced, {0.1F, 0.2F, 0.3F, 0.4F});
  std::string refusal;
  try {
    session.data_as<float>(sr::lossy(std::vector{0.1, 1e300}));
  } catch (const sr::Error& error) {
    refusal = error.what();
  }
  std::printf("%s\n", refusal.c_str());
  check.that("what is no float is refused", refusal.find("out of the range of float32") != std::string::npos);
  return check.conclude();
}

}  // namespace
}  // namespace examples

int main(int argc, char** argv) { return syncrun::run(argc, argv, examples::program); }

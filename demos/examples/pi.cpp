// A Monte Carlo estimate of pi, whose rows come from no array. Each row of the call is one random point in the unit
// square. The numbers of a point depend only on its row. So the number of points inside the circle is the same for any
// number of workers and slices.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <syncrun/syncrun.hpp>

namespace {

namespace sr = syncrun;

/// Random number `counter` of a fixed sequence, from 0 to below 1. It is a hash of the counter, so it can be computed
/// without the numbers before it. Source: SplitMix64, G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number
/// Generators", OOPSLA 2014.
double random_number(std::int64_t counter) {
  std::uint64_t z = static_cast<std::uint64_t>(counter + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return static_cast<double>((z ^ (z >> 31U)) >> 11U) * 0x1p-53;
}

// [functions]
struct Estimate {
  sr::Sum<std::int64_t> inside;  // the points inside the quarter of a circle
  sr::Avg<double> height;        // the mean height of that quarter over the points
};

Estimate throw_points(sr::CpuWorker& worker) {
  const std::int64_t end = worker.first_row() + worker.rows();
  std::int64_t inside = 0;
  double heights = 0;
  for (std::int64_t row = worker.first_row(); row < end; ++row) {
    const double x = random_number(2 * row);
    const double y = random_number(2 * row + 1);
    inside += x * x + y * y < 1 ? 1 : 0;
    heights += std::sqrt(1 - x * x);
  }
  return {.inside = inside, .height = heights / static_cast<double>(worker.rows())};
}
// [/functions]

int program(sr::Session& session) {
  // [calls]
  const auto f = session.function(throw_points);
  const Estimate e = f({.rows = 1'000'000, .slices = 4});
  std::printf("%lld of 1000000 points are inside: pi is about %.6f\n", static_cast<long long>(e.inside),
              4e-6 * static_cast<double>(e.inside));
  std::printf("the mean height is %.6f: pi is about %.6f\n", e.height.value(), 4 * e.height);

  const Estimate again = f({.rows = 1'000'000, .slices = 4});
  const Estimate on_one = f.on_rank(0)({.rows = 1'000'000});
  const bool same_bits = again.inside == e.inside && again.height == e.height;
  std::printf("the same call again gives the same bits: %s\n", same_bits ? "yes" : "NO");
  std::printf("one worker counts the same points: %s\n", on_one.inside == e.inside ? "yes" : "NO");
  // [/calls]
  const bool is_near = std::abs(4 * e.height - 3.14159265) < 0.01;
  return same_bits && on_one.inside == e.inside && is_near ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

// docs/api/profile.md

#include <cstdio>
#include <numeric>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

sr::Sum<double> total(sr::Scattered<const double, 1> x) { return std::accumulate(x.begin(), x.end(), 0.0); }

// [all]
void program(sr::Session& session) {
  const auto x = session.data(std::vector<double>(1000, 1.0));
  const auto f = session.function(total);
  for (int i = 0; i < 100; ++i) f(x, {.batch = std::vector<int>(500, i)});

  for (const sr::CallProfile& line : session.profile()) {
    const bool is_slow = line.function.median > std::chrono::seconds(1);
    std::printf("%s, rank %d: %d calls%s\n", line.name.c_str(), line.rank, static_cast<int>(line.calls),
                is_slow ? ", slow" : "");
  }
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program, {.trace = "trace.json"}); }
// [/all]

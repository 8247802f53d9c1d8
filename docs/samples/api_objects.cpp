// docs/api/replicated-objects.md

#include <cstdio>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

// [class]
class Histogram {
 public:
  Histogram(std::string name, std::vector<double> edges)
      : name_(std::move(name)), edges_(std::move(edges)), counts_(edges_.size() + 1) {}

  void add(sr::Scattered<const double, 1> x) {
    for (const double value : x) {
      std::size_t bin = 0;
      while (bin < edges_.size() && value >= edges_[bin]) ++bin;
      ++counts_[bin];
    }
  }
  sr::Sum<std::int64_t, 1> counts() const { return {counts_, sr::Shape{counts_.size()}}; }

 private:
  std::string name_;
  std::vector<double> edges_;
  std::vector<std::int64_t> counts_;
};

Histogram make_histogram(sr::CpuWorker& worker, int bins) {
  std::vector<double> edges;
  for (int i = 1; i < bins; ++i) edges.push_back(static_cast<double>(i) / bins);
  return {"unit, rank " + std::to_string(worker.rank()), edges};
}
// [/class]

void program(sr::Session& session) {
  // [use]
  const auto histogram = session.replicate<Histogram>("ages", std::vector<double>{18, 65});  // by its constructor
  const auto quarters = session.replicate(make_histogram, 4);                                // by a factory

  const auto add = session.function(&Histogram::add, histogram);
  add(session.data(std::vector<double>{3, 20, 40, 70, 17}));
  add(session.data(std::vector<double>{64, 65}));
  for (const auto n : session.function(&Histogram::counts, histogram)()) std::printf(" %d", static_cast<int>(n));
  std::printf(" |");
  session.function(&Histogram::add, quarters)(session.data(std::vector<double>{0.1, 0.3, 0.35, 0.9}));
  for (const auto n : session.function(&Histogram::counts, quarters)()) std::printf(" %d", static_cast<int>(n));
  std::printf("\n");
  // [/use]
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

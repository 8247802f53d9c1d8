// Measures the transfer of rows from the master's shared memory to all GPUs, for a function that does nothing with
// them. The rows are either contiguous or in a new random order in each call. The time is that of the whole call. For
// shuffled rows, it includes the check of the list of indices and its transfer to the workers.
//
//   syncrun -n 8 bench_gpu_scatter --seconds 1 [contiguous|shuffled]

#include <random>
#include <span>
#include <string_view>

#include "bench/comparators/gpu_report.hpp"
#include "syncrun/syncrun.hpp"

namespace sr = syncrun;

namespace {

template <sr::Element T>
void take(sr::CudaWorker& /*worker*/, sr::Scattered<const T, 2> /*rows*/) {}

/// Makes data that is not zero. Zeros can move faster than real data.
template <sr::Element T>
sr::Data<T, 2> filled(sr::Session& session, std::size_t rows, std::size_t row_bytes) {
  auto data = session.data<T, 2>({rows, row_bytes / sizeof(T)});
  const auto guard = data.write();
  std::size_t i = 0;
  for (auto& value : guard) value = static_cast<T>((i++ * 31 >> 3U) % 251);
  return data;
}

void contiguous(sr::Session& session, double seconds, std::size_t bytes_each) {
  constexpr int kWarm = 3;
  constexpr std::size_t kRowBytes = 4096;
  const std::size_t bytes = bytes_each * static_cast<std::size_t>(session.world_size());
  auto data = filled<float>(session, bytes / kRowBytes, kRowBytes);
  const auto function = session.function(&take<float>, "take");
  const auto once_us = [&] {
    const auto start = comparators::Clock::now();
    function(data);
    return comparators::microseconds_since(start);
  };
  double warm_us = 0;
  for (int i = 0; i < kWarm; ++i) warm_us = once_us();
  std::vector<double> samples(static_cast<std::size_t>(comparators::iterations_for(seconds, warm_us)));
  for (auto& sample : samples) sample = once_us();
  comparators::print_gpu_line(
      {"gpu_scatter", "syncrun", session.world_size(), comparators::scatter_text(bytes_each), bytes},
      std::move(samples));
  data.free();
}

template <sr::Element T>
void shuffled(sr::Session& session, double seconds, std::size_t row_bytes) {
  constexpr int kWarm = 3;
  const std::size_t rows = comparators::kShuffledBytes / row_bytes * static_cast<std::size_t>(session.world_size());
  auto data = filled<T>(session, rows * comparators::kShuffledPoolFactor, row_bytes);
  const auto function = session.function(&take<T>, "take");
  std::vector<std::int64_t> order(rows * comparators::kShuffledPoolFactor);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(1);  // NOLINT(cert-msc51-cpp): the same rows in every run
  const auto once_us = [&] {
    for (std::size_t i = 0; i < rows; ++i) std::swap(order[i], order[i + random() % (order.size() - i)]);
    const std::span<const std::int64_t> batch(order.data(), rows);
    const auto start = comparators::Clock::now();
    function(data, {.batch = batch});
    return comparators::microseconds_since(start);
  };
  double warm_us = 0;
  for (int i = 0; i < kWarm; ++i) warm_us = once_us();
  const long count = std::min(comparators::kMaxShuffledIterations, comparators::iterations_for(seconds, warm_us));
  std::vector<double> samples(static_cast<std::size_t>(count));
  for (auto& sample : samples) sample = once_us();
  comparators::print_gpu_line(
      {"gpu_shuffle", "syncrun", session.world_size(), comparators::shuffled_text(row_bytes), rows * row_bytes},
      std::move(samples));
  data.free();
}

int measure(sr::Session& session, int argc, char** argv) {
  const std::string_view which = argc % 2 == 0 ? argv[argc - 1] : "";
  const comparators::Options options = comparators::parse_options(which.empty() ? argc : argc - 1, argv);
  if (which != "shuffled") {
    for (const std::size_t bytes : comparators::kScatterBytes) contiguous(session, options.seconds, bytes);
  }
  if (which == "contiguous") return 0;
  for (const std::size_t row_bytes : comparators::kShuffledRowBytes) {
    const bool is_float = row_bytes == 784 * sizeof(float);
    if (is_float) shuffled<float>(session, options.seconds, row_bytes);
    else shuffled<std::uint8_t>(session, options.seconds, row_bytes);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return sr::run(argc, argv, measure); }

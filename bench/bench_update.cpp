// Measures an update of 25 million float32 parameters by adam, and copies that move as many bytes. Updates and copies
// take turns, on every worker at the same time. An update reads the parameters, the gradient and both state vectors,
// and writes all of these except the gradient: 28 bytes for each parameter. The times are those of rank 0.
//
//   bench_update --workers 1 --seconds 3

#include <cstring>
#include <string>

#include "bench/comparators/measure.hpp"
#include "syncrun/syncrun.hpp"

namespace sr = syncrun;

namespace {

constexpr std::int64_t kParameters = 25'000'000;
constexpr std::int64_t kBytes = 28 * kParameters;
constexpr std::int64_t kCopied = kBytes / 2 / static_cast<std::int64_t>(sizeof(float));

using Vector = sr::Local<float, 1>;

struct Times {
  sr::Gather<double, 1> update_us;
  sr::Gather<double, 1> memcpy_us;
  sr::Gather<double, 1> stream_us;
  sr::Min<std::int32_t> is_right;
};

/// A loop like that in STREAM. It adds a constant, because a compiler replaces a plain copy by memcpy.
void stream(const float* __restrict from, float* __restrict to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = from[i] + 1.0F;
}

template <class F>
double timed_us(sr::Comm& comm, F&& work) {
  comm.barrier();
  const auto start = comparators::Clock::now();
  work();
  return comparators::microseconds_since(start);
}

Times take_turns(sr::CpuWorker& worker, sr::Comm& comm, Vector params, Vector gradient, Vector m, Vector v, Vector from,
                 Vector to, double seconds) {
  std::fill(gradient.begin(), gradient.end(), 0.5F);
  std::fill(from.begin(), from.end(), 1.0F);
  std::int64_t step = 0;
  const auto update = [&] { sr::update(worker, sr::Adam{.step = ++step}, params, gradient, m, v); };
  const auto copy = [&] { std::memcpy(to.data(), from.data(), static_cast<std::size_t>(to.size()) * sizeof(float)); };
  const auto add = [&] { stream(from.data(), to.data(), to.size()); };
  update();  // the first update and the first copies touch all pages
  copy();
  // The first step of adam changes a parameter by the learning rate, no matter how large the gradient is.
  const std::int32_t is_right = std::abs(params[0] + 0.001F) < 1e-6F && params[0] == params[kParameters - 1] ? 1 : 0;

  const double warm_us =
      comm.all_reduce(timed_us(comm, update) + timed_us(comm, copy) + timed_us(comm, add), sr::Reduction::max);
  std::vector<double> updates(static_cast<std::size_t>(comparators::iterations_for(seconds, warm_us)));
  std::vector<double> copies(updates.size());
  std::vector<double> streams(updates.size());
  for (std::size_t i = 0; i < updates.size(); ++i) {
    updates[i] = timed_us(comm, update);
    copies[i] = timed_us(comm, copy);
    streams[i] = timed_us(comm, add);
  }
  if (worker.rank() != 0) {
    for (auto* samples : {&updates, &copies, &streams}) samples->clear();
  }
  return {{updates, {updates.size()}}, {copies, {copies.size()}}, {streams, {streams.size()}}, is_right};
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return comparators::percentile(samples, 50);
}

int measure(const comparators::Options& options) {
  sr::Session session({.processes = std::to_string(options.workers)});
  auto params = session.shared<float, 1>("params");
  params.broadcast(std::vector<float>(kParameters));
  const auto [gradient, unused] = sr::state_for<sr::Adam>(session, params);
  const auto [m, v] = sr::state_for<sr::Adam>(session, params);
  auto from = session.shared<float, 1>("from");
  from.broadcast(std::vector<float>(kCopied));
  const auto [to] = sr::state_for<sr::Momentum>(session, from);
  const Times times = session.function(take_turns, "take_turns")(params, gradient, m, v, from, to, options.seconds);
  if (times.is_right == 0) throw std::runtime_error("the update gave wrong parameters");

  const double update_us = median(times.update_us.to_vector());
  const double memcpy_us = median(times.memcpy_us.to_vector());
  const double stream_us = median(times.stream_us.to_vector());
  const auto rate = [](double us) { return static_cast<double>(kBytes) / us / 1e3; };
  std::printf(
      "{\"name\": \"update\", \"impl\": \"syncrun\", \"variant\": \"adam\", \"workers\": %zu, \"bytes\": %lld, "
      "\"median_us\": %.1f, \"copy_us\": %.1f, \"gb_per_s\": %.2f, \"memcpy_gb_per_s\": %.2f, "
      "\"stream_gb_per_s\": %.2f, \"of_copy\": %.3f, \"samples\": %zu}\n",
      options.workers, static_cast<long long>(kBytes), update_us, std::min(memcpy_us, stream_us), rate(update_us),
      rate(memcpy_us), rate(stream_us), std::min(memcpy_us, stream_us) / update_us, times.update_us.to_vector().size());
  session.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = syncrun::serve_if_worker(argc, argv)) return *code;
  return measure(comparators::parse_options(argc, argv));
}

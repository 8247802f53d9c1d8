// Measures one training step of the MNIST demo's MLP 784-800-800-10 on shuffled host data. A step gathers rows from
// shared memory, computes loss and gradient, all_reduces the gradient, applies Nesterov's update, and returns the loss
// to the master. The master measures the wall time of each step, first with one call in flight and then with two.
// `syncrun` chooses the devices.
//
//   syncrun -n 1 bench_mnist_step --batch 500 --steps 1000 --warmup 50 [--tf32]

#include <getopt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/mnist/functions.hpp"
#include "demos/mnist/trainer.hpp"
#include "demos/mnist/training.hpp"

namespace {

namespace sr = syncrun;
using Clock = std::chrono::steady_clock;
using Batches = std::vector<std::vector<std::int64_t>>;

constexpr std::int64_t kRows = 60'000;
constexpr std::size_t kSide = 28;
constexpr std::uint8_t kClasses = 10;

struct Options {
  std::size_t batch = 500;
  std::size_t steps = 1000;
  std::size_t warmup = 50;
  bool is_tf32 = false;
};

std::optional<Options> parse_options(int argc, char** argv) {
  const std::array long_options{
      option{"batch", required_argument, nullptr, 'b'}, option{"steps", required_argument, nullptr, 's'},
      option{"warmup", required_argument, nullptr, 'w'}, option{"tf32", no_argument, nullptr, 't'}, option{}};
  Options options;
  for (int chosen = 0; (chosen = getopt_long(argc, argv, "", long_options.data(), nullptr)) != -1;) {
    if (chosen == 't') options.is_tf32 = true;
    else if (chosen == 'b') options.batch = std::strtoull(optarg, nullptr, 10);
    else if (chosen == 's') options.steps = std::strtoull(optarg, nullptr, 10);
    else if (chosen == 'w') options.warmup = std::strtoull(optarg, nullptr, 10);
    else return std::nullopt;
  }
  if (optind < argc || options.batch == 0 || options.steps == 0) return std::nullopt;
  return options;
}

/// Data of MNIST's size in shared memory. The time of a step does not depend on the values.
struct Dataset {
  sr::Data<float, 2> images;
  sr::Data<std::uint8_t, 1> labels;
  sr::Data<std::int64_t, 1> ids;

  explicit Dataset(sr::Session& session)
      : images(session.data<float, 2>({kRows, std::int64_t{kSide * kSide}})),
        labels(session.data<std::uint8_t, 1>({kRows})),
        ids(session.data<std::int64_t, 1>({kRows})) {
    std::minstd_rand random(1);
    const auto pixels = images.write();
    for (float& pixel : pixels.span()) pixel = static_cast<float>(random() % 256) / 255;
    const auto label = labels.write();
    const auto id = ids.write();
    for (std::int64_t row = 0; row < kRows; ++row) {
      label.span()[static_cast<std::size_t>(row)] = static_cast<std::uint8_t>(random() % kClasses);
      id.span()[static_cast<std::size_t>(row)] = row;
    }
  }
};

Batches random_batches(const Options& options) {
  std::mt19937_64 random(2);
  std::uniform_int_distribution<std::int64_t> row(0, kRows - 1);
  Batches batches(options.steps + options.warmup, std::vector<std::int64_t>(options.batch));
  for (auto& batch : batches) std::generate(batch.begin(), batch.end(), [&] { return row(random); });
  return batches;
}

double microseconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

/// Returns the wall times from the loss of one step to the loss of the next, without the warm-up.
template <class Run>
std::vector<double> measure(const Batches& batches, std::size_t warmup, Run&& run) {
  std::vector<double> times;
  auto before = Clock::now();
  for (std::size_t i = 0; i < batches.size(); ++i) {
    run(batches[i]);
    const auto now = Clock::now();
    if (i >= warmup) times.push_back(microseconds_between(before, now));
    before = now;
  }
  std::sort(times.begin(), times.end());
  return times;
}

double quantile(const std::vector<double>& sorted, double q) {
  return sorted[std::min(sorted.size() - 1, static_cast<std::size_t>(q * static_cast<double>(sorted.size())))];
}

void run_bench(sr::Session& session, const Options& options) {
  const Dataset data(session);
  const demos::ModelSpec model{};
  const auto params = session.shared("params", mnist::initial_parameters<float>(model, kSide, kSide, 1));
  const auto math = options.is_tf32 ? demos::MatrixMath::kTf32 : demos::MatrixMath::kFull;
  const auto trainer = session.replicate<mnist::Trainer<float>>(model, kSide, kSide, math);
  auto step = mnist::step_function(session, trainer, params);

  const sr::Nesterov rule{.learning_rate = 0.01, .momentum = 0.9};
  demos::StepKey dropout{.seed = 1, .step = 0};
  const Batches batches = random_batches(options);
  double last_loss = 0;
  const std::vector<double> times = measure(batches, options.warmup, [&](const auto& batch) {
    ++dropout.step;
    last_loss = step(data.images, data.labels, data.ids, dropout, rule, {.batch = batch});
  });

  auto in_flight = step.async(data.images, data.labels, data.ids, dropout, rule, {.batch = batches.front()});
  const std::vector<double> async_times = measure(batches, options.warmup, [&](const auto& batch) {
    ++dropout.step;
    auto next = step.async(data.images, data.labels, data.ids, dropout, rule, {.batch = batch});
    last_loss = in_flight.get();
    in_flight = std::move(next);
  });
  last_loss = in_flight.get();

  std::printf(
      "{\"bench\":\"mnist_step\",\"devices\":%d,\"device\":\"%s\",\"batch\":%zu,\"dtype\":\"%s\",\"steps\":%zu,"
      "\"median_us\":%.1f,\"p10_us\":%.1f,\"p90_us\":%.1f,\"median_us_async\":%.1f,\"last_loss\":%.6f}\n",
      session.world_size(), session.devices().front().c_str(), options.batch, options.is_tf32 ? "tf32" : "float32",
      options.steps, quantile(times, 0.5), quantile(times, 0.1), quantile(times, 0.9), quantile(async_times, 0.5),
      last_loss);
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto exit_code = sr::serve_if_worker(argc, argv)) return *exit_code;
  const auto options = parse_options(argc, argv);
  if (!options) {
    std::fprintf(stderr, "usage: [syncrun -n N] bench_mnist_step [--batch N] [--steps N] [--warmup N] [--tf32]\n");
    return 2;
  }
  return sr::run(argc, argv, [&](sr::Session& session) { run_bench(session, *options); });
}

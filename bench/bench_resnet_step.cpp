// A training step of the ResNet demo: rows fetched by shuffled index from shared memory, crop, loss, gradient, all_reduce
// and update by momentum. Images per second with two steps in flight, which is how the demo trains. Devices are
// `syncrun`'s.
//
//   syncrun -n 8 bench_resnet_step --batch 256 --steps 30 --dtype bfloat16
//   syncrun -n 8 bench_resnet_step --buckets 0     # gradients are averaged after the backward pass, not beside it

#include <getopt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/resnet/functions.hpp"
#include "demos/resnet/parameters.hpp"
#include "demos/resnet/trainer.hpp"

namespace {

namespace sr = syncrun;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kClasses = 1000;
constexpr std::int64_t kImageSize = 256;  // as stored; the network sees 224 of it
constexpr std::size_t kCrop = 224;
constexpr double kMebibyte = 1 << 20;

struct Options {
  int depth = 50;
  std::int64_t batch = 256;  // per device
  std::size_t steps = 30;    // per sample
  int samples = 5;
  resnet::Precision precision = resnet::Precision::kBfloat16;
  std::string dtype = "bfloat16";
  std::size_t bucket_bytes = sr::TrainStepOptions{}.bucket_bytes;
};

std::optional<resnet::Precision> precision_of(std::string_view name) {
  if (name == "float32") return resnet::Precision::kFloat32;
  if (name == "tf32") return resnet::Precision::kTf32;
  if (name == "bfloat16") return resnet::Precision::kBfloat16;
  return std::nullopt;
}

std::optional<Options> parse_options(int argc, char** argv) {
  const std::array long_options{option{"batch", required_argument, nullptr, 'b'},
                                option{"steps", required_argument, nullptr, 's'},
                                option{"samples", required_argument, nullptr, 'n'},
                                option{"dtype", required_argument, nullptr, 't'},
                                option{"depth", required_argument, nullptr, 'd'},
                                option{"buckets", required_argument, nullptr, 'k'},
                                option{}};
  Options options;
  for (int chosen = 0; (chosen = getopt_long(argc, argv, "", long_options.data(), nullptr)) != -1;) {
    if (chosen == 'b') options.batch = std::strtoll(optarg, nullptr, 10);
    else if (chosen == 's') options.steps = std::strtoull(optarg, nullptr, 10);
    else if (chosen == 'n') options.samples = std::atoi(optarg);
    else if (chosen == 'd') options.depth = std::atoi(optarg);
    else if (chosen == 't') options.dtype = optarg;
    else if (chosen == 'k') options.bucket_bytes = static_cast<std::size_t>(std::strtod(optarg, nullptr) * kMebibyte);
    else return std::nullopt;
  }
  const auto precision = precision_of(options.dtype);
  if (!precision || optind < argc || options.batch < 1 || options.steps == 0 || options.samples < 1)
    return std::nullopt;
  options.precision = *precision;
  return options;
}

/// Random images in shared memory: what they show does not change how long a step takes.
struct Images {
  sr::Data<std::uint8_t, 4> images;
  sr::Data<std::int64_t, 1> labels;
  sr::Data<std::int64_t, 1> ids;

  Images(sr::Session& session, std::int64_t rows)
      : images(session.data<std::uint8_t, 4>({rows, kImageSize, kImageSize, std::int64_t{3}})),
        labels(session.data<std::int64_t, 1>({rows})),
        ids(session.data<std::int64_t, 1>({rows})) {
    std::mt19937_64 random(1);
    const auto pixels = images.write();
    const std::span<std::uint8_t> bytes = pixels.span();
    for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      const std::uint64_t word = random();
      std::copy_n(reinterpret_cast<const std::uint8_t*>(&word), 8, bytes.begin() + static_cast<std::ptrdiff_t>(i));
    }
    const auto label = labels.write();
    for (std::int64_t& value : label.span()) value = static_cast<std::int64_t>(random() % kClasses);
    const auto id = ids.write();
    std::iota(id.begin(), id.end(), 0);
  }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(sr::Session& session, const Options& options)
      : options_(options),
        rows_(options.batch * session.world_size()),
        architecture_(resnet::plan({.depth = options.depth, .image_size = kCrop, .classes = kClasses})),
        data_(session, 2 * rows_),
        params_(session.shared("params", resnet::initial_parameters(architecture_, 1, resnet::ResidualScale::kOne))),
        statistics_(session.shared("statistics", resnet::initial_statistics(architecture_))),
        trainer_(session.replicate<resnet::Trainer>(settings())),
        step_(resnet::step_function<sr::Momentum>(session, trainer_, params_,
                                                  {.name = "step", .bucket_bytes = options.bucket_bytes})) {}

  /// Microseconds of a step, by sample, of these batches in turn.
  std::vector<double> measure(const std::vector<std::vector<std::int64_t>>& batches) {
    std::vector<double> samples;
    for (int sample = -1; sample < options_.samples; ++sample) {  // the first one warms up
      const auto start = Clock::now();
      auto flying = launch(batches[0]);
      for (std::size_t i = 1; i < options_.steps; ++i) {
        auto next = launch(batches[i % batches.size()]);
        last_loss_ = flying.get().loss;
        flying = std::move(next);
      }
      last_loss_ = flying.get().loss;
      const std::chrono::duration<double, std::micro> elapsed = Clock::now() - start;
      if (sample >= 0) samples.push_back(elapsed.count() / static_cast<double>(options_.steps));
    }
    return samples;
  }

  /// Batches of rows drawn by chance.
  std::vector<std::vector<std::int64_t>> shuffled() const {
    std::mt19937_64 random(2);
    std::uniform_int_distribution<std::int64_t> row(0, 2 * rows_ - 1);
    std::vector<std::vector<std::int64_t>> batches(8, std::vector<std::int64_t>(static_cast<std::size_t>(rows_)));
    for (auto& batch : batches) std::generate(batch.begin(), batch.end(), [&] { return row(random); });
    return batches;
  }

  std::int64_t rows() const { return rows_; }
  double last_loss() const { return last_loss_; }

 private:
  resnet::TrainerSettings settings() const {
    return {.architecture = architecture_.spec,
            .preparation = resnet::imagenet_preparation(kCrop),
            .loss = {},
            .precision = options_.precision};
  }

  sr::Future<resnet::Fit> launch(const std::vector<std::int64_t>& batch) {
    const resnet::StepInput input{{.seed = 1, .step = step_number_++, .is_random = true}};
    return step_.async(data_.images, data_.labels, data_.ids, statistics_, input,
                       sr::Momentum{.learning_rate = 1e-3, .weight_decay = 1e-4}, {.batch = batch});
  }

  Options options_;
  std::int64_t rows_;
  resnet::Architecture architecture_;
  Images data_;
  sr::Shared<float, 1> params_;
  sr::Shared<float, 1> statistics_;
  sr::Replicated<resnet::Trainer> trainer_;
  decltype(resnet::step_function<sr::Momentum>(std::declval<sr::Session&>(),
                                               std::declval<const sr::Replicated<resnet::Trainer>&>(),
                                               std::declval<const sr::Shared<float, 1>&>())) step_;
  std::uint32_t step_number_ = 0;
  double last_loss_ = 0;
};

void run_bench(sr::Session& session, const Options& options) {
  Bench bench(session, options);
  const double step_us = median(bench.measure(bench.shuffled()));
  std::printf(
      "{\"bench\":\"resnet_step\",\"devices\":%d,\"depth\":%d,\"batch\":%lld,\"dtype\":\"%s\",\"bucket_mib\":%.1f,"
      "\"median_us\":%.1f,\"images_per_s\":%.1f,\"last_loss\":%.6f}\n",
      session.world_size(), options.depth, static_cast<long long>(options.batch), options.dtype.c_str(),
      static_cast<double>(options.bucket_bytes) / kMebibyte, step_us, static_cast<double>(bench.rows()) / step_us * 1e6,
      bench.last_loss());
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto exit_code = sr::serve_if_worker(argc, argv)) return *exit_code;
  const auto options = parse_options(argc, argv);
  if (!options) {
    std::fprintf(stderr,
                 "usage: [syncrun -n N] bench_resnet_step [--depth 18|34|50|101|152] [--batch ROWS_PER_DEVICE]\n"
                 "                         [--steps N] [--samples N] [--dtype float32|tf32|bfloat16]\n"
                 "                         [--buckets MIB_OF_GRADIENT (0: off)]\n");
    return 2;
  }
  return sr::run(argc, argv, [&](sr::Session& session) { run_bench(session, *options); });
}

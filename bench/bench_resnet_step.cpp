// Measures a training step of the ResNet demo: crop, loss, gradient, all_reduce and update by momentum. A feed says
// where the rows come from:
//   shuffled   from shared memory, by shuffled index
//   mapped     from a file, by shuffled index
//   synthetic  from the devices, where one batch already is. This is the best possible feed
// For each feed, it prints a JSON line with images per second. Two steps are in flight, as in the demo. Several feeds
// are sampled in turn. "gib" is the growth of the memory in use on the device from the start to the end, for all feeds
// of the run, on the rank where it is largest (cudaMemGetInfo). `syncrun` chooses the devices. CPU devices are only for
// tests of this program.
//
//   syncrun -n 8 bench_resnet_step --batch 256 --steps 30 --dtype bfloat16
//   syncrun -n 8 bench_resnet_step --buckets 0     # averages gradients after the backward pass, not during it
//   syncrun -n 8 bench_resnet_step --batch 256 --steps 30 --dtype bfloat16 --feed shuffled,mapped,synthetic

#include <getopt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <ranges>
#include <string>
#include <string_view>
#include <syncrun/syncrun.hpp>
#include <utility>
#include <vector>

#include "demos/resnet/network/parameters.hpp"
#include "demos/resnet/program/trainer.hpp"
#include "demos/resnet/program/training_step.hpp"
#include "tests/support/temporary_folder.hpp"
#ifdef RESNET_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "demos/common/cuda_check.hpp"
#endif

namespace {

namespace sr = syncrun;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kClasses = 1000;
constexpr std::int64_t kImageSize = 256;  // of a stored image; the network gets a crop of 224
constexpr std::size_t kCrop = 224;
constexpr double kMebibyte = 1 << 20;

enum class Feed { kShuffled, kMapped, kSynthetic };
constexpr std::array<std::pair<std::string_view, Feed>, 3> kFeeds{
    {{"shuffled", Feed::kShuffled}, {"mapped", Feed::kMapped}, {"synthetic", Feed::kSynthetic}}};

std::string_view name_of(Feed feed) {
  return std::find_if(kFeeds.begin(), kFeeds.end(), [&](const auto& known) { return known.second == feed; })->first;
}

struct Options {
  int depth = 50;
  std::int64_t batch = 256;  // per device
  std::size_t steps = 30;    // per sample
  int samples = 5;
  resnet::Precision precision = resnet::Precision::kBfloat16;
  std::string dtype = "bfloat16";
  std::size_t bucket_bytes = sr::TrainStepOptions{}.bucket_bytes;
  std::vector<Feed> feeds{Feed::kShuffled};
};

std::optional<resnet::Precision> precision_of(std::string_view name) {
  if (name == "float32") return resnet::Precision::kFloat32;
  if (name == "tf32") return resnet::Precision::kTf32;
  if (name == "bfloat16") return resnet::Precision::kBfloat16;
  return std::nullopt;
}

/// Parses a list of feeds, for example "shuffled,synthetic". Empty if it is not such a list.
std::vector<Feed> feeds_of(std::string_view list) {
  std::vector<Feed> feeds;
  for (const auto part : std::views::split(list, ',')) {
    const std::string_view name(part.begin(), part.end());
    const auto found = std::find_if(kFeeds.begin(), kFeeds.end(), [&](const auto& feed) { return feed.first == name; });
    if (found == kFeeds.end()) return {};
    feeds.push_back(found->second);
  }
  return feeds;
}

std::optional<Options> parse_options(int argc, char** argv) {
  const std::array long_options{
      option{"batch", required_argument, nullptr, 'b'},   option{"steps", required_argument, nullptr, 's'},
      option{"samples", required_argument, nullptr, 'n'}, option{"dtype", required_argument, nullptr, 't'},
      option{"depth", required_argument, nullptr, 'd'},   option{"buckets", required_argument, nullptr, 'k'},
      option{"feed", required_argument, nullptr, 'f'},    option{}};
  Options options;
  for (int chosen = 0; (chosen = getopt_long(argc, argv, "", long_options.data(), nullptr)) != -1;) {
    if (chosen == 'b') options.batch = std::strtoll(optarg, nullptr, 10);
    else if (chosen == 's') options.steps = std::strtoull(optarg, nullptr, 10);
    else if (chosen == 'n') options.samples = std::atoi(optarg);
    else if (chosen == 'd') options.depth = std::atoi(optarg);
    else if (chosen == 't') options.dtype = optarg;
    else if (chosen == 'k') options.bucket_bytes = static_cast<std::size_t>(std::strtod(optarg, nullptr) * kMebibyte);
    else if (chosen == 'f') options.feeds = feeds_of(optarg);
    else return std::nullopt;
  }
  const auto precision = precision_of(options.dtype);
  const bool is_good = precision && optind == argc && options.batch >= 1 && options.steps != 0 &&
                       options.samples >= 1 && !options.feeds.empty();
  if (!is_good) return std::nullopt;
  options.precision = *precision;
  return options;
}

/// Random images in shared memory. The time of a step does not depend on their contents.
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

/// Writes the images to a file and maps it. The file has no name afterwards, so it disappears with its last user.
sr::Data<std::uint8_t, 4> map_copy(sr::Session& session, const sr::Data<std::uint8_t, 4>& images) {
  const TemporaryFolder folder;
  sr::save(folder / "images.npy", images);
  return session.map_npy<std::uint8_t, 4>(folder / "images.npy");
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// The GiB in use on the device of each rank. 0 on CPU devices.
sr::Stack<double, 1> device_memory_on_cpu(sr::CpuWorker&) { return {0.0}; }
#ifdef RESNET_HAVE_CUDA
sr::Stack<double, 1> device_memory(sr::CudaWorker&) {
  std::size_t free = 0;
  std::size_t all = 0;
  demos::check_cuda(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  return {static_cast<double>(all - free) / 0x1p30};
}
#endif

std::vector<double> memory_in_use(sr::Session& session) {
#ifdef RESNET_HAVE_CUDA
  return session.function(device_memory_on_cpu, device_memory)().to_vector();
#else
  return session.function(device_memory_on_cpu)().to_vector();
#endif
}

/// The growth on the rank where it is largest.
double growth(const std::vector<double>& before, const std::vector<double>& after) {
  double most = 0;
  for (std::size_t rank = 0; rank < before.size(); ++rank) most = std::max(most, after[rank] - before[rank]);
  return most;
}

struct Measured {
  std::vector<double> step_us;  // by sample
  double last_loss = 0;
};

class Bench {
 public:
  Bench(sr::Session& session, const Options& options)
      : session_(session),
        options_(options),
        rows_(options.batch * session.world_size()),
        architecture_(resnet::plan({.depth = options.depth, .image_size = kCrop, .classes = kClasses})),
        data_(session, 2 * rows_),
        params_(session.shared("params", resnet::initial_parameters(architecture_, 1, resnet::ResidualScale::kOne))),
        statistics_(session.shared("statistics", resnet::initial_statistics(architecture_))),
        trainer_(session.replicate<resnet::Trainer>(settings())) {}

  /// Samples the feeds in turn, in alternating order. The first sample of each feed is a warm-up.
  std::vector<Measured> measure() {
    std::vector<std::unique_ptr<resnet::TrainingStep>> steps;
    for (const Feed feed : options_.feeds) steps.push_back(step_of(feed));
    const auto batches = shuffled();
    std::vector<Measured> measured(steps.size());
    for (int sample = -1; sample < options_.samples; ++sample) {
      for (std::size_t i = 0; i < steps.size(); ++i) {
        const std::size_t feed = sample % 2 == 0 ? i : steps.size() - 1 - i;
        const double step_us = run(*steps[feed], batches, measured[feed].last_loss);
        if (sample >= 0) measured[feed].step_us.push_back(step_us);
      }
    }
    return measured;
  }

  std::int64_t rows() const { return rows_; }

 private:
  resnet::TrainerSettings settings() const {
    return {.architecture = architecture_.spec,
            .preparation = resnet::imagenet_preparation(kCrop),
            .loss = {},
            .precision = options_.precision};
  }

  std::unique_ptr<resnet::TrainingStep> step_of(Feed feed) {
    const auto make = [&](const resnet::TrainingRows& rows) {
      return resnet::make_training_step(session_, trainer_, rows, statistics_, params_, {},
                                        {.name = "step", .bucket_bytes = options_.bucket_bytes});
    };
    if (feed == Feed::kShuffled) return make(resnet::SharedImages{data_.images, data_.labels, data_.ids});
    if (feed == Feed::kMapped) {
      return make(resnet::SharedImages{map_copy(session_, data_.images), data_.labels, data_.ids});
    }
    resnet::DeviceImages rows{session_.shared<std::uint8_t, 4>(), session_.shared<std::int64_t, 1>(),
                              session_.shared<std::int64_t, 1>()};
    const sr::ScatterOptions first_batch{.batch = sr::Slice{0, rows_}};
    rows.images.scatter(data_.images, first_batch);
    rows.labels.scatter(data_.labels, first_batch);
    rows.ids.scatter(data_.ids, first_batch);
    return make(rows);
  }

  /// Makes batches of random rows.
  std::vector<std::vector<std::int64_t>> shuffled() const {
    std::mt19937_64 random(2);
    std::uniform_int_distribution<std::int64_t> row(0, 2 * rows_ - 1);
    std::vector<std::vector<std::int64_t>> batches(8, std::vector<std::int64_t>(static_cast<std::size_t>(rows_)));
    for (auto& batch : batches) std::generate(batch.begin(), batch.end(), [&] { return row(random); });
    return batches;
  }

  /// Runs steps with these batches in turn. Returns the microseconds per step.
  double run(resnet::TrainingStep& step, const std::vector<std::vector<std::int64_t>>& batches, double& last_loss) {
    const auto launch = [&](std::size_t i) {
      const resnet::StepInput input{{.seed = 1, .step = step_number_++, .is_random = true}};
      return step.launch(batches[i % batches.size()], 1, input, 1e-3);
    };
    const auto start = Clock::now();
    auto flying = launch(0);
    for (std::size_t i = 1; i < options_.steps; ++i) {
      auto next = launch(i);
      last_loss = flying.get().loss;
      flying = std::move(next);
    }
    last_loss = flying.get().loss;
    const std::chrono::duration<double, std::micro> elapsed = Clock::now() - start;
    return elapsed.count() / static_cast<double>(options_.steps);
  }

  sr::Session& session_;
  Options options_;
  std::int64_t rows_;
  resnet::Architecture architecture_;
  Images data_;
  sr::Shared<float, 1> params_;
  sr::Shared<float, 1> statistics_;
  sr::Replicated<resnet::Trainer> trainer_;
  std::uint32_t step_number_ = 0;
};

void run_bench(sr::Session& session, const Options& options) {
  const std::vector<double> memory_before = memory_in_use(session);
  Bench bench(session, options);
  const std::vector<Measured> measured = bench.measure();
  const double gib = growth(memory_before, memory_in_use(session));
  for (std::size_t i = 0; i < measured.size(); ++i) {
    const double step_us = median(measured[i].step_us);
    std::printf(
        "{\"bench\":\"resnet_step\",\"devices\":%d,\"depth\":%d,\"batch\":%lld,\"dtype\":\"%s\",\"feed\":\"%s\","
        "\"bucket_mib\":%.1f,\"median_us\":%.1f,\"images_per_s\":%.1f,\"gib\":%.2f,\"last_loss\":%.6f}\n",
        session.world_size(), options.depth, static_cast<long long>(options.batch), options.dtype.c_str(),
        std::string(name_of(options.feeds[i])).c_str(), static_cast<double>(options.bucket_bytes) / kMebibyte, step_us,
        static_cast<double>(bench.rows()) / step_us * 1e6, gib, measured[i].last_loss);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto exit_code = sr::serve_if_worker(argc, argv)) return *exit_code;
  const auto options = parse_options(argc, argv);
  if (!options) {
    std::fprintf(
        stderr,
        "usage: [syncrun -n N] bench_resnet_step [--depth 18|34|50|101|152] [--batch ROWS_PER_DEVICE]\n"
        "                         [--steps N] [--samples N] [--dtype float32|tf32|bfloat16]\n"
        "                         [--feed shuffled|mapped|synthetic,...] [--buckets MIB_OF_GRADIENT (0: off)]\n");
    return 2;
  }
  return sr::run(argc, argv, [&](sr::Session& session) { run_bench(session, *options); });
}

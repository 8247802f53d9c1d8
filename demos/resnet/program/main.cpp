// Trains a residual network on images on every device at once. This is a serial program: main and train run once, in
// the master process. loss_and_gradient and evaluate (trainer.hpp) run on all workers at the same time. Each worker
// computes its own rows.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/common/cuda_build.hpp"
#include "demos/common/progress_bar.hpp"
#include "demos/resnet/network/memory_need.hpp"
#include "demos/resnet/network/parameters.hpp"
#include "demos/resnet/program/checkpoints.hpp"
#include "demos/resnet/program/dataset.hpp"
#include "demos/resnet/program/functions.hpp"
#include "demos/resnet/program/options.hpp"
#include "demos/resnet/program/plan_agreement.hpp"
#include "demos/resnet/program/report.hpp"
#include "demos/resnet/program/schedule.hpp"
#include "demos/resnet/program/trainer.hpp"
#include "demos/resnet/program/trainer_plans.hpp"
#include "demos/resnet/program/training_step.hpp"

namespace resnet {
namespace {

using Clock = std::chrono::steady_clock;
using Indices = std::span<const std::int64_t>;

/// The number of steps in flight. With two, workers fetch the rows of the next step while they compute one.
constexpr std::size_t kStepsInFlight = 2;
constexpr std::size_t kUsualCrop = 224;
constexpr std::int64_t kSyntheticClasses = 1000;

Dataset open_dataset(const Options& options) {
  if (options.synthetic_rows == 0) {
    return Dataset(DatasetOptions{options.data, options.evaluate_fraction, options.classes, options.seed});
  }
  return Dataset(SyntheticOptions{options.synthetic_rows, options.crop.value_or(kUsualCrop), options.evaluate_fraction,
                                  options.classes.value_or(kSyntheticClasses), options.seed});
}

std::size_t crop_of(const Options& options, const ImageShape& shape) {
  const std::size_t largest = std::min(shape.height, shape.width);
  const std::size_t crop = options.crop.value_or(std::min(kUsualCrop, largest));
  if (crop <= largest) return crop;
  throw UsageError("--crop: expected at most " + std::to_string(largest) + ", the smaller side of the images, got '" +
                   std::to_string(crop) + "'");
}

Architecture plan_for(const Options& options, const Dataset& dataset) {
  return plan({.depth = options.depth,
               .image_size = crop_of(options, dataset.shape()),
               .classes = static_cast<std::size_t>(dataset.classes()),
               .width = options.width});
}

std::int64_t quotient_up(std::int64_t whole, std::int64_t part) { return (whole + part - 1) / part; }

/// The training rows in the order of an epoch. The order is a function of the seed and the number of the epoch.
std::vector<std::int64_t> epoch_order(const Dataset& dataset, int epoch) {
  std::vector<std::int64_t> order = dataset.training_rows();
  std::seed_seq seeds{static_cast<std::uint32_t>(dataset.seed()), static_cast<std::uint32_t>(dataset.seed() >> 32),
                      static_cast<std::uint32_t>(epoch)};
  std::mt19937_64 random(seeds);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

/// Calls `launch(i)` for every i below `count`, and `finish(i, result)` in the same order. Up to kStepsInFlight calls
/// are in flight at a time.
template <class Launch, class Finish>
void pipeline(std::int64_t count, Launch&& launch, Finish&& finish) {
  std::deque<sr::Future<Fit>> flights;
  for (std::int64_t i = 0, done = 0; done < count;) {
    if (i < count && flights.size() < kStepsInFlight) {
      flights.push_back(launch(i++));
      continue;
    }
    const Fit fit = flights.front().get();
    flights.pop_front();
    finish(done++, fit);
  }
}

/// The number of slices of an evaluation, at most one per row. It is the number that the user has given. Otherwise it
/// is chosen so that a pass of an evaluation is no larger than a pass of a step.
std::int64_t evaluation_slices(const Options& options, const Dataset& dataset) {
  const std::int64_t rows = std::ssize(dataset.evaluation_rows());
  if (options.evaluation_slices != 0) return std::min(options.evaluation_slices, rows);
  const std::int64_t step_rows = std::min(options.batch_rows, std::ssize(dataset.training_rows()));
  return quotient_up(rows, std::max<std::int64_t>(1, step_rows / options.slices));
}

std::size_t bucket_bytes(const Options& options) {
  return static_cast<std::size_t>(options.bucket_mebibytes * (1 << 20));
}

/// The number of rows that lie on the devices: the rows of one step.
std::int64_t device_rows(const Options& options) { return std::min(options.batch_rows, options.synthetic_rows); }

/// The rows of all passes that a worker makes over its network.
PassRows passes_of(const Options& options, const Dataset& dataset, bool evaluates, int ranks) {
  const auto step_of = [&](std::int64_t rows) { return Division{rows, std::min(options.slices, rows)}; };
  std::vector<Division> steps;
  if (options.feed() == Feed::kDevice) {
    steps = {step_of(device_rows(options))};
  } else {
    const std::int64_t rows = std::ssize(dataset.training_rows());
    steps = {step_of(std::min(options.batch_rows, rows))};
    if (const std::int64_t last = rows % options.batch_rows; last > 0) steps.push_back(step_of(last));
  }
  if (!evaluates) return rows_of_passes(ranks, steps, std::nullopt);
  const Division evaluation{std::ssize(dataset.evaluation_rows()), evaluation_slices(options, dataset)};
  return rows_of_passes(ranks, steps, evaluation);
}

/// Everything that an epoch needs.
struct Run {
  const Options& options;
  const Dataset& dataset;
  TrainingStep& step;
  const Checkpoints& checkpoints;
  Report& report;

  std::int64_t training_rows() const { return std::ssize(dataset.training_rows()); }
  /// The number of slices for a batch of `rows` rows. The last batch of an epoch may have fewer rows than
  /// options.slices.
  std::int64_t slices_of(std::int64_t rows) const { return std::min(options.slices, rows); }
  std::int64_t steps_per_epoch() const { return quotient_up(training_rows(), options.batch_rows); }
  Schedule schedule() const {
    const auto per_epoch = static_cast<double>(steps_per_epoch());
    return {options.rule.learning_rate, std::llround(options.warmup() * per_epoch), options.epochs * steps_per_epoch()};
  }
};

/// Ends the run because training has diverged. `seen` says what was observed at a step of an epoch, both counted from
/// 1.
[[noreturn]] void diverge(const Run& run, const std::string& seen, int epoch, std::int64_t step) {
  throw std::runtime_error(seen + " step " + std::to_string(step) + " of epoch " + std::to_string(epoch) +
                           ": a smaller --lr or more --warmup-epochs may help; " + run.checkpoints.last());
}

/// Checks for divergence after an epoch. This is necessary because no training loss shows the effect of the last
/// update.
void check_epoch(const Run& run, int epoch, const std::optional<Sums>& evaluation, const Progress& progress) {
  const std::int64_t last_step = run.steps_per_epoch();
  if (evaluation && !std::isfinite(evaluation->mean_loss()))
    diverge(run, "the evaluation loss is " + std::to_string(evaluation->mean_loss()) + " after", epoch, last_step);
  if (run.checkpoints.is_due(epoch) && !is_finite(progress))
    diverge(run, "what was learnt is not finite after", epoch, last_step);
}

/// One pass over the training rows, batch by batch. The last batch may be smaller.
Sums train_epoch(const Run& run, int epoch) {
  const std::vector<std::int64_t> order = epoch_order(run.dataset, epoch);
  const std::int64_t steps = run.steps_per_epoch();
  const Schedule schedule = run.schedule();
  const std::int64_t first_step = run.step.steps();
  // The rate depends on the number of epochs and not on all steps so far, because batches may have had another size
  // before the run was resumed.
  const auto rate_at = [&](std::int64_t i) { return learning_rate(schedule, (epoch - 1) * steps + i); };
  demos::ProgressBar bar(stdout, "epoch " + std::to_string(epoch), static_cast<std::size_t>(steps));
  const auto batch_of = [&](std::int64_t i) {
    const auto first = static_cast<std::size_t>(i * run.options.batch_rows);
    return Indices(order).subspan(first,
                                  std::min(static_cast<std::size_t>(run.options.batch_rows), order.size() - first));
  };

  const auto rows_of = [&](std::int64_t i) -> std::int64_t {
    return run.options.feed() == Feed::kDevice ? device_rows(run.options) : std::ssize(batch_of(i));
  };

  const auto launch = [&](std::int64_t i) {
    const StepInput input{{.seed = run.options.seed,
                           .step = static_cast<std::uint32_t>(first_step + i),
                           .is_random = true,
                           .mirrors = run.options.mirrors}};
    return run.step.launch(batch_of(i), run.slices_of(rows_of(i)), input, rate_at(i));
  };

  Sums all;
  Sums recent;
  Clock::time_point since = Clock::now();
  const auto finish = [&](std::int64_t i, const Fit& fit) {
    if (!std::isfinite(fit.loss)) diverge(run, "the loss is " + std::to_string(fit.loss) + " at", epoch, i + 1);
    for (Sums* sums : {&all, &recent}) sums->add(rows_of(i), fit.loss, fit.correct);
    bar.update(static_cast<std::size_t>(i) + 1, fit.loss);
    if ((i + 1) % run.options.interval != 0) return;
    bar.wipe();
    const Clock::time_point now = Clock::now();
    run.report.interval({epoch, i + 1, steps, recent, rate_at(i), now - since});
    recent = {};
    since = now;
  };
  pipeline(steps, launch, finish);
  return all;
}

TrainerSettings settings_of(const Options& options, const Architecture& architecture) {
  return {.architecture = architecture.spec,
          .preparation = imagenet_preparation(architecture.spec.image_size),
          .loss = {.label_smoothing = options.label_smoothing},
          .normalization = options.normalization,
          .precision = options.precision};
}

/// The images of a session.
struct Images {
  TrainingRows training;
  std::optional<SharedImages> evaluation;  // empty if the training rows lie on the devices
};

Images bring_images(sr::Session& session, const Options& options, const Dataset& dataset) {
  if (options.feed() == Feed::kDevice) return {place_on_devices(session, dataset, device_rows(options)), std::nullopt};
  const FileAccess access = options.feed() == Feed::kMapped ? FileAccess::kMapped : FileAccess::kCopied;
  const SharedDataset loaded = load(session, dataset, access);
  return {loaded.training, loaded.evaluation};
}

/// The objects that read files before a worker is started, and write files while the workers run.
struct Records {
  Report report;
  Checkpoints checkpoints;
  RunPlans plans;
};

void train(sr::Session& session, const Options& options, const Dataset& dataset, const Images& images,
           const Architecture& architecture, Records& records) {
  auto& [report, checkpoints, plans] = records;
  // The parameters are one flat vector, the same on every device. During an epoch, each device has its own running
  // statistics.
  const auto params = session.shared("params", initial_parameters(architecture, options.seed, options.last_scale));
  auto statistics = session.shared("statistics", initial_statistics(architecture));

  // A network on every worker. Its methods become functions that this program calls.
  const auto trainer = session.replicate<Trainer>(settings_of(options, architecture));
  const auto step = make_training_step(session, trainer, images.training, statistics, params, options.rule,
                                       {.name = "step", .bucket_bytes = bucket_bytes(options)});
  const auto evaluate_rows = evaluate_function(session, trainer);

  const Indices to_evaluate = dataset.evaluation_rows();
  const bool evaluates = !to_evaluate.empty() && images.evaluation;
  const auto evaluate = [&]() -> std::optional<Sums> {
    if (!evaluates) return std::nullopt;
    const std::int64_t slices = evaluation_slices(options, dataset);
    const Fit fit = evaluate_rows(images.evaluation->images, images.evaluation->labels, statistics, params,
                                  {.batch = to_evaluate, .slices = slices});
    Sums sums;
    sums.add(std::ssize(to_evaluate), fit.loss, fit.correct);
    return sums;
  };

  const Run run{options, dataset, *step, checkpoints, report};
  report.start(architecture, dataset, run.steps_per_epoch(), session.devices());
  plans.settle(session, trainer, passes_of(options, dataset, evaluates, session.world_size()), checkpoints, report);
  const Progress progress{params, statistics, *step};
  std::optional<Sums> last;
  for (int epoch = 1 + checkpoints.resume(progress, report); epoch <= options.epochs; ++epoch) {
    const auto started = Clock::now();
    const Sums training = train_epoch(run, epoch);
    const auto elapsed = Clock::now() - started;
    if (options.normalization == Normalization::kPerDevice) statistics.all_reduce(sr::Reduction::avg);
    last = evaluate();
    report.epoch({epoch, training, last, elapsed});
    check_epoch(run, epoch, last, progress);
    checkpoints.save(epoch, progress);
  }
  if (!last) last = evaluate();  // all epochs were finished before
  if (last) report.evaluation_accuracy(last->accuracy());
}

/// Returns the result of `work`. If it throws because memory ran out, adds `advice` to the message. Other errors stay
/// as they are.
template <class Work>
auto with_advice(const std::string& advice, Work&& work) {
  try {
    return work();
  } catch (const sr::Error& error) {
    const bool is_code = error.kind() == sr::ErrorKind::system && error.native_code() == ENOMEM;  // thrown by Syncrun
    if (!is_code && !tells_of_short_memory(error.what())) throw;
    throw sr::Error(error.kind(), std::string(error.what()) + "\nif memory is short: " + advice, error.failure(),
                    error.native_code());
  }
}

std::string advice_on_images(const Options& options) {
  if (options.feed() != Feed::kMemory) return "--batch N makes a batch smaller";
  return options.synthetic_rows == 0 ? "--feed mapped leaves images in their files"
                                     : "--synthetic N makes fewer images";
}

/// Makes the OpenMP threads of a worker (oneDNN may use OpenMP) sleep while they wait for each other. If other programs
/// need the cores, spinning makes a step ten times as long. A value that the user has set stays. Workers inherit the
/// variable.
void let_threads_sleep() { ::setenv("OMP_WAIT_POLICY", "passive", 0); }

int run(int argc, char** argv) {
  const auto options = parse_options(argc, argv);
  if (!options) {
    std::fputs(help_text().c_str(), stdout);
    return 0;
  }
  const Dataset dataset = open_dataset(*options);
  const Architecture architecture = plan_for(*options, dataset);
  Records records{Report(*options), Checkpoints(*options, architecture, dataset), RunPlans(*options)};
  let_threads_sleep();
  const auto program = [&](sr::Session& session) {
    const Images images =
        with_advice(advice_on_images(*options), [&] { return bring_images(session, *options, dataset); });
    with_advice("--slices N computes a step in N passes, --eval-slices N an evaluation, --batch N makes a step smaller",
                [&] { train(session, *options, dataset, images, architecture, records); });
  };
  // A worker that has loaded large libraries takes long to end on a busy machine.
  return sr::run(argc, argv, program, {.grace = std::chrono::seconds(60), .seed = options->seed});
}

}  // namespace
}  // namespace resnet

int main(int argc, char** argv) {
  const std::string why_without_cuda = demos::run_cuda_build(argv, RESNET_NVRTC);
  if (const auto exit_code = syncrun::serve_if_worker(argc, argv)) return *exit_code;  // a worker ends here
  if (!why_without_cuda.empty()) std::fprintf(stderr, "syncrun-resnet: %s\n", why_without_cuda.c_str());
  try {
    return resnet::run(argc, argv);
  } catch (const std::exception& bad_input) {  // found before any worker has been started
    std::fprintf(stderr, "syncrun-resnet: %s\n", bad_input.what());
    return 2;
  }
}

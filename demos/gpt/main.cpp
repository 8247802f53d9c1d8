// Trains a language model in the style of GPT-2 on all devices at once, and lets it write a text. This is a serial
// program: main and train run once, in the master process. The functions of losses.hpp run on all workers at the same
// time. Each worker computes its own windows of the text.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <syncrun/syncrun.hpp>
#include <syncrun/torch.hpp>
#include <type_traits>
#include <vector>

#include "demos/common/progress_bar.hpp"
#include "demos/gpt/checkpoints.hpp"
#include "demos/gpt/hardware.hpp"
#include "demos/gpt/losses.hpp"
#include "demos/gpt/options.hpp"
#include "demos/gpt/published_weights.hpp"
#include "demos/gpt/report.hpp"
#include "demos/gpt/sampling.hpp"
#include "demos/gpt/token_files.hpp"
#include "demos/gpt/windows.hpp"

namespace gpt {
namespace {

/// A text on CPU devices: a file that every process maps.
using MappedText = sr::Data<std::uint16_t, 1>;
/// A text on GPUs: a copy in the memory of each.
using CopiedText = sr::Shared<std::uint16_t, 1>;

/// A divided model whose blocks are gathered and computed in bfloat16.
constexpr lt::ShardOptions kMixed{.gather = lt::UnitType::bfloat16};

/// A model on every device: a Replica or a ShardedReplica.
template <class Model>
using Net = sr::Replicated<Model>;

/// Copies a text to every device. Throws UsageError if a token is not in the vocabulary, which a GPU would not notice.
CopiedText copy_to_devices(sr::Session& session, const MappedText& text, std::int64_t vocab_size) {
  const auto tokens = text.span();
  const auto largest = std::max_element(tokens.begin(), tokens.end());
  if (largest != tokens.end() && *largest >= vocab_size) {
    throw UsageError("expected tokens below " + std::to_string(vocab_size) + ", found " + std::to_string(*largest) +
                     " at position " + std::to_string(largest - tokens.begin()) + ": vocab.txt is of other tokens");
  }
  auto copy = session.shared<std::uint16_t, 1>();
  copy.broadcast(tokens);
  return copy;
}

/// What calls pass for a text.
template <class Tokens>
Tokens make_tokens(sr::Session& session, const MappedText& text, const Options& options) {
  if constexpr (std::is_same_v<Tokens, MappedText>) return text;
  else return copy_to_devices(session, text, options.model.vocab_size);
}

/// A text, and its windows for evaluations.
template <class Tokens>
struct Text {
  Text(sr::Session& session, const TokenFile& file, const Options& options)
      : range{file.tokens, options.model.block_size + 1},
        mapped(session.map_raw<std::uint16_t, 1>(file.path, {-1}, 0, file.path.filename().string())),
        tokens(make_tokens<Tokens>(session, mapped, options)),
        some(session.data(spread_windows(range, options.eval_iters * options.batch_size), "windows")) {}

  WindowRange range;
  MappedText mapped;
  Tokens tokens;
  sr::Data<std::int64_t, 1> some;
};

template <class Tokens>
struct Texts {
  Text<Tokens> training;
  Text<Tokens> held_out;
};

/// The parts of the parameters without weight decay: biases and the weights of norms, which have one dimension.
template <class Model>
std::vector<sr::ParameterGroup> without_decay(sr::Session& session, const Net<Model>& net) {
  std::vector<sr::ParameterGroup> groups;
  for (const auto& part : lt::parts(session, net)) {
    if (part.dimensions < 2) groups.push_back({.begin = part.begin, .end = part.end, .weight_decay = 0});
  }
  return groups;
}

sr::Adam rule_at(const Options& options, std::int64_t step) {
  const double factor = sr::warm_up(step, options.warmup_iters) *
                        sr::cosine_decay(step, {.begin = options.warmup_iters,
                                                .end = options.lr_decay_iters,
                                                .lowest = options.min_lr / options.learning_rate});
  return {.learning_rate = options.learning_rate * factor,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .decoupled_weight_decay = options.weight_decay};
}

/// The mean loss of these windows. A pass has no more of them than a pass of a step.
template <class Evaluate, class Tokens>
double mean_loss(const Evaluate& evaluate, const Options& options, const Tokens& text,
                 const sr::Data<std::int64_t, 1>& windows) {
  const std::int64_t most_in_pass = std::max<std::int64_t>(1, options.batch_size / options.slices);
  return evaluate(text, windows, StepKey{}, {.slices = (windows.rows() + most_in_pass - 1) / most_in_pass});
}

/// The mean number of bytes that a token of this text stands for.
double bytes_per_token(const Vocabulary& vocabulary, const MappedText& text) {
  double bytes = 0;
  for (const std::uint16_t token : text.span()) bytes += static_cast<double>(vocabulary.text_of(token).size());
  return bytes / static_cast<double>(text.rows());
}

/// Prints a text that continues the prompt. The device of rank 0 computes the scores of each next token, and the master
/// chooses. With --sharded, all devices gather the blocks for it.
template <class Model>
void write_sample(sr::Session& session, const Options& options, const Vocabulary& vocabulary, const Net<Model>& net,
                  const Vector& params, Report& report) {
  if (options.max_new_tokens == 0) return;
  const auto scores_after = lt::evaluation<next_scores>(session, net, params);
  std::vector<std::int64_t> tokens = vocabulary.encode(options.prompt);
  report.text("---\n" + options.prompt);
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    const auto length = std::min(tokens.size(), static_cast<std::size_t>(options.model.block_size));
    const auto context = std::span(tokens).last(length);
    const auto scores = scores_after(session.data(context, sr::Shape<2>(1, length), "context"));
    tokens.push_back(choose_token(scores.span(), options.sampling, options.seed, i));
    report.text(vocabulary.text_of(tokens.back()));
  }
  report.text("\n---\n");
}

/// The objects that read and write files of the run.
struct Records {
  Report report;
  Checkpoints checkpoints;
  lt::LoadOptions loading;  // of --init-from
};

/// The time of steps, without the evaluations between them.
class StepClock {
 public:
  explicit StepClock(std::int64_t first_step) : step_(first_step) {}
  /// Calls `work`, whose time does not count.
  template <class Work>
  void pause(Work&& work) {
    const Time begin = std::chrono::steady_clock::now();
    work();
    since_ += std::chrono::steady_clock::now() - begin;
  }
  /// Fills in the time and the number of steps since the last call, up to `interval.step`.
  void measure(Interval& interval) {
    const Time now = std::chrono::steady_clock::now();
    interval.elapsed = now - since_;
    interval.steps = interval.step + 1 - step_;
    since_ = now;
    step_ = interval.step + 1;
  }

 private:
  using Time = std::chrono::steady_clock::time_point;
  Time since_ = std::chrono::steady_clock::now();
  std::int64_t step_;
};

/// A bar up to the next evaluation after step `from`.
std::unique_ptr<demos::ProgressBar> bar_from(const Options& options, std::int64_t from) {
  const std::int64_t to = std::min((from / options.eval_interval + 1) * options.eval_interval, options.max_iters);
  return std::make_unique<demos::ProgressBar>(stdout, "to step " + std::to_string(to),
                                              static_cast<std::size_t>(to - from));
}

/// Trains from the steps that `step` has made to the last one. Returns false if the program was told to stop before that.
template <class Step, class Evaluate, class Tokens>
bool train_steps(const Options& options, Step& step, const Evaluate& evaluate, const Texts<Tokens>& texts,
                 sr::Data<std::int64_t, 1> starts, const Progress& progress, Records& records) {
  auto& report = records.report;
  auto& checkpoints = records.checkpoints;
  const std::int64_t first = step.steps();
  StepClock clock(first);
  std::unique_ptr<demos::ProgressBar> bar;
  std::int64_t bar_begin = first;
  for (std::int64_t i = first;; ++i) {
    bool stops = false;
    clock.pause([&] { stops = i != first && checkpoints.save(i, progress); });
    if (stops) return false;
    if (i % options.eval_interval == 0 || i >= options.max_iters) {
      bar.reset();
      clock.pause([&] {
        report.evaluation(i, {mean_loss(evaluate, options, texts.training.tokens, texts.training.some),
                              mean_loss(evaluate, options, texts.held_out.tokens, texts.held_out.some)});
      });
    }
    if (i >= options.max_iters) return true;

    if (!bar) bar = bar_from(options, bar_begin = i);
    starts.set(random_windows(texts.training.range, options.batch_size, options.seed, i));
    const sr::Adam rule = rule_at(options, i);
    const double value =
        step(texts.training.tokens, starts, StepKey{options.seed, i}, rule, {.slices = options.slices});
    report.loss(i, value);
    bar->update(static_cast<std::size_t>(i + 1 - bar_begin), value);
    if (i % options.log_interval != 0) continue;
    bar->wipe();
    Interval interval;
    interval.step = i;
    interval.loss = value;
    interval.learning_rate = rule.learning_rate;
    if (options.grad_clip != 0) interval.gradient_norm = step.gradient_norm();
    clock.measure(interval);
    report.interval(interval);
  }
}

sr::StepForm form_of(Sharding sharding) {
  if (sharding == Sharding::kModel) return sr::StepForm::fully_sharded;
  return sharding == Sharding::kState ? sr::StepForm::sharded : sr::StepForm::replicated;
}

template <class Model>
Progress progress_of(sr::Session& session, const Net<Model>& net, const Vector& params,
                     const std::array<Vector, 2>& state) {
  return {params, state,
          [&session, net](const Vector& vector, const std::filesystem::path& file) {
            lt::save(session, net, vector, file);
          },
          [&session, net](Vector& vector, const std::filesystem::path& file) { lt::load(session, net, vector, file); }};
}

/// Returns the exit code.
template <class Model, auto kLoss, lt::Replay kReplay, class Tokens>
int train(sr::Session& session, const Options& options, const TokenFiles& files, Records& records) {
  auto& [report, checkpoints, loading] = records;
  const Texts<Tokens> texts{{session, files.training(), options}, {session, files.held_out(), options}};

  // A model on every worker. Model is lt::ShardedReplica<Gpt> with --sharded, otherwise lt::Replica<Gpt>.
  // [model]
  const Net<Model> net = session.replicate<Model>(options.seed, options.model);
  auto params = lt::parameters(session, net);
  // [/model]
  report.start(files, session.devices(), hardware_name(session));
  if (!options.init_from.empty() && !checkpoints.will_resume()) {
    lt::load(session, net, params, options.init_from, loading);
    report.begin_from(options.init_from.string());
  }
  // [step]
  const sr::TrainStepOptions how{.form = form_of(options.sharding),
                                 .name = "step",
                                 .groups = without_decay(session, net),
                                 .clip_norm = options.grad_clip};
  auto step = lt::train_step<sr::Adam, kLoss, lt::BackwardOptions{.replay = kReplay}>(session, net, params, how);
  // [/step]
  const auto evaluate = lt::evaluation<kLoss>(session, net, params);

  const Progress progress = progress_of(session, net, params, step.state());
  step.set_steps(checkpoints.resume(progress));
  if (step.steps() != 0) report.resume(step.steps());
  const auto starts = session.data<std::int64_t, 1>({options.batch_size}, "starts");
  if (!train_steps(options, step, evaluate, texts, starts, progress, records)) return sr::kRequeueExitCode;

  const auto all = session.data(spread_windows(texts.held_out.range, 0), "windows");
  report.held_out(mean_loss(evaluate, options, texts.held_out.tokens, all),
                  bytes_per_token(files.vocabulary(), texts.held_out.mapped));
  if (!options.save.empty()) {
    lt::save(session, net, params, options.save);
    report.saved(options.save.string());
  }
  write_sample(session, options, files.vocabulary(), net, params, report);
  return 0;
}

/// The same for the form of the model that the options ask for. Steps that compute blocks again, and those of a
/// ShardedReplica, are not replayed.
int train_on_cpus(sr::Session& session, const Options& options, const TokenFiles& files, Records& records) {
  constexpr auto kNever = lt::Replay::never;  // only GPUs replay
  return options.sharding == Sharding::kModel
             ? train<lt::ShardedReplica<Gpt>, loss, kNever, MappedText>(session, options, files, records)
             : train<lt::Replica<Gpt>, loss, kNever, MappedText>(session, options, files, records);
}
int train_on_gpus(sr::Session& session, const Options& options, const TokenFiles& files, Records& records) {
  constexpr auto kNever = lt::Replay::never;
  if (options.sharding == Sharding::kModel)
    return options.model.precision == Precision::kBfloat16
               ? train<lt::ShardedReplica<Gpt, kMixed>, loss_of_copy, kNever, CopiedText>(session, options, files,
                                                                                          records)
               : train<lt::ShardedReplica<Gpt>, loss_of_copy, kNever, CopiedText>(session, options, files, records);
  return options.model.activations == Activations::kRecomputed
             ? train<lt::Replica<Gpt>, loss_of_copy, kNever, CopiedText>(session, options, files, records)
             : train<lt::Replica<Gpt>, loss_of_copy, lt::Replay::if_possible, CopiedText>(session, options, files,
                                                                                          records);
}

/// Makes the OpenMP threads of a worker, which LibTorch uses, sleep while they wait for each other. If other programs need
/// the cores, spinning makes a step many times as long. A value that the user has set stays. Workers inherit the
/// variable.
void let_threads_sleep() { ::setenv("OMP_WAIT_POLICY", "passive", 0); }

int run(int argc, char** argv) {
  auto options = parse_options(argc, argv);
  if (!options) {
    std::fputs(help_text().c_str(), stdout);
    return 0;
  }
  const TokenFiles files(options->data, options->model.block_size + 1);
  options->model.vocab_size = files.vocabulary().size();
  Records records{Report(*options), Checkpoints(*options, files), {}};
  if (!options->init_from.empty() && !records.checkpoints.will_resume())
    records.loading = how_to_load(options->init_from, options->model);
  let_threads_sleep();
  const auto program = [&](sr::Session& session) {
    const auto devices = session.devices();
    const bool has_gpu =
        std::any_of(devices.begin(), devices.end(), [](const std::string& name) { return name.starts_with("cuda"); });
    // No device has more windows than this, and a pass without windows would gather all units for nothing.
    const std::int64_t most = (options->batch_size + session.world_size() - 1) / session.world_size();
    options->slices = std::min(options->slices, most);
    return has_gpu ? train_on_gpus(session, *options, files, records)
                   : train_on_cpus(session, *options, files, records);
  };
  // A worker that has loaded large libraries takes long to end on a busy machine.
  return sr::run(argc, argv, program, {.grace = std::chrono::seconds(60), .seed = options->seed});
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  if (const auto exit_code = syncrun::serve_if_worker(argc, argv)) return *exit_code;  // a worker ends here
  try {
    return gpt::run(argc, argv);
  } catch (const std::exception& bad_input) {  // found before any worker has been started
    std::fprintf(stderr, "syncrun-gpt: %s\n", bad_input.what());
    return 2;
  }
}

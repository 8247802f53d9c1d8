// Losses of LibTorch that are replayed as CUDA graphs, and losses that cannot be. Each training runs twice, with graphs and
// without. Both have the same bits and leave the same states of the generators behind.

#include <ATen/Context.h>
#include <torch/torch.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ios>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "tests/libtorch/gpu_samples.hpp"

namespace {

namespace lt = models::lt;
using models::kInputs;
using models::kRowsOnGpus;
using models::kSeedOnGpus;
using testing::HasSubstr;
using testing::Not;

/// How often the host code of a loss ran in this worker.
int host_runs = 0;
sr::Max<int> count_host_runs() { return host_runs; }

void seed_generators(sr::CudaWorker& worker, std::uint64_t seed) {
  torch::manual_seed(seed + 1000 * static_cast<std::uint64_t>(worker.rank()));
}
/// The seed and the offset of the generator of each rank's GPU.
sr::Gather<std::int64_t, 2> generator_states(sr::CudaWorker& worker) {
  const lt::Guard guard(worker);
  const auto state = at::globalContext().defaultGenerator(torch::kCUDA).get_state();
  std::vector<std::int64_t> words(2);
  std::memcpy(words.data(), state.data_ptr(), 2 * sizeof(std::int64_t));
  return {words, sr::Shape{1, 2}};
}
/// Draws numbers in a body that is never replayed.
sr::Sum<double> draw_numbers(sr::CudaWorker& worker) {
  const lt::Guard guard(worker);
  return torch::rand({7}, torch::TensorOptions().device(torch::kCUDA)).sum().item<double>();
}

/// What a training gives.
struct Trace {
  std::vector<double> numbers;       // losses and others, in the order in which they came
  std::vector<std::int64_t> states;  // of the generators, after each step
  std::vector<float> params;
  int host_runs = 0;
  std::string log;
};

template <class T>
std::string first_difference(const std::vector<T>& replayed, const std::vector<T>& plain) {
  std::ostringstream text;
  if (replayed.size() != plain.size()) text << replayed.size() << " and " << plain.size() << " values";
  for (std::size_t i = 0; i < std::min(replayed.size(), plain.size()); ++i) {
    if (std::memcmp(&replayed[i], &plain[i], sizeof(T)) == 0) continue;
    text << "value " << i << " of " << plain.size() << ": replayed " << replayed[i] << " = " << std::hexfloat
         << replayed[i] << ", without graphs " << std::defaultfloat << plain[i] << " = " << std::hexfloat << plain[i];
    break;
  }
  return text.str();
}

class LibtorchReplayOnGpus : public models::SamplesOnGpus {
 protected:
  static std::vector<std::int64_t> first_rows(std::int64_t count) { return gpu_test::counting<std::int64_t>(count); }

  void note_states(Trace& trace) {
    const auto states = session().function(generator_states)().to_vector();
    trace.states.insert(trace.states.end(), states.begin(), states.end());
  }
  /// Calls `train(trace, net, params)` with a new module, and fills in the rest.
  template <class Net, class Train, class... Arguments>
  Trace trace_of(Train&& train, const Arguments&... arguments) {
    Trace trace;
    const auto count = session().function(count_host_runs);
    const auto net = session().replicate<lt::Replica<Net>>(kSeedOnGpus, arguments...);
    const auto params = lt::parameters(session(), net);
    session().function(seed_generators)(kSeedOnGpus);
    const int before = count();
    trace.log = log_of([&] { train(trace, net, params); });
    trace.host_runs = count() - before;
    trace.params = params.get(0).to_vector();
    return trace;
  }
  static void expect_same(const Trace& replayed, const Trace& plain) {
    EXPECT_EQ(first_difference(replayed.numbers, plain.numbers), "") << replayed.log;
    EXPECT_EQ(first_difference(replayed.states, plain.states), "") << "seeds and offsets; " << replayed.log;
    EXPECT_EQ(first_difference(replayed.params, plain.params), "") << replayed.log;
    EXPECT_NE(plain.numbers.front(), plain.numbers.back()) << "the numbers change, so they say something";
  }
  static void expect_replayed(const Trace& replayed, const Trace& plain) {
    expect_same(replayed, plain);
    EXPECT_LE(replayed.host_runs, plain.host_runs / 2) << "most steps are replayed\n" << replayed.log;
    EXPECT_THAT(replayed.log, Not(HasSubstr("without a CUDA graph")));
  }
  static void expect_not_replayed(const Trace& trace, const Trace& plain, const std::string& reason) {
    expect_same(trace, plain);
    EXPECT_THAT(trace.log, HasSubstr(reason));
    EXPECT_GE(trace.host_runs, plain.host_runs);
  }
};
INSTANTIATE_ON_GPUS(LibtorchReplayOnGpus);

using lt::BackwardOptions;
using lt::Replay;
constexpr BackwardOptions kWithoutGraphs{.replay = Replay::never};

// ---- random numbers

struct Dropped : torch::nn::Module {
  Dropped() : first(kInputs, 16), last(16, 1) {
    register_module("first", first);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::dropout(torch::tanh(first(x)), 0.4, is_training())).squeeze(1);
  }

  torch::nn::Linear first;
  torch::nn::Linear last;
};
using ReplayRows = sr::Scattered<const float, 2>;
using ReplayTargets = sr::Scattered<const float, 1>;

torch::Tensor dropped_loss(Dropped& net, ReplayRows x, ReplayTargets y) {
  ++host_runs;
  const auto noisy = lt::tensor(x) + 0.01 * torch::randn_like(lt::tensor(x));
  return models::mean_square(net.forward(noisy), lt::tensor(y));
}
/// Also draws in evaluation mode.
torch::Tensor weighted_at_random(Dropped& net, ReplayRows x, ReplayTargets y) {
  ++host_runs;
  const auto squares = (net.forward(lt::tensor(x)) - lt::tensor(y)).square();
  return (squares * torch::rand_like(squares)).mean();
}

/// Graphs of several shapes and functions take turns with each other, with bodies that are never replayed, and with a new
/// seed.
TEST_P(LibtorchReplayOnGpus, RandomNumbersHaveTheSameBitsInGraphs) {
  const auto run = [&]<BackwardOptions kOptions>() {
    return trace_of<Dropped>([&](Trace& trace, const auto& net, const auto& params) {
      auto step = lt::train_step<sr::Adam, dropped_loss, kOptions>(session(), net, params);
      const auto evaluate = lt::evaluation<weighted_at_random, kOptions.replay>(session(), net, params);
      const auto draw = session().function(draw_numbers);
      for (int i = 0; i < 40; ++i) {
        trace.numbers.push_back(step(x(), y(), {.learning_rate = 0.01},
                                     {.batch = first_rows(i % 2 == 0 ? kRowsOnGpus : 40), .slices = 1 + i / 2 % 2}));
        if (i % 3 == 0) trace.numbers.push_back(evaluate(x(), y()));
        if (i % 5 == 0) trace.numbers.push_back(draw());
        if (i == 25) session().function(seed_generators)(99);
        note_states(trace);
      }
    });
  };
  const Trace replayed = run.operator()<BackwardOptions{}>();
  const Trace plain = run.operator()<kWithoutGraphs>();
  expect_replayed(replayed, plain);
  EXPECT_NE(plain.states[1], plain.states[plain.states.size() - 1]) << "numbers were drawn";
}

/// Attention of LibTorch, with dropout. Its kernels read the state of the generator in ways of their own.
struct DroppedAttention : torch::nn::Module {
  explicit DroppedAttention(bool is_short)
      : is_short(is_short), token(models::kVocabulary, 32), qkv(32, 96), last(32, 1) {
    register_module("token", token);
    register_module("qkv", qkv);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    const auto parts = qkv(token(ids)).reshape({ids.size(0), ids.size(1), 3, 2, 16}).permute({2, 0, 3, 1, 4});
    const auto mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.3, /*is_causal=*/true);
    return last(mixed.transpose(1, 2).flatten(2)).square().mean();
  }

  bool is_short;  // computes in bfloat16
  torch::nn::Embedding token;
  torch::nn::Linear qkv;
  torch::nn::Linear last;
};
torch::Tensor dropped_attention_loss(DroppedAttention& net, sr::Scattered<const std::uint8_t, 2> rows) {
  ++host_runs;
  std::optional<lt::Autocast> autocast;
  if (net.is_short) autocast.emplace(torch::kBFloat16);
  return net.forward(lt::tensor(rows).to(torch::kInt64)).to(torch::kFloat32);
}

TEST_P(LibtorchReplayOnGpus, DropoutOfAttentionHasTheSameBitsInGraphs) {
  const auto tokens = session().data(models::make_tokens(kRowsOnGpus), sr::Shape{kRowsOnGpus, models::kContext + 1});
  for (const bool is_short : {false, true}) {
    SCOPED_TRACE(is_short ? "in bfloat16" : "in float32");
    const auto run = [&]<BackwardOptions kOptions>() {
      return trace_of<DroppedAttention>(
          [&](Trace& trace, const auto& net, const auto& params) {
            auto step = lt::train_step<sr::Adam, dropped_attention_loss, kOptions>(session(), net, params);
            for (int i = 0; i < 16; ++i) {
              trace.numbers.push_back(step(tokens, {.learning_rate = 0.01}));
              note_states(trace);
            }
          },
          is_short);
    };
    const Trace replayed = run.operator()<BackwardOptions{}>();
    const Trace plain = run.operator()<kWithoutGraphs>();
    expect_replayed(replayed, plain);
    EXPECT_NE(plain.states[1], plain.states[plain.states.size() - 1]) << "numbers were drawn";
  }
}

torch::Tensor seeding_loss(Dropped& net, ReplayRows x, ReplayTargets y) {
  torch::manual_seed(5);
  return dropped_loss(net, x, y);
}
/// Draws on the host, as a loss does that leaves out layers at random.
torch::Tensor host_drawing_loss(Dropped& net, ReplayRows x, ReplayTargets y) {
  const auto loss = dropped_loss(net, x, y);
  return torch::rand({1}).item<float>() < 0.5F ? loss * 0.5 : loss;
}

TEST_P(LibtorchReplayOnGpus, LossesThatSeedOrDrawOnTheHostRunWithoutGraphs) {
  const auto run = [&]<auto kLoss, BackwardOptions kOptions>() {
    return trace_of<Dropped>([&](Trace& trace, const auto& net, const auto& params) {
      auto step = lt::train_step<sr::Adam, kLoss, kOptions>(session(), net, params);
      for (int i = 0; i < 16; ++i) {
        trace.numbers.push_back(step(x(), y(), {.learning_rate = 0.01}));
        note_states(trace);
      }
    });
  };
  expect_not_replayed(run.operator()<seeding_loss, BackwardOptions{}>(), run.operator()<seeding_loss, kWithoutGraphs>(),
                      "set_current_seed");
  expect_not_replayed(run.operator()<host_drawing_loss, BackwardOptions{}>(),
                      run.operator()<host_drawing_loss, kWithoutGraphs>(), "random numbers on the host");
}

/// cuDNN draws the dropout between the two layers from numbers that LibTorch makes anew after a seed.
struct DroppedRecurrent : torch::nn::Module {
  DroppedRecurrent() : layers(torch::nn::LSTMOptions(kInputs, 8).num_layers(2).dropout(0.5)), last(8, 1) {
    register_module("layers", layers);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto states = std::get<0>(layers->forward(torch::stack({x, x * 0.5, -x})));
    return last(states[2]).squeeze(1);
  }

  torch::nn::LSTM layers;
  torch::nn::Linear last;
};
torch::Tensor recurrent_loss(DroppedRecurrent& net, ReplayRows x, ReplayTargets y) {
  ++host_runs;
  return models::mean_square(net.forward(lt::tensor(x)), lt::tensor(y));
}

/// A seed comes between the first run and the capture, or later. Another number of rows makes the numbers anew, too.
TEST_P(LibtorchReplayOnGpus, DropoutOfRecurrentLayersRunsWithoutGraphs) {
  for (const int seeded_after : {0, 9}) {
    SCOPED_TRACE("a seed after step " + std::to_string(seeded_after));
    const auto run = [&]<BackwardOptions kOptions>() {
      return trace_of<DroppedRecurrent>([&](Trace& trace, const auto& net, const auto& params) {
        auto step = lt::train_step<sr::Sgd, recurrent_loss, kOptions>(session(), net, params);
        for (int i = 0; i < 16; ++i) {
          const std::int64_t rows = i == 11 ? 40 : kRowsOnGpus;
          trace.numbers.push_back(step(x(), y(), {.learning_rate = 0.01}, {.batch = first_rows(rows)}));
          if (i == seeded_after) session().function(seed_generators)(99);
          note_states(trace);
        }
      });
    };
    const Trace trace = run.operator()<BackwardOptions{}>();
    const Trace plain = run.operator()<kWithoutGraphs>();
    EXPECT_THAT(trace.log, HasSubstr("a recurrent layer of cuDNN"));
    EXPECT_GE(trace.host_runs, plain.host_runs);
    EXPECT_EQ(first_difference(trace.states, plain.states), "") << "seeds and offsets";
    ASSERT_EQ(trace.numbers.size(), plain.numbers.size());
    for (std::size_t i = 0; i < plain.numbers.size(); ++i) {
      // cuDNN does not promise the same bits.
      EXPECT_NEAR(trace.numbers[i], plain.numbers[i], 1e-5) << "step " << i;
    }
  }
}

// ---- modes

struct SwitchedNorm : torch::nn::Module {
  SwitchedNorm() : first(kInputs, 8), norm(8), last(8, 1) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
    latest = this;
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(norm(first(x)))).squeeze(1); }

  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
  inline static SwitchedNorm* latest = nullptr;  // of this worker
};
torch::Tensor switched_loss(SwitchedNorm& net, ReplayRows x, ReplayTargets y) {
  ++host_runs;
  return models::mean_square(net.forward(lt::tensor(x)), lt::tensor(y));
}
void set_mode_of_norm(bool is_training) { SwitchedNorm::latest->norm->train(is_training); }
void freeze_norm() { SwitchedNorm::latest->norm->weight.requires_grad_(false); }

TEST_P(LibtorchReplayOnGpus, AGraphIsForTheModesOfItsModulesOnly) {
  const auto run = [&]<BackwardOptions kOptions>() {
    return trace_of<SwitchedNorm>([&](Trace& trace, const auto& net, const auto& params) {
      const auto set_mode = session().function(set_mode_of_norm);
      auto step = lt::train_step<sr::Adam, switched_loss, kOptions>(session(), net, params);
      for (int i = 0; i < 64; ++i) {
        if (i % 8 == 0) set_mode(i / 8 % 2 == 0);
        trace.numbers.push_back(step(x(), y(), {.learning_rate = 0.01}));
      }
    });
  };
  expect_replayed(run.operator()<BackwardOptions{}>(), run.operator()<kWithoutGraphs>());
}

/// As without graphs. change() freezes parameters.
TEST_P(LibtorchReplayOnGpus, AParameterThatWasFrozenIsAnErrorOfReplayedStepsToo) {
  const auto net = session().replicate<lt::Replica<SwitchedNorm>>(kSeedOnGpus);
  const auto params = lt::parameters(session(), net);
  auto step = lt::train_step<sr::Adam, switched_loss>(session(), net, params);
  for (int i = 0; i < 8; ++i) step(x(), y(), {.learning_rate = 0.01});
  session().function(freeze_norm)();
  EXPECT_ERROR(step(x(), y(), {.learning_rate = 0.01}), sr::ErrorKind::function, "'norm.weight'");
}

// ---- values

torch::Tensor valued_loss(models::Mlp& net, ReplayRows x, ReplayTargets y, float penalty, sr::PerWorker<int> power) {
  ++host_runs;
  const auto output = net.forward(lt::tensor(x));
  return models::mean_square(output, lt::tensor(y)) + penalty * output.abs().pow(power.value()).mean();
}

TEST_P(LibtorchReplayOnGpus, AGraphIsForItsValuesOnly) {
  const std::vector<int> powers(static_cast<std::size_t>(world_size()), 2);
  const auto run = [&]<BackwardOptions kOptions>(bool changes) {
    return trace_of<models::Mlp>([&](Trace& trace, const auto& net, const auto& params) {
      auto step = lt::train_step<sr::Adam, valued_loss, kOptions>(session(), net, params);
      for (int i = 0; i < 48; ++i) {
        const float penalty = changes ? 0.01F * static_cast<float>(i) : (i / 16 % 2 == 0 ? 0.1F : 0.7F);
        trace.numbers.push_back(step(x(), y(), penalty, powers, {.learning_rate = 0.01}));
      }
    });
  };
  expect_replayed(run.operator()<BackwardOptions{}>(false), run.operator()<kWithoutGraphs>(false));
  const Trace changing = run.operator()<BackwardOptions{}>(true);
  expect_not_replayed(changing, run.operator()<kWithoutGraphs>(true), "different arguments by value");
  EXPECT_EQ(changing.log.find("by value"), changing.log.rfind("by value")) << "once is enough\n" << changing.log;
}

// ---- collectives

struct Synchronized : torch::nn::Module {
  Synchronized()
      : first(kInputs, 8), norm(8), mean_norm(torch::nn::BatchNormOptions(8).momentum(torch::nullopt)), last(8, 1) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("mean_norm", mean_norm);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(mean_norm(torch::tanh(norm(first(x))))).squeeze(1); }

  torch::nn::Linear first;
  lt::SyncBatchNorm norm;
  lt::SyncBatchNorm mean_norm;  // its running statistics are means over all batches
  torch::nn::Linear last;
};
torch::Tensor synchronized_loss(Synchronized& net, sr::Comm&, ReplayRows x, ReplayTargets y) {
  ++host_runs;
  return models::mean_square(net.forward(lt::tensor(x)), lt::tensor(y));
}
/// Waits for a number of the other ranks.
torch::Tensor counting_loss(Synchronized& net, sr::Comm& comm, ReplayRows x, ReplayTargets y) {
  return synchronized_loss(net, comm, x, y) * (1 + 1 / comm.all_reduce(1.0, sr::Reduction::sum));
}
sr::Gather<float, 2> running_statistics(Synchronized& net) {
  const auto all = torch::cat({net.norm->running_mean, net.norm->running_var, net.mean_norm->running_mean,
                               net.mean_norm->running_var})
                       .cpu();
  return {std::vector<float>(all.data_ptr<float>(), all.data_ptr<float>() + all.numel()), sr::Shape{1, all.numel()}};
}

TEST_P(LibtorchReplayOnGpus, CollectivesOfALossAreReplayed) {
  const auto run = [&]<auto kLoss, BackwardOptions kOptions>() {
    return trace_of<Synchronized>([&](Trace& trace, const auto& net, const auto& params) {
      auto step = lt::train_step<sr::Adam, kLoss, kOptions>(session(), net, params);
      for (int i = 0; i < 24; ++i) {
        // In a batch of three rows, some of four ranks have none.
        trace.numbers.push_back(
            step(x(), y(), {.learning_rate = 0.01}, {.batch = first_rows(i % 4 < 2 ? kRowsOnGpus : 3)}));
      }
      for (const float each : lt::evaluation<running_statistics>(session(), net, params)().to_vector())
        trace.numbers.push_back(each);
    });
  };
  expect_replayed(run.operator()<synchronized_loss, BackwardOptions{}>(),
                  run.operator()<synchronized_loss, kWithoutGraphs>());
  expect_not_replayed(run.operator()<counting_loss, BackwardOptions{}>(),
                      run.operator()<counting_loss, kWithoutGraphs>(), "all_reduce of a number of the host's");
}

// ---- further numbers

struct ReplayedNumbers {
  sr::Avg<double> loss;
  sr::Sum<std::int64_t> positive;
  sr::Max<float> largest;
};
lt::Loss<ReplayedNumbers> loss_with_numbers(models::Mlp& net, ReplayRows x, ReplayTargets y) {
  ++host_runs;
  const auto output = net.forward(lt::tensor(x));
  const auto value = models::mean_square(output, lt::tensor(y));
  return {value, {lt::number(value), lt::number(output.gt(0).sum()), lt::number(output.max())}};
}
/// The same, but it waits for the numbers.
lt::Loss<ReplayedNumbers> loss_with_awaited_numbers(models::Mlp& net, ReplayRows x, ReplayTargets y) {
  ++host_runs;
  const auto output = net.forward(lt::tensor(x));
  const auto value = models::mean_square(output, lt::tensor(y));
  return {value, {value.item<double>(), output.gt(0).sum().item<std::int64_t>(), output.max().item<float>()}};
}

TEST_P(LibtorchReplayOnGpus, NumbersBesideTheLossAreReplayed) {
  const auto run = [&]<auto kLoss, BackwardOptions kOptions>() {
    return trace_of<models::Mlp>([&](Trace& trace, const auto& net, const auto& params) {
      auto step = lt::train_step<sr::Adam, kLoss, kOptions>(session(), net, params);
      const auto evaluate = lt::evaluation<kLoss, kOptions.replay>(session(), net, params);
      const auto note = [&trace](const ReplayedNumbers& numbers) {
        trace.numbers.insert(trace.numbers.end(), {numbers.loss.value(), static_cast<double>(numbers.positive.value()),
                                                   static_cast<double>(numbers.largest.value())});
      };
      for (int i = 0; i < 24; ++i) {
        note(step(x(), y(), {.learning_rate = 0.01}, {.slices = 1 + i / 2 % 2}));
        note(evaluate(x(), y()));
      }
    });
  };
  const Trace replayed = run.operator()<loss_with_numbers, BackwardOptions{}>();
  expect_replayed(replayed, run.operator()<loss_with_numbers, kWithoutGraphs>());
  const Trace awaited = run.operator()<loss_with_awaited_numbers, BackwardOptions{}>();
  ASSERT_EQ(replayed.numbers.size(), awaited.numbers.size());
  for (std::size_t i = 0; i < awaited.numbers.size(); ++i)
    EXPECT_NEAR(replayed.numbers[i], awaited.numbers[i], 1e-6) << "number " << i;  // averaged by the host
  EXPECT_THAT(awaited.log, HasSubstr("without a CUDA graph"));
}

}  // namespace

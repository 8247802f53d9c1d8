// One model on several devices: each has some of the layers, and the micro-batches of a step go through them as through a
// pipeline. While a device computes the forward pass of a micro-batch, the device before it computes that of the next
// one, and then the backward passes go the other way. Nothing in a step waits: a call returns at once, and runs when its
// inputs have arrived from the other device. The losses are those of the model on one device.
//
// With p devices and m micro-batches, a device computes for m of m + p - 1 intervals. The rest is the bubble of the
// pipeline: (p - 1) / (m + p - 1). The program measures it, too.
// Source: Y. Huang et al., "GPipe", arXiv 1811.06965, section 2.3.
//
//   syncrun --devices cuda0,cuda1 example_pipeline

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <syncrun/syncrun.hpp>
#include <syncrun/torch.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "demos/examples/checks.hpp"

namespace {

namespace sr = syncrun;
namespace lt = syncrun::libtorch;

constexpr int kLayers = 12;
constexpr std::int64_t kWidth = 384;
constexpr std::int64_t kClasses = 4;
constexpr std::int64_t kRows = 512;  // of a step
constexpr std::int64_t kMicroBatches = 8;
constexpr int kSteps = 15;

using Matrix = sr::Value<float, 2>;
using Labels = sr::Value<std::int64_t, 1>;

/// Layers of the model on a device, with their optimizer. The model's layers are divided among ranks 0 to `stages` - 1.
class Stage {
 public:
  Stage(sr::CpuWorker& worker, int stages) : Stage(worker, torch::kCPU, stages) {}
  Stage(sr::CudaWorker& worker, int stages) : Stage(worker, torch::kCUDA, stages) {}

  // [stage]
  /// What the next stage reads. The graph stays here until the backward pass of this micro-batch.
  template <class Worker>
  sr::Keep<float, 2> forward(Worker& worker, std::int64_t micro_batch, sr::Local<const float, 2> x) {
    const lt::Guard guard(worker);
    const auto input = lt::tensor(x).clone().requires_grad_(!is_first_);
    const auto output = layers_->forward(input);
    graphs_[micro_batch] = {input, output};
    return kept(worker, output);
  }
  /// The same for the last stage: the mean loss, as a matrix of one number.
  template <class Worker>
  sr::Keep<float, 2> loss(Worker& worker, std::int64_t micro_batch, sr::Local<const float, 2> x,
                          sr::Local<const std::int64_t, 1> labels) {
    const lt::Guard guard(worker);
    const auto input = lt::tensor(x).clone().requires_grad_(!is_first_);
    const auto output = torch::cross_entropy_loss(layers_->forward(input), lt::tensor(labels)).reshape({1, 1});
    graphs_[micro_batch] = {input, output};
    return kept(worker, output);
  }
  /// Takes the gradient of what forward() or loss() has returned, and returns that of its input. The first stage has none.
  template <class Worker>
  sr::Keep<float, 2> backward(Worker& worker, std::int64_t micro_batch, sr::Local<const float, 2> gradient) {
    const lt::Guard guard(worker);
    const auto [input, output] = graphs_.extract(micro_batch).mapped();
    output.backward(lt::tensor(gradient));  // adds to the gradients of the parameters
    return kept(worker, is_first_ ? torch::empty({0, 0}) : input.grad());
  }
  template <class Worker>
  void update(Worker& worker) {
    const lt::Guard guard(worker);
    optimizer_->step();
    optimizer_->zero_grad();
  }
  // [/stage]

 private:
  template <class Worker>
  Stage(Worker& worker, torch::Device device, int stages) : is_first_(worker.rank() == 0) {
    if (worker.rank() >= stages) return;
    const lt::Guard guard(worker);
    torch::manual_seed(1);  // all ranks draw all layers, so the model does not depend on the number of stages
    for (int i = 0; i <= kLayers; ++i) {
      torch::nn::Linear layer(kWidth, i == kLayers ? kClasses : kWidth);  // the last one computes scores
      torch::nn::init::kaiming_normal_(layer->weight, 0, torch::kFanIn, torch::kReLU);
      if (std::min(i * stages / kLayers, stages - 1) != worker.rank()) continue;
      layers_->push_back(layer);
      if (i < kLayers) layers_->push_back(torch::nn::ReLU());
    }
    layers_->to(device);
    optimizer_ =
        std::make_unique<torch::optim::SGD>(layers_->parameters(), torch::optim::SGDOptions(0.005).momentum(0.5));
  }

  template <class Worker>
  static sr::Keep<float, 2> kept(Worker& worker, const torch::Tensor& x) {
    sr::Keep<float, 2> result(worker, {x.size(0), x.size(1)});
    if (x.numel() != 0) lt::tensor(result.view()).copy_(x.detach());
    return result;
  }

  struct Graph {
    torch::Tensor input;
    torch::Tensor output;
  };

  bool is_first_;
  torch::nn::Sequential layers_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  std::unordered_map<std::int64_t, Graph> graphs_;  // of the micro-batches between their passes
};

/// A batch in equal parts. The class of a row is the place of the largest of its first numbers.
struct Batch {
  std::vector<Matrix> inputs;
  std::vector<Labels> labels;
};

Batch make_batch(sr::Session& session, int stages, std::int64_t micro_batches) {
  Batch batch;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const std::int64_t rows = kRows / micro_batches;
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    std::vector<float> x(static_cast<std::size_t>(rows * kWidth));
    std::vector<std::int64_t> labels;
    for (auto& each : x) each = normal(random);
    for (auto row = x.begin(); row != x.end(); row += kWidth)
      labels.push_back(std::max_element(row, row + kClasses) - row);
    batch.inputs.push_back(session.value(x, sr::Shape{rows, kWidth}, session.device(0)));
    batch.labels.push_back(session.value(labels, sr::Shape{rows}, session.device(stages - 1)));
  }
  return batch;
}

struct Training {
  std::vector<double> losses;
  double seconds_per_step = 0;
};

/// Trains the model on the first `stages` devices, with the batch in so many parts.
Training train(sr::Session& session, int stages, std::int64_t micro_batches) {
  const auto stage = session.replicate<Stage>(stages);
  const auto forward = session.function(&Stage::forward<sr::CpuWorker>, &Stage::forward<sr::CudaWorker>, stage);
  const auto loss = session.function(&Stage::loss<sr::CpuWorker>, &Stage::loss<sr::CudaWorker>, stage);
  const auto backward = session.function(&Stage::backward<sr::CpuWorker>, &Stage::backward<sr::CudaWorker>, stage);
  const auto update = session.function(&Stage::update<sr::CpuWorker>, &Stage::update<sr::CudaWorker>, stage);
  const Batch batch = make_batch(session, stages, micro_batches);
  const int last = stages - 1;
  // The loss of a step is the mean of those of the micro-batches.
  const auto share =
      session.value(std::vector{1.0F / static_cast<float>(micro_batches)}, sr::Shape{1, 1}, session.device(last));
  std::vector<Matrix> losses;
  // [step]
  const auto step = [&] {
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      Matrix x = batch.inputs[i];
      for (int s = 0; s < last; ++s) x = forward.on(session.device(s))(i, x);  // x moves to the next device
      losses.push_back(loss.on(session.device(last))(i, x, batch.labels[i]));
    }
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      Matrix gradient = share;
      for (int s = last; s >= 0; --s) gradient = backward.on(session.device(s))(i, gradient);
    }
    for (int s = 0; s <= last; ++s) update.on(session.device(s))();
  };
  // [/step]
  const auto wait = [&] {
    for (int s = 0; s <= last; ++s) session.synchronize(session.device(s));
  };
  step();  // the first one is slower
  wait();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 1; i < kSteps; ++i) step();
  wait();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;

  Training training;
  training.seconds_per_step = elapsed.count() / (kSteps - 1);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (i % static_cast<std::size_t>(micro_batches) == 0) training.losses.push_back(0);
    training.losses.back() += losses[i].get()(0, 0) / static_cast<double>(micro_batches);
  }
  return training;
}

int program(sr::Session& session) {
  const int devices = session.world_size();
  if (devices > kLayers) {
    std::printf("expected at most %d devices, one for each layer, got %d\n", kLayers, devices);
    return 2;
  }
  const Training pipeline = train(session, devices, kMicroBatches);
  const Training alone = train(session, 1, kMicroBatches);
  const Training whole = train(session, 1, 1);

  const double ideal = alone.seconds_per_step / devices;
  const auto intervals = static_cast<double>(kMicroBatches + devices - 1);
  std::printf("%d devices, %d micro-batches: %.2f ms per step. One device: %.2f ms, so ideal: %.2f ms\n", devices,
              static_cast<int>(kMicroBatches), 1e3 * pipeline.seconds_per_step, 1e3 * alone.seconds_per_step,
              1e3 * ideal);
  std::printf("time / ideal time: %.3f (formula: %.3f). Bubble: %.1f%% (formula: %.1f%%)\n",
              pipeline.seconds_per_step / ideal, intervals / kMicroBatches,
              100 * (1 - ideal / pipeline.seconds_per_step), 100 * (devices - 1) / intervals);

  examples::Checks checks;
  const auto agree = [](const Training& a, const Training& b, double tolerance) {
    return std::equal(a.losses.begin(), a.losses.end(), b.losses.begin(), b.losses.end(),
                      [=](double x, double y) { return std::abs(x - y) <= tolerance * y; });
  };
  checks.that("the losses are those of one device", agree(pipeline, alone, 1e-5));
  checks.that("the losses are those of the whole batch at once", agree(pipeline, whole, 1e-3));  // rounding grows
  checks.that("the model learns", pipeline.losses.back() < 0.8 * pipeline.losses.front());
  std::printf("  loss: %.4f, and %.4f after %d steps\n", pipeline.losses.front(), pipeline.losses.back(), kSteps);
  return checks.conclude();
}

}  // namespace

int main(int argc, char** argv) {
  return syncrun::run(argc, argv, program, {.devices = "cpu0,cpu1", .grace = std::chrono::seconds(60)});
}

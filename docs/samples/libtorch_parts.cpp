// Further parts of the page on LibTorch: numbers beside the loss, values that change from step to step, buffers, an
// optimizer of LibTorch, files, BatchNorm over all ranks, bfloat16. Also the data set of the page on producers.

#include <cstdio>
#include <memory>
#include <syncrun/syncrun.hpp>
#include <syncrun/torch.hpp>
#include <tuple>
#include <vector>

namespace sr = syncrun;
namespace lt = syncrun::libtorch;

namespace {

struct Net : torch::nn::Module {
  Net() : norm(4), last(4, 2) {
    register_module("norm", norm);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(norm(x)); }
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
};

// [numbers]
struct Numbers {
  sr::Avg<double> loss;
  sr::Sum<std::int64_t> correct;
};

lt::Loss<Numbers> loss(Net& net, sr::Scattered<const float, 2> x, sr::Scattered<const std::int64_t, 1> labels) {
  const auto scores = net.forward(lt::tensor(x));
  const auto value = torch::cross_entropy_loss(scores, lt::tensor(labels));
  const auto correct = scores.argmax(1).eq(lt::tensor(labels)).sum();
  return {value, {lt::number(value), lt::number(correct)}};
}
// [/numbers]

torch::Tensor penalized_loss(Net& net, sr::Scattered<const float, 2> x, sr::Scattered<const std::int64_t, 1> labels,
                             sr::DeviceScalar<float> penalty) {
  const auto scores = net.forward(lt::tensor(x));
  return torch::cross_entropy_loss(scores, lt::tensor(labels)) + lt::tensor(penalty) * scores.square().mean();
}

class Trainer {
 public:
  Trainer(sr::CpuWorker& worker, double rate) : Trainer(worker, torch::kCPU, rate) {}
  Trainer(sr::CudaWorker& worker, double rate) : Trainer(worker, torch::kCUDA, rate) {}

  template <class Worker>  // CpuWorker or CudaWorker
  sr::Avg<double> step(Worker& worker, sr::Comm& comm, sr::Scattered<const float, 2> x,
                       sr::Scattered<const std::int64_t, 1> labels) {
    const lt::Guard guard(worker);
    return guard.run([&]() -> sr::Avg<double> {
      adam_->zero_grad();
      double loss = 0;
      if (x.rows() != 0) {  // a rank without rows only takes part in average()
        const auto value = torch::cross_entropy_loss(net_->forward(lt::tensor(x)), lt::tensor(labels));
        value.backward();
        loss = value.item<double>();
      }
      lt::average(comm, *net_);
      adam_->step();
      return loss;
    });
  }

 private:
  template <class Worker>
  Trainer(Worker& worker, torch::Device device, double rate) {
    const lt::Guard guard(worker);
    torch::manual_seed(1);  // so that all ranks begin with the same parameters
    net_ = std::make_shared<Net>();
    net_->to(device);
    adam_ = std::make_unique<torch::optim::Adam>(net_->parameters(), rate);
  }

  std::shared_ptr<Net> net_;
  std::unique_ptr<torch::optim::Adam> adam_;
};

struct Together : torch::nn::Module {
  Together() : norm(4), last(4, 2) {
    register_module("norm", norm);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(norm(x)); }
  lt::SyncBatchNorm norm;  // in place of torch::nn::BatchNorm1d
  torch::nn::Linear last;
};

torch::Tensor mixed_loss(Together& net, sr::Comm&, sr::Scattered<const float, 2> x,
                         sr::Scattered<const std::int64_t, 1> labels) {
  const lt::Autocast autocast(torch::kBFloat16);
  return torch::cross_entropy_loss(net.forward(lt::tensor(x)), lt::tensor(labels));
}

struct Block : torch::nn::Module {
  Block() : norm(torch::nn::LayerNormOptions({64})), first(64, 256), last(256, 64) {
    register_module("norm", norm);
    register_module("first", first);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& change) {
    const auto [sum, normal] = lt::add_layer_norm(x, change, norm->weight, norm->bias);  // x + change, norm(x + change)
    const auto wide = lt::linear(normal, first->weight, first->bias);                    // in place of first(normal)
    return sum + lt::linear(torch::gelu(wide), last->weight, last->bias);
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear first, last;
};

void replace_head(Net& net, std::int64_t classes) {
  for (auto& each : net.parameters()) each.requires_grad_(false);
  net.last = net.replace_module("last", torch::nn::Linear(4, classes));
}

struct Gan : torch::nn::Module {
  Gan() : discriminator(4, 1), generator(4, 4) {
    register_module("discriminator", discriminator);
    register_module("generator", generator);
  }
  torch::nn::Linear discriminator, generator;
};
torch::Tensor score(const torch::Tensor& scores, double wanted) {
  return torch::binary_cross_entropy_with_logits(scores, torch::full_like(scores, wanted));
}

// [gan]
lt::StagedLoss<2> gan_loss(Gan& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 2> noise) {
  const auto fake = net.generator(lt::tensor(noise));
  return {score(net.discriminator(lt::tensor(x)), 1) + score(net.discriminator(fake.detach()), 0),
          {[&net, fake] { return score(net.discriminator(fake), 1); }}};
}
// [/gan]

struct Points : torch::data::Dataset<Points> {
  torch::data::Example<> get(std::size_t index) override {
    const auto point = torch::sin(torch::arange(4) + 7.0F * static_cast<float>(index));
    return {point, (point[0] > point[1]).to(torch::kInt64)};
  }
  torch::optional<std::size_t> size() const override { return 48; }
};

// [data]
auto make_points(double noise) {  // called by the master and by each process of the loader
  const auto add_noise = [noise](const torch::Tensor& x) { return x + noise * torch::rand({4}); };
  return Points().map(torch::data::transforms::TensorLambda<>(add_noise)).map(torch::data::transforms::Stack<>());
}
// [/data]

struct PointBatch {
  sr::Data<float, 2> x;
  sr::Data<std::int64_t, 1> labels;
};

void program(sr::Session& session) {
  constexpr std::int64_t kRows = 60;
  std::vector<float> values(kRows * 4);
  std::vector<std::int64_t> classes(kRows);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((7 * i) % 13);
  for (std::size_t i = 0; i < classes.size(); ++i) classes[i] = values[4 * i] > values[4 * i + 1] ? 1 : 0;
  const auto x = session.data(values, sr::Shape{kRows, 4});
  const auto labels = session.data(classes);

  const auto net = session.replicate<lt::Replica<Net>>(1);
  auto params = lt::parameters(session, net);
  auto step = lt::train_step<sr::Adam, loss>(session, net, params, {.form = sr::StepForm::sharded});
  for (int i = 0; i < 200; ++i) step(x, labels, {.learning_rate = 0.05, .decoupled_weight_decay = 0.01});
  lt::sync_buffers(session, net);
  const Numbers after = lt::evaluation<loss>(session, net, params)(x, labels, {.slices = 2});
  std::printf("%d of %d rows are correct\n", static_cast<int>(after.correct), static_cast<int>(x.rows()));

  // [loader]
  auto points = lt::loader<PointBatch, make_points>(session, {.batch_rows = 16, .processes = 2, .seed = 5}, 0.01);
  while (points.position().epoch < 3) {
    for (const PointBatch& batch : points) step(batch.x, batch.labels, {.learning_rate = 0.05});
  }
  // [/loader]
  points.close();
  lt::sync_buffers(session, net);
  std::printf("%d epochs of a data set\n", static_cast<int>(points.position().epoch));

  lt::save(session, net, params, "parts.pt");
  auto alone = std::make_shared<Net>();
  torch::load(alone, "parts.pt");  // in the master, or in a program without Syncrun
  lt::load(session, net, params, "parts.pt");
  std::printf("%s\n", alone->last->weight.flatten()[0].item<float>() == params.get(0)[8] ? "equal" : "not equal");

  auto penalized = lt::train_step<sr::Adam, penalized_loss>(session, net, params);
  const double at_first = penalized(x, labels, 0.1F, {.learning_rate = 0.01});
  double at_last = at_first;
  for (int i = 1; i < 50; ++i) at_last = penalized(x, labels, 0.1F / static_cast<float>(i), {.learning_rate = 0.01});
  std::printf("with a penalty: %s\n", at_last < at_first ? "learns" : "does not learn");

  const auto trainer = session.replicate<Trainer>(0.05);
  const auto own = session.function(&Trainer::step<sr::CpuWorker>, &Trainer::step<sr::CudaWorker>, trainer);
  const double first = own(x, labels);
  double last = first;
  for (int i = 0; i < 50; ++i) last = own(x, labels);
  std::printf("an optimizer of LibTorch: %s\n", last < first ? "learns" : "does not learn");

  const auto together = session.replicate<lt::Replica<Together>>(1);
  const auto others = lt::parameters(session, together);
  auto checked = lt::train_step<sr::Adam, mixed_loss, lt::BackwardOptions{.check = lt::FiniteCheck::gradients}>(
      session, together, others);
  const double before = checked(x, labels, {.learning_rate = 0.05});
  double now = before;
  for (int i = 0; i < 50; ++i) now = checked(x, labels, {.learning_rate = 0.05});
  std::printf("in bfloat16: %s\n", now < before ? "learns" : "does not learn");

  const auto gan = session.replicate<lt::Replica<Gan>>(1);
  const auto of_gan = lt::parameters(session, gan);
  auto both = lt::staged_step<gan_loss, sr::Adam, sr::Sgd>(session, gan, of_gan, {{"discriminator"}, {"generator"}});
  const auto losses = both(x, x, {sr::Adam{.learning_rate = 0.01}, sr::Sgd{}});
  auto later = losses;
  for (int i = 0; i < 50; ++i) later = both(x, x, {sr::Adam{.learning_rate = 0.01}, sr::Sgd{}});
  std::printf("a GAN: %s\n", later[0] < losses[0] && later[1] != losses[1] ? "learns" : "does not learn");

  if (!session.devices().front().starts_with("cpu")) return;
  lt::change<replace_head>(session, net, params, std::tie(step), 3);
  step(x, labels, {.learning_rate = 0.05});
}

}  // namespace

int main(int argc, char** argv) { return sr::run(argc, argv, program); }

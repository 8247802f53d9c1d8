// Further parts of the page on LibTorch: numbers beside the loss, buffers, an optimizer of LibTorch, files, BatchNorm over
// all ranks, bfloat16.

#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <syncrun/torch.hpp>
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
  return {value, {value.item<double>(), correct.item<std::int64_t>()}};
}
// [/numbers]

// [own]
class Trainer {
 public:
  explicit Trainer(double rate) : net_(std::make_shared<Net>()), adam_(net_->parameters(), rate) {}

  sr::Avg<double> step(sr::CpuWorker& worker, sr::Comm& comm, sr::Scattered<const float, 2> x,
                       sr::Scattered<const std::int64_t, 1> labels) {
    const lt::Guard guard(worker);
    return guard.run([&]() -> sr::Avg<double> {
      adam_.zero_grad();
      const auto value = torch::cross_entropy_loss(net_->forward(lt::tensor(x)), lt::tensor(labels));
      value.backward();
      lt::average(comm, *net_);
      adam_.step();
      return value.item<double>();
    });
  }

 private:
  std::shared_ptr<Net> net_;
  torch::optim::Adam adam_;
};
// [/own]

// [together]
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
// [/together]

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
  // [use]
  auto step = lt::train_step<sr::Adam, loss>(session, net, params, {.form = sr::StepForm::sharded});
  for (int i = 0; i < 200; ++i) step(x, labels, {.learning_rate = 0.05, .decoupled_weight_decay = 0.01});
  lt::sync_buffers(session, net);
  const Numbers after = lt::evaluation<loss>(session, net, params)(x, labels, {.slices = 2});
  std::printf("%d of %d rows are correct\n", static_cast<int>(after.correct), static_cast<int>(x.rows()));
  // [/use]

  // [files]
  lt::save(session, net, params, "parts.pt");
  auto alone = std::make_shared<Net>();
  torch::load(alone, "parts.pt");  // in the master, or in a program without Syncrun
  lt::load(session, net, params, "parts.pt");
  // [/files]
  std::printf("%s\n", alone->last->weight.flatten()[0].item<float>() == params.get(0)[8] ? "equal" : "not equal");

  const auto trainer = session.replicate<Trainer>(0.05);
  const auto own = session.function(&Trainer::step, trainer);
  const double first = own(x, labels);
  double last = first;
  for (int i = 0; i < 50; ++i) last = own(x, labels);
  std::printf("an optimizer of LibTorch: %s\n", last < first ? "learns" : "does not learn");

  const auto together = session.replicate<lt::Replica<Together>>(1);
  const auto others = lt::parameters(session, together);
  // [checked]
  auto checked = lt::train_step<sr::Adam, mixed_loss, lt::BackwardOptions{.check = lt::FiniteCheck::gradients}>(
      session, together, others);
  const double before = checked(x, labels, {.learning_rate = 0.05});
  // [/checked]
  double now = before;
  for (int i = 0; i < 50; ++i) now = checked(x, labels, {.learning_rate = 0.05});
  std::printf("in bfloat16: %s\n", now < before ? "learns" : "does not learn");
}

}  // namespace

int main(int argc, char** argv) { return sr::run(argc, argv, program); }

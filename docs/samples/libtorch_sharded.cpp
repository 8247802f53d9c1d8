#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <syncrun/syncrun.hpp>
#include <syncrun/torch.hpp>
#include <vector>

namespace sr = syncrun;
namespace lt = syncrun::libtorch;

struct Block : torch::nn::Module {
  explicit Block(std::int64_t width) : wide(width, 4 * width), narrow(4 * width, width) {
    register_module("wide", wide);
    register_module("narrow", narrow);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + narrow(torch::tanh(wide(x))); }
  torch::nn::Linear wide, narrow;
};

struct Net : torch::nn::Module {
  Net(std::int64_t count, std::int64_t width) : first(2, width), last(width, 1) {
    register_module("first", first);
    register_module("last", last);
    // [unit]
    for (std::int64_t i = 0; i < count; ++i) {
      blocks.push_back(std::make_shared<lt::Sharded<Block>>(width));  // a Block(width)
      register_module("block" + std::to_string(i), blocks.back());
    }
    // [/unit]
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = first(x);
    for (const auto& block : blocks) y = block->forward(y);
    return last(y).squeeze(1);
  }
  torch::nn::Linear first, last;
  std::vector<std::shared_ptr<lt::Sharded<Block>>> blocks;
};

torch::Tensor loss(Net& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  return torch::mse_loss(net.forward(lt::tensor(x)), lt::tensor(y));
}

void program(sr::Session& session) {
  constexpr std::int64_t kRows = 600;
  auto x = session.data<float, 2>({kRows, 2});
  auto y = session.data<float, 1>({kRows});
  for (std::int64_t i = 0; i < kRows; ++i) {
    const auto [a, b] = std::pair(static_cast<float>(i % 25) / 25, static_cast<float>(i / 25) / 24);
    x.write()(i, 0) = a;
    x.write()(i, 1) = b;
    y.write()[i] = std::sin(3 * a) * b;
  }

  // [program]
  const auto net = session.replicate<lt::ShardedReplica<Net>>(1, 6, 32);  // the seed, and the arguments of Net
  auto params = lt::parameters(session, net);
  auto step = lt::train_step<sr::Adam, loss>(session, net, params, {.form = sr::StepForm::fully_sharded});
  for (int i = 0; i < 50; ++i) step(x, y, {.learning_rate = 0.005});
  lt::save(session, net, params, "net.safetensors");
  // [/program]
  const double last = lt::evaluation<loss>(session, net, params)(x, y);
  const auto all = lt::parts(session, net).back().end;
  std::printf("%d parameters, %d on each rank, %d unit gathered at a time, loss %.2f\n", static_cast<int>(all),
              static_cast<int>(params.shape(0)[0]), static_cast<int>(lt::gather_peak(session, net).units), last);
}

int main(int argc, char** argv) { return sr::run(argc, argv, program); }

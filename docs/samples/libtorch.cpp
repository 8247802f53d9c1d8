#include <cmath>
#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <syncrun/torch.hpp>

namespace sr = syncrun;
namespace lt = syncrun::libtorch;

struct Net : torch::nn::Module {
  Net(std::int64_t in, std::int64_t width) : first(in, width), last(width, 1) {
    register_module("first", first);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(first(x))).squeeze(1); }
  torch::nn::Linear first, last;
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

  const auto net = session.replicate<lt::Replica<Net>>(1, 2, 16);  // the seed, and the arguments of Net
  auto params = lt::parameters(session, net);
  auto step = lt::train_step<sr::Adam, loss>(session, net, params);
  const double first = step(x, y, {.learning_rate = 0.02});
  for (int i = 1; i < 300; ++i) step(x, y, {.learning_rate = 0.02});

  const double last = lt::evaluation<loss>(session, net, params)(x, y);
  std::printf("%d parameters, loss %.2f, then %.2f\n", static_cast<int>(params.shape(0)[0]), first, last);
  lt::save(session, net, params, "net.safetensors");
}

int main(int argc, char** argv) { return sr::run(argc, argv, program); }

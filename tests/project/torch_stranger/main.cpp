// Fits a line with LibTorch. This is like the first program of a user who has installed Syncrun and LibTorch.

#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <syncrun/torch.hpp>
#include <vector>

namespace {

namespace sr = syncrun;

torch::Tensor loss(torch::nn::Linear& line, sr::Scattered<const float, 2> x, sr::Scattered<const float, 2> y) {
  return torch::mse_loss(line(sr::libtorch::tensor(x)), sr::libtorch::tensor(y));
}

void program(sr::Session& session) {
  std::vector<float> x;
  std::vector<float> y;
  for (int i = 0; i < 50; ++i) {
    x.push_back(static_cast<float>(i) / 50);
    y.push_back(3 * x.back() + 1);
  }
  const auto data_x = session.data(x, sr::Shape{50, 1});
  const auto data_y = session.data(y, sr::Shape{50, 1});
  const auto line = session.replicate<sr::libtorch::Replica<torch::nn::Linear>>(1, 1, 1);
  const auto params = sr::libtorch::parameters(session, line);
  auto step = sr::libtorch::train_step<sr::Adam, loss>(session, line, params);
  for (int i = 0; i < 500; ++i) step(data_x, data_y, {.learning_rate = 0.05});
  const auto fitted = params.get(0);
  std::printf("%d workers: y = %.1f x + %.1f\n", session.world_size(), fitted[0], fitted[1]);
}

}  // namespace

int main(int argc, char** argv) { return sr::run(argc, argv, program); }

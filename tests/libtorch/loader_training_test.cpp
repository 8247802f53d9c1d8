// A training on a data set of torch::data, beside the same in an ordinary program of LibTorch.

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace loader_training {

namespace lt = models::lt;
namespace data = torch::data;
using data::transforms::Stack;

constexpr std::uint64_t kSeed = 11;
constexpr std::int64_t kSide = 28;
constexpr std::int64_t kImages = 10'000;  // LibTorch accepts MNIST's test set only with so many

/// A folder with MNIST's test files: the digits of data/digits, enlarged and repeated.
class MnistFolder {
 public:
  MnistFolder() {
    const std::filesystem::path from = SYNCRUN_DIGITS_FOLDER;
    const auto images = bytes_of(from / "digits-train-images-idx3-ubyte").substr(16);
    const auto labels = bytes_of(from / "digits-train-labels-idx1-ubyte").substr(8);
    std::string large, targets;
    for (std::size_t image = 0; image < kImages; ++image) {
      const std::size_t digit = image % labels.size();
      targets += labels[digit];
      for (std::size_t y = 0; y < kSide; ++y) {
        for (std::size_t x = 0; x < kSide; ++x)
          large += static_cast<char>(15 * images[64 * digit + 8 * (y * 8 / kSide) + x * 8 / kSide]);
      }
    }
    write("t10k-images-idx3-ubyte", {2051, kImages, kSide, kSide}, large);
    write("t10k-labels-idx1-ubyte", {2049, kImages}, targets);
  }
  std::string path() const { return folder_.path(); }

 private:
  static std::string bytes_of(const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void write(const std::string& name, const std::vector<std::int64_t>& header, const std::string& bytes) const {
    std::ofstream stream(folder_.path() / name, std::ios::binary);
    for (const std::int64_t number : header) {
      for (const int shift : {24, 16, 8, 0}) stream.put(static_cast<char>(number >> shift));
    }
    stream << bytes;
  }
  TemporaryFolder folder_;
};

auto make_mnist(const std::string& folder) {
  return data::datasets::MNIST(folder, data::datasets::MNIST::Mode::kTest)
      .map(data::transforms::Normalize<>(0.13, 0.31))
      .map(Stack<>());
}
struct Digits {
  sr::Data<float, 4> images;
  sr::Data<std::int64_t, 1> labels;
};
struct Classifier : torch::nn::Module {
  Classifier() : layer(register_module("layer", torch::nn::Linear(kSide * kSide, 10))) {}
  torch::Tensor forward(const torch::Tensor& x) { return layer(x.flatten(1)); }
  torch::nn::Linear layer;
};
torch::Tensor digit_loss(Classifier& net, sr::Scattered<const float, 4> x, sr::Scattered<const std::int64_t, 1> y) {
  return torch::cross_entropy_loss(net.forward(lt::tensor(x)), lt::tensor(y));
}

class LoaderTraining : public OnSharedWorkers {};
INSTANTIATE_ON_WORKERS(LoaderTraining, 1, 3);

/// An ordinary program of LibTorch, and the same with Syncrun.
TEST_P(LoaderTraining, OnMnistIsThatOfLibTorch) {
  constexpr std::size_t kDigitRows = 1501;  // the last batch is shorter, and no rank has as many rows as another
  constexpr double kRate = 0.01;
  const MnistFolder folder;
  std::vector<double> serial;
  torch::manual_seed(3);
  Classifier alone;
  torch::optim::SGD optimizer(alone.parameters(), kRate);
  const auto loader = data::make_data_loader<data::samplers::RandomSampler>(make_mnist(folder.path()), kDigitRows);
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    torch::manual_seed(kSeed + epoch);
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const auto loss = torch::cross_entropy_loss(alone.forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      serial.push_back(loss.item<double>());
    }
  }

  const auto net = session().replicate<lt::Replica<Classifier>>(3);
  const auto params = lt::parameters(session(), net);
  auto step = lt::train_step<sr::Sgd, digit_loss>(session(), net, params);
  auto digits = lt::loader<Digits, make_mnist>(
      session(), {.batch_rows = static_cast<std::int64_t>(kDigitRows), .processes = 2, .seed = kSeed}, folder.path());
  EXPECT_EQ(digits.rows(), kImages);
  std::vector<double> losses;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const Digits& batch : digits) losses.push_back(step(batch.images, batch.labels, {.learning_rate = kRate}));
  }
  ASSERT_EQ(losses.size(), serial.size());
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i] / serial[i], 1, i < 10 ? 1e-6 : 1e-5) << i;
  EXPECT_LT(losses.back(), losses.front()) << "it learns";
}

}  // namespace loader_training
}  // namespace

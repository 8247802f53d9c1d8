// Compares CudaNetwork with Network: loss, gradient and masks must be the same.

#include "demos/common/cuda_network.hpp"

#include <gtest/gtest.h>

#include <type_traits>

#include "demos/common/cuda_kernels.hpp"
#include "demos/common/cuda_owners.hpp"
#include "tests/demos/cuda_support.hpp"
#include "tests/demos/gradient_check.hpp"

namespace demos {
namespace {

using testing::expect_close;
using testing::noise;
using testing::OnDevice;
using testing::read_one;

constexpr std::size_t kClasses = 10;
constexpr StepKey kKey{.seed = 11, .step = 5};

/// A stream and the handles bound to it.
class Handles {
 public:
  CudaHandles get() const { return {stream_.get(), cublas_.get(), cudnn_.get()}; }

 private:
  CudaStream stream_ = make_cuda_stream();
  CublasHandle cublas_ = make_cublas(stream_.get());
#ifdef DEMOS_HAVE_CUDNN
  CudnnHandle cudnn_ = make_cudnn(stream_.get());
#else
  CudnnHandle cudnn_;
#endif
};

template <typename T>
std::vector<T> as(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

/// A network on the CPU and on the GPU, with the same parameters.
template <typename T>
struct Pair {
  static constexpr double kTolerance = std::is_same_v<T, double> ? 1e-10 : 1e-4;

  Handles handles;
  Network<T> cpu;
  CudaNetwork<T> cuda;
  std::vector<T> params;
  std::vector<T> gradient;
  OnDevice<T> device_params;
  OnDevice<T> device_gradient;
  OnDevice<StepKey> key{{kKey}};

  Pair(const std::string& model, std::size_t height, std::size_t width, MatrixMath math = MatrixMath::kFull)
      : cpu(parse_model(model), height, width, kClasses),
        cuda(parse_model(model), height, width, kClasses, math),
        params(initial_params()),
        gradient(params.size()),
        device_params(params),
        device_gradient(std::vector<T>(params.size(), 99)) {}

  std::vector<T> initial_params() const {
    std::vector<T> values(cpu.parameter_count());
    cpu.initialize(values, 3);
    const std::vector<double> moved = noise(values.size(), 5);  // biases start at zero
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += static_cast<T>(0.05 * moved[i]);
    return values;
  }

  /// Expects the same loss and gradient of `rows` rows from both networks.
  void expect_same(std::size_t rows, double tolerance = kTolerance) {
    const std::vector<T> images = as<T>(noise(rows * cpu.image_elements(), 21 + rows));
    std::vector<std::uint8_t> labels(rows);
    std::vector<std::int64_t> ids(rows);
    for (std::size_t i = 0; i < rows; ++i) {
      labels[i] = static_cast<std::uint8_t>(i * 7 % kClasses);
      ids[i] = static_cast<std::int64_t>(i * 31 + 3) << (i % 2 * 30);
    }
    const Outcome expected = cpu.loss_and_gradient(params, images, labels, ids, kKey, gradient);
    const OnDevice<T> device_images(images);
    const OnDevice<std::uint8_t> device_labels(labels);
    const OnDevice<std::int64_t> device_ids(ids);
    const CudaRows<T> device_rows{rows, device_images.data(), device_labels.data(), device_ids.data()};
    const CudaOutcome got =
        cuda.loss_and_gradient(handles.get(), device_rows, device_params.data(), key.data(), device_gradient.data());
    EXPECT_NEAR(read_one(got.mean_loss), expected.mean_loss, tolerance * expected.mean_loss);
    if (tolerance == kTolerance) {
      EXPECT_EQ(read_one(got.correct), expected.correct);
    }
    const std::vector<T> first = device_gradient.read();
    if (tolerance == kTolerance) expect_close(gradient, first, tolerance);
    // With fewer bits, a unit near zero may be on in one network and off in the other. Then the gradients are close as
    // a whole, but not in each element.
    else EXPECT_LT(testing::relative_distance(gradient, first), tolerance);

    cuda.loss_and_gradient(handles.get(), device_rows, device_params.data(), key.data(), device_gradient.data());
    EXPECT_EQ(device_gradient.read(), first) << "the same bits each time";
  }

  void expect_same_evaluation(std::size_t rows) {
    const std::vector<T> images = as<T>(noise(rows * cpu.image_elements(), 77));
    std::vector<std::uint8_t> labels(rows);
    for (std::size_t i = 0; i < rows; ++i) labels[i] = static_cast<std::uint8_t>(i * 3 % kClasses);
    const Outcome expected = cpu.evaluate(params, images, labels);
    const OnDevice<T> device_images(images);
    const OnDevice<std::uint8_t> device_labels(labels);
    const CudaOutcome got =
        cuda.evaluate(handles.get(), {rows, device_images.data(), device_labels.data()}, device_params.data());
    EXPECT_NEAR(read_one(got.mean_loss), expected.mean_loss, kTolerance * expected.mean_loss);
    const double near_ties = std::is_same_v<T, double> ? 0 : 2;
    EXPECT_NEAR(static_cast<double>(read_one(got.correct)), static_cast<double>(expected.correct), near_ties);
  }
};

template <typename T>
class OnCuda : public testing::OnGpu {};
using Elements = ::testing::Types<float, double>;
TYPED_TEST_SUITE(OnCuda, Elements);

TYPED_TEST(OnCuda, AnMlpHasTheGradientOfTheCpu) {
  for (const auto& [height, width] : {std::pair{3, 3}, std::pair{8, 8}, std::pair{5, 7}}) {
    for (const char* model :
         {"custom_mlp:1,5,0,0", "custom_mlp:2,132,0,0", "custom_mlp:3,64,0,0", "custom_mlp:1,800,0,0"}) {
      SCOPED_TRACE(std::string(model) + " on " + std::to_string(height) + " x " + std::to_string(width));
      Pair<TypeParam> pair(model, height, width);
      for (const std::size_t rows : {5, 1, 33, 300}) pair.expect_same(rows);
    }
  }
}

TYPED_TEST(OnCuda, DropoutHasTheMasksOfTheCpu) {
  for (const char* model :
       {"custom_mlp:2,12,0.2,0.5", "custom_mlp:1,130,0,0.3", "custom_mlp:1,7,0.4,0", "custom_mlp:2,260,0,0.5"}) {
    SCOPED_TRACE(model);
    Pair<TypeParam> pair(model, 4, 3);
    for (const std::size_t rows : {7, 70}) pair.expect_same(rows);
  }
}

TYPED_TEST(OnCuda, RowsThatOutgrowTheWorkspaceAreLikeThoseBefore) {
  Pair<TypeParam> pair("custom_mlp:2,20,0,0.5", 4, 4);
  for (const std::size_t rows : {4, 40, 41, 4, 400, 40}) {
    pair.expect_same(rows);
    pair.expect_same_evaluation(2 * rows);
  }
  pair.expect_same_evaluation(9000);  // more than are computed at a time
}

TYPED_TEST(OnCuda, ZeroRowsGiveZeros) {
  Pair<TypeParam> pair("custom_mlp:2,20,0.2,0.5", 4, 4);
  const CudaOutcome none = pair.cuda.loss_and_gradient(pair.handles.get(), {}, pair.device_params.data(),
                                                       pair.key.data(), pair.device_gradient.data());
  EXPECT_EQ(read_one(none.mean_loss), 0);
  EXPECT_EQ(read_one(none.correct), 0);
  EXPECT_EQ(pair.device_gradient.read(), std::vector<TypeParam>(pair.params.size(), 0));
  EXPECT_EQ(read_one(pair.cuda.evaluate(pair.handles.get(), {}, pair.device_params.data()).mean_loss), 0);
}

TYPED_TEST(OnCuda, ACnnHasTheGradientOfTheCpu) {
#ifdef DEMOS_HAVE_CUDNN
  for (const auto& [height, width] : {std::pair{8, 8}, std::pair{5, 7}, std::pair{1, 3}}) {
    SCOPED_TRACE(std::to_string(height) + " x " + std::to_string(width));
    Pair<TypeParam> pair("cnn", height, width);
    for (const std::size_t rows : {3, 1, 17}) pair.expect_same(rows);
    pair.expect_same_evaluation(20);
  }
#else
  EXPECT_THROW(Pair<TypeParam>("cnn", 8, 8), std::runtime_error);
#endif
}

TYPED_TEST(OnCuda, PicksRows) {
  constexpr std::size_t kWidth = 37;   // no multiple of a warp or of four
  constexpr std::size_t kRows = 9000;  // more than the warps of a grid
  const std::vector<TypeParam> from = as<TypeParam>(noise(50 * kWidth, 1));
  std::vector<std::int64_t> ids(kRows);
  std::vector<TypeParam> expected;
  for (std::size_t row = 0; row < kRows; ++row) {
    ids[row] = static_cast<std::int64_t>(row * 7 % 50);
    const auto begin = from.begin() + ids[row] * static_cast<std::int64_t>(kWidth);
    expected.insert(expected.end(), begin, begin + kWidth);
  }
  const OnDevice<TypeParam> device_from(from);
  const OnDevice<std::int64_t> device_ids(ids);
  const OnDevice<TypeParam> to(std::vector<TypeParam>(expected.size()));
  cuda::pick_rows(kRows, kWidth, device_ids.data(), device_from.data(), to.data(), nullptr);
  EXPECT_EQ(to.read(), expected);
}

class OnCudaInTf32 : public testing::OnGpu {};

TEST_F(OnCudaInTf32, AnMlpHasNearlyTheGradientOfTheCpu) {
  Pair<float> pair("custom_mlp:2,128,0,0", 8, 8, MatrixMath::kTf32);
  pair.expect_same(256, 5e-2);
}

class OnCudaLabels : public testing::OnGpu {};

TEST_F(OnCudaLabels, OutOfRangeMakeTheLossNotANumber) {
  Pair<float> pair("custom_mlp:1,5,0,0", 3, 3);
  const OnDevice<float> image(std::vector<float>(9));
  const OnDevice<std::uint8_t> label({kClasses});
  const CudaRows<float> row{1, image.data(), label.data()};
  EXPECT_TRUE(std::isnan(read_one(pair.cuda.evaluate(pair.handles.get(), row, pair.device_params.data()).mean_loss)));
}

}  // namespace
}  // namespace demos

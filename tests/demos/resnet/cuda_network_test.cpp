// A residual network on a GPU. It must give the results of torchvision, and keep the other promises of CpuNetwork.

#include "demos/resnet/network/cuda/cuda_network.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <utility>

#include "demos/common/cuda_graph.hpp"
#include "demos/resnet/network/cuda/cuda_queue.hpp"
#include "tests/demos/cuda_support.hpp"
#include "tests/demos/resnet/reference.hpp"

namespace resnet {
namespace {

using demos::check_cuda;
using demos::testing::OnDevice;
using demos::testing::read_one;
using testing::Reference;
using testing::relative_error;

const SumOverRanks kAlone;

/// A network with the parameters of a reference, and rows [first, first + count) of the reference's batch.
struct Trained {
  Trained(const Architecture& described, CudaMath math, std::size_t all_rows, std::size_t first, std::size_t count)
      : architecture(described),
        rows(count),
        network(described, math),
        params(testing::reference_params(described)),
        statistics(testing::reference_statistics(described)),
        gradient(std::vector<float>(described.parameter_count, 99)),
        images(part(testing::reference_images(described, all_rows), all_rows, first, count)),
        labels(part(testing::reference_labels(described, all_rows), all_rows, first, count)) {}
  Trained(const Architecture& described, CudaMath math, std::size_t rows) : Trained(described, math, rows, 0, rows) {}
  Trained(const Reference& reference, CudaMath math) : Trained(reference.architecture, math, reference.rows) {}

  template <typename T>
  static std::vector<T> part(const std::vector<T>& all, std::size_t rows, std::size_t first, std::size_t count) {
    const std::size_t each = all.size() / rows;
    std::vector<T> chosen(all.begin() + static_cast<std::ptrdiff_t>(first * each),
                          all.begin() + static_cast<std::ptrdiff_t>((first + count) * each));
    chosen.resize(std::max<std::size_t>(chosen.size(), 1));  // the array has an address even without rows
    return chosen;
  }

  CudaBatch batch() const {
    return {.rows = rows,
            .images = nullptr,
            .labels = labels.data(),
            .row_ids = nullptr,
            .image_shape = {},
            .preparation = {},
            .key = nullptr,
            .normalised = images.data()};
  }
  CudaOutcome put_step(const SumOverRanks& sum = kAlone, const ReadyFrom& ready = {}) {
    return network.loss_and_gradient(queue.handles(), batch(), params.data(), statistics.data(),
                                     {.label_smoothing = testing::kReferenceSmoothing}, sum, gradient.data(), ready);
  }
  /// Resets the running statistics. Sums are centred on them, so the bits of a step depend on them.
  void forget_statistics() { statistics.write(testing::reference_statistics(architecture)); }
  double step(const SumOverRanks& sum = kAlone) { return read_one(put_step(sum).mean_loss); }
  std::vector<float> logits() {
    const float* const place = network.logits(queue.handles(), batch(), params.data(), statistics.data());
    std::vector<float> values(rows * architecture.spec.classes);
    check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check_cuda(cudaMemcpy(values.data(), place, values.size() * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

  Architecture architecture;
  std::size_t rows;
  CudaQueue queue;
  CudaNetwork network;
  OnDevice<float> params;
  OnDevice<float> statistics;
  OnDevice<float> gradient;
  OnDevice<float> images;
  OnDevice<std::int64_t> labels;
};

/// A step that is captured as a CUDA graph.
class CapturedStep {
 public:
  explicit CapturedStep(Trained& trained)
      : trained_(trained),
        graph_(trained.queue.stream(), cudaStreamCaptureModeThreadLocal, [this] { outcome_ = trained_.put_step(); }) {}

  /// Returns the loss.
  double run() {
    graph_.launch(trained_.queue.stream());
    return read_one(outcome_.mean_loss);
  }

 private:
  Trained& trained_;
  CudaOutcome outcome_{};
  demos::CudaGraph graph_;
};

double norm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

/// Rounding decides about single ReLUs, and so about much of the gradient. Only the size of each array of the gradient
/// is similar.
void expect_gradients_of_like_size(const Architecture& architecture, const std::vector<float>& got,
                                   const std::vector<float>& expected) {
  for (const NamedArray& array : testing::parameter_arrays(architecture)) {
    const double ratio = norm(std::span(got).subspan(array.offset, array.elements())) /
                         norm(std::span(expected).subspan(array.offset, array.elements()));
    EXPECT_GT(ratio, 0.3) << array.name;
    EXPECT_LT(ratio, 3) << array.name;
  }
}

class CudaNetworkLikeTorchvision : public demos::testing::OnGpu, public ::testing::WithParamInterface<const char*> {
 protected:
  const Reference reference_{GetParam()};
};

TEST_P(CudaNetworkLikeTorchvision, GivesItsLogitsGradientStatisticsAndTenLosses) {
  Trained trained(reference_, CudaMath::kFloat32);
  const std::vector<float> logits = trained.logits();
  EXPECT_LT(relative_error(logits, reference_.logits), 1e-4);
  for (std::size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(logits[i], reference_.logits[i], 1e-4) << i;

  std::vector<float> params = trained.params.read();
  std::vector<float> momentum(params.size());
  for (std::size_t step = 0; step < reference_.losses.size(); ++step) {
    const double tolerance = step == 0 ? 1e-4 : 1e-2 * reference_.losses[step];
    EXPECT_NEAR(trained.step(), reference_.losses[step], tolerance) << "step " << step;
    const std::vector<float> gradient = trained.gradient.read();
    if (step == 0) {
      testing::expect_reference_gradient(reference_, gradient, 1e-3);
      EXPECT_LT(relative_error(trained.statistics.read(), reference_.moved_statistics), 1e-5);
    }
    for (std::size_t i = 0; i < params.size(); ++i) {
      momentum[i] = testing::kReferenceMomentum * momentum[i] + gradient[i];
      params[i] -= testing::kReferenceRate * momentum[i];
    }
    trained.params.write(params);
  }
}

TEST_P(CudaNetworkLikeTorchvision, IsNearItInBfloat16AndTf32) {
  for (const CudaMath math : {CudaMath::kTf32, CudaMath::kBfloat16}) {
    SCOPED_TRACE(math == CudaMath::kTf32 ? "tf32" : "bfloat16");
    Trained trained(reference_, math);
    EXPECT_LT(relative_error(trained.logits(), reference_.logits), 0.05);
    EXPECT_NEAR(trained.step(), reference_.losses[0], 0.03 * reference_.losses[0]);
    Trained exact(reference_, CudaMath::kFloat32);
    exact.step();
    expect_gradients_of_like_size(trained.architecture, trained.gradient.read(), exact.gradient.read());
  }
}

INSTANTIATE_TEST_SUITE_P(Depths, CudaNetworkLikeTorchvision, ::testing::Values("resnet18", "resnet50"),
                         [](const auto& tested) { return std::string(tested.param); });

/// A network with as many channels as published. Some of its convolutions are products of the demo's own, with numbers
/// of positions that fill no tile.
Architecture full_width(int depth = 50, std::size_t image_size = 40) {
  return plan({.depth = depth, .image_size = image_size, .classes = 10, .width = 64});
}
/// The published size of images. With it, the first convolution is a product of the demo's own too, and its output is
/// the largest array of ResNet-18.
constexpr std::size_t kPublishedSize = 224;

class CudaNetworkSteps : public demos::testing::OnGpu {
 protected:
  const Reference reference_{"resnet50"};

  struct Case {
    Architecture architecture;
    CudaMath math;
  };
  std::vector<Case> cases() const {
    return {{reference_.architecture, CudaMath::kFloat32},
            {reference_.architecture, CudaMath::kBfloat16},
            {full_width(), CudaMath::kBfloat16},
            {full_width(18, kPublishedSize), CudaMath::kBfloat16}};
  }
};

TEST_F(CudaNetworkSteps, AreTheSameBitsAgainAndCaptured) {
  for (const auto& [architecture, math] : cases()) {
    Trained trained(architecture, math, reference_.rows);
    const double loss = trained.step();
    const std::vector<float> gradient = trained.gradient.read();
    trained.forget_statistics();
    EXPECT_EQ(trained.step(), loss);
    EXPECT_EQ(trained.gradient.read(), gradient);

    CapturedStep captured(trained);
    trained.gradient.write(std::vector<float>(gradient.size(), 99));
    trained.forget_statistics();
    EXPECT_EQ(captured.run(), loss);
    EXPECT_EQ(trained.gradient.read(), gradient);
  }
}

TEST_F(CudaNetworkSteps, OfFullWidthAreNearFloat32InBfloat16) {
  for (const Architecture& architecture :
       {full_width(), full_width(50, kPublishedSize), full_width(18, kPublishedSize)}) {
    SCOPED_TRACE(architecture.spec.depth);
    SCOPED_TRACE(architecture.spec.image_size);
    Trained exact(architecture, CudaMath::kFloat32, reference_.rows);
    Trained trained(architecture, CudaMath::kBfloat16, reference_.rows);
    const double loss = exact.step();
    EXPECT_NEAR(trained.step(), loss, 0.03 * loss);
    EXPECT_LT(relative_error(trained.statistics.read(), exact.statistics.read()), 0.03);
    expect_gradients_of_like_size(trained.architecture, trained.gradient.read(), exact.gradient.read());
    trained.forget_statistics();
    exact.forget_statistics();
    EXPECT_LT(relative_error(trained.logits(), exact.logits()), 0.05) << "in evaluation";
    EXPECT_NEAR(trained.step(), loss, 0.03 * loss) << "after an evaluation";
  }
}

TEST_F(CudaNetworkSteps, TellWhatOfTheGradientIsFinal) {
  for (const auto& [architecture, math] : cases()) {
    Trained trained(architecture, math, reference_.rows);
    trained.step();
    const std::vector<float> whole = trained.gradient.read();
    trained.gradient.write(std::vector<float>(whole.size(), 99));
    trained.forget_statistics();
    std::size_t told = whole.size();
    std::size_t times = 0;
    const auto ready = [&](std::size_t first) {
      ASSERT_LT(first, told);
      const std::vector<float> now = trained.gradient.read();
      const auto at = [](const std::vector<float>& values, std::size_t place) {
        return values.begin() + static_cast<std::ptrdiff_t>(place);
      };
      EXPECT_TRUE(std::equal(at(now, first), at(now, told), at(whole, first))) << "from " << first << " to " << told;
      told = first;
      ++times;
    };
    static_cast<void>(trained.put_step(kAlone, ready));
    EXPECT_EQ(times, trained.architecture.blocks.size() + 1);
    EXPECT_EQ(told, trained.architecture.units[1].weights_offset);
    EXPECT_EQ(trained.gradient.read(), whole);
  }
}

TEST_F(CudaNetworkSteps, ThatWereCapturedStayValidBesideOthers) {
  Trained trained(reference_, CudaMath::kBfloat16);
  const double loss = trained.step();
  const std::vector<float> gradient = trained.gradient.read();
  CapturedStep captured(trained);

  const OnDevice<float> more_images(testing::reference_images(trained.architecture, 3 * reference_.rows));
  const OnDevice<std::int64_t> more_labels(testing::reference_labels(trained.architecture, 3 * reference_.rows));
  CudaBatch batch = trained.batch();
  batch.normalised = more_images.data();
  batch.labels = more_labels.data();
  for (const std::size_t rows : {reference_.rows - 1, 3 * reference_.rows}) {
    batch.rows = rows;
    static_cast<void>(trained.network.loss_and_gradient(trained.queue.handles(), batch, trained.params.data(),
                                                        trained.statistics.data(), {}, kAlone,
                                                        trained.gradient.data()));
    EXPECT_NE(trained.gradient.read(), gradient) << rows;
  }
  trained.forget_statistics();
  EXPECT_EQ(captured.run(), loss);
  EXPECT_EQ(trained.gradient.read(), gradient);
}

TEST_F(CudaNetworkSteps, OfNoRowsGiveZerosAndMoveNothingNorDoThoseOfAllRanks) {
  const SumOverRanks of_none = [](std::span<float>) {};
  for (const auto& [math, sum] : {std::pair(CudaMath::kBfloat16, kAlone), std::pair(CudaMath::kFloat32, of_none)}) {
    Trained trained(reference_.architecture, math, reference_.rows, 0, 0);
    EXPECT_EQ(trained.step(sum), 0);
    EXPECT_EQ(trained.gradient.read(), std::vector<float>(trained.architecture.parameter_count));
    EXPECT_EQ(trained.statistics.read(), testing::reference_statistics(trained.architecture));
  }
}

TEST_F(CudaNetworkSteps, SayInTheirLossThatAPixelIsNoNumber) {
  for (const CudaMath math : {CudaMath::kFloat32, CudaMath::kBfloat16}) {
    Trained trained(reference_, math);
    std::vector<float> images = testing::reference_images(reference_.architecture, reference_.rows);
    images[images.size() / 2] = std::numeric_limits<float>::quiet_NaN();
    trained.images.write(images);
    EXPECT_TRUE(std::isnan(trained.step()));
  }
}

TEST_F(CudaNetworkSteps, SayWhatTheyWantWhereMemoryIsShort) {
  Trained trained(reference_.architecture, CudaMath::kFloat32, reference_.rows, 0, reference_.rows);
  CudaBatch batch = trained.batch();
  batch.rows = std::size_t{1} << 24;
  try {
    static_cast<void>(
        trained.network.evaluate(trained.queue.handles(), batch, trained.params.data(), trained.statistics.data()));
    FAIL() << "so much memory there is not";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("16777216 rows at once require"),
                                               ::testing::HasSubstr("GiB"), ::testing::HasSubstr("more slices")));
  }
  EXPECT_NEAR(trained.step(), reference_.losses[0], 1e-4) << "it goes on with what fits";
}

/// Adds up values of two threads through the host. Each thread has a network of its own.
class TwoRanks {
 public:
  SumOverRanks sum_of(std::size_t rank) {
    return [this, rank](std::span<float> values) {
      std::vector<float>& own = values_[rank];
      own.resize(values.size());
      check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      check_cuda(cudaMemcpy(own.data(), values.data(), values.size_bytes(), cudaMemcpyDeviceToHost), "cudaMemcpy");
      meet_.arrive_and_wait();
      std::vector<float> sum(own.size());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = values_[0][i] + values_[1][i];
      meet_.arrive_and_wait();
      check_cuda(cudaMemcpy(values.data(), sum.data(), values.size_bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
      check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // cudaMemcpy may return before they have arrived
    };
  }

 private:
  std::array<std::vector<float>, 2> values_;
  std::barrier<> meet_{2};
};

/// A step that two ranks take together, and its results.
struct StepOfTwo {
  StepOfTwo(const Architecture& architecture, CudaMath math, std::size_t rows, std::size_t of_first) {
    Trained first(architecture, math, rows, 0, of_first);
    Trained second(architecture, math, rows, of_first, rows - of_first);
    TwoRanks ranks;
    double first_loss = 0;
    std::thread other([&] { first_loss = first.step(ranks.sum_of(0)); });
    const double second_loss = second.step(ranks.sum_of(1));
    other.join();

    const double weight = static_cast<double>(of_first) / static_cast<double>(rows);
    loss = weight * first_loss + (1 - weight) * second_loss;
    gradient = second.gradient.read();
    const std::vector<float> part = first.gradient.read();
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = static_cast<float>(weight * part[i] + (1 - weight) * gradient[i]);
    statistics = second.statistics.read();
    EXPECT_EQ(first.statistics.read(), statistics);
  }
  double loss;
  std::vector<float> gradient;
  std::vector<float> statistics;
};

class CudaNetworkOfTwoRanks : public demos::testing::OnGpu, public ::testing::WithParamInterface<std::size_t> {};

TEST_P(CudaNetworkOfTwoRanks, ComputesTheWholeBatchTogether) {
  const Reference reference("resnet18");
  Trained whole(reference, CudaMath::kFloat32);
  const double loss = whole.step();
  const StepOfTwo together(reference.architecture, CudaMath::kFloat32, reference.rows, GetParam());
  EXPECT_NEAR(together.loss, loss, 1e-5);
  EXPECT_LT(relative_error(together.gradient, whole.gradient.read()), 1e-4);
  EXPECT_LT(relative_error(together.statistics, whole.statistics.read()), 1e-5);
}

TEST_P(CudaNetworkOfTwoRanks, DoesSoNearlyInBfloat16) {
  constexpr std::size_t kRows = 4;
  Trained whole(full_width(), CudaMath::kBfloat16, kRows);
  const double loss = whole.step();
  const StepOfTwo together(whole.architecture, CudaMath::kBfloat16, kRows, GetParam());
  EXPECT_NEAR(together.loss, loss, 0.03 * loss);
  EXPECT_LT(relative_error(together.statistics, whole.statistics.read()), 0.03);
  expect_gradients_of_like_size(whole.architecture, together.gradient, whole.gradient.read());
}

INSTANTIATE_TEST_SUITE_P(RowsOfTheFirst, CudaNetworkOfTwoRanks, ::testing::Values(0, 1, 3));

}  // namespace
}  // namespace resnet

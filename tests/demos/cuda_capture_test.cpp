// A step of CudaNetwork that is captured into a CUDA graph, as in a replayable function of Syncrun.

#include <cublas_v2.h>
#include <gtest/gtest.h>

#include "demos/common/cuda_graph.hpp"
#include "demos/common/cuda_network.hpp"
#include "demos/common/cuda_owners.hpp"
#include "tests/demos/cuda_support.hpp"
#include "tests/demos/gradient_check.hpp"

namespace demos {
namespace {

using testing::noise;
using testing::OnDevice;
using testing::read_one;

constexpr std::size_t kRows = 50;
constexpr std::size_t kPixels = 12;
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20U;

class CapturedStep : public testing::OnGpu {};

TEST_F(CapturedStep, GivesTheBitsOfTheStepForEveryKeyAlsoAfterTheWorkspaceHasGrown) {
  const CudaStream stream = make_cuda_stream();
  const DeviceBuffer workspace(kWorkspaceBytes);
  const CublasHandle cublas = make_cublas(stream.get());
  check_cublas(cublasSetWorkspace(cublas.get(), workspace.data(), workspace.bytes()), "cublasSetWorkspace");
  const CudaHandles handles{stream.get(), cublas.get(), nullptr};

  CudaNetwork<double> network(parse_model("custom_mlp:2,40,0.2,0.5"), 4, 3, 10);
  const OnDevice<double> params(noise(network.parameter_count(), 1));
  const OnDevice<double> images(noise(10 * kRows * kPixels, 2));
  const OnDevice<std::uint8_t> labels(std::vector<std::uint8_t>(10 * kRows, 3));
  const OnDevice<std::int64_t> ids(std::vector<std::int64_t>(10 * kRows, 5));
  const OnDevice<double> gradient(std::vector<double>(network.parameter_count()));
  OnDevice<StepKey> key({StepKey{}});
  const auto step_of = [&](std::size_t rows) {
    return network.loss_and_gradient(handles, {rows, images.data(), labels.data(), ids.data()}, params.data(),
                                     key.data(), gradient.data());
  };

  step_of(kRows);
  const CudaGraph graph(stream.get(), cudaStreamCaptureModeRelaxed, [&] { step_of(kRows); });
  step_of(10 * kRows);
  for (std::uint32_t number = 1; number <= 3; ++number) {
    key.write({StepKey{.seed = 7, .step = number}});
    const double loss = read_one(step_of(kRows).mean_loss);
    const std::vector<double> expected = gradient.read();
    graph.launch(stream.get());
    EXPECT_EQ(gradient.read(), expected) << "step " << number;
    EXPECT_EQ(read_one(step_of(kRows).mean_loss), loss) << "step " << number;
  }
}

}  // namespace
}  // namespace demos

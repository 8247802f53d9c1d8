// Memsets of a captured graph that become kernels. Requires one GPU.

#include "worker/devices/cuda/graph_memsets.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "tests/support/gpus.hpp"
#include "worker/devices/cuda/check.hpp"
#include "worker/devices/cuda/owners.hpp"

namespace syncrun::detail {
namespace {

constexpr std::size_t kBytes = std::size_t{4} << 20U;
constexpr unsigned char kBefore = 0x77;

class MemsetsOfAGraph : public testing::Test {
 protected:
  void SetUp() override {
    if (test::gpus_present() == 0) GTEST_SKIP() << "no GPU is present";
    void* memory = nullptr;
    worker::devices::cuda::check_cuda(cudaMalloc(&memory, kBytes), "cudaMalloc");
    memory_ = worker::devices::cuda::GpuMemory(memory);
    stream_ = worker::devices::cuda::Stream::make();
  }
  /// Captures what `put` puts on the stream.
  template <class Put>
  worker::devices::cuda::Graph capture(Put&& put) {
    worker::devices::cuda::check_cuda(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeRelaxed),
                                      "cudaStreamBeginCapture");
    put();
    cudaGraph_t graph = nullptr;
    worker::devices::cuda::check_cuda(cudaStreamEndCapture(stream_.get(), &graph), "cudaStreamEndCapture");
    return worker::devices::cuda::Graph(graph);
  }
  void run(const worker::devices::cuda::Graph& graph) {
    cudaGraphExec_t made = nullptr;
    worker::devices::cuda::check_cuda(cudaGraphInstantiate(&made, graph.get(), 0), "cudaGraphInstantiate");
    const worker::devices::cuda::GraphExec exec(made);
    worker::devices::cuda::check_cuda(cudaGraphLaunch(exec.get(), stream_.get()), "cudaGraphLaunch");
    worker::devices::cuda::check_cuda(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  }
  std::byte* at(std::size_t offset) const { return static_cast<std::byte*>(memory_.get()) + offset; }
  void fill_before() {
    worker::devices::cuda::check_cuda(cudaMemset(memory_.get(), kBefore, kBytes), "cudaMemset");
    worker::devices::cuda::check_cuda(cudaDeviceSynchronize(),
                                      "cudaDeviceSynchronize");  // the stream does not wait for other ones
  }
  std::vector<unsigned char> bytes() const {
    std::vector<unsigned char> all(kBytes);
    worker::devices::cuda::check_cuda(cudaMemcpy(all.data(), memory_.get(), kBytes, cudaMemcpyDeviceToHost),
                                      "cudaMemcpy");
    return all;
  }
  std::vector<unsigned char> bytes_after(const worker::devices::cuda::Graph& graph) {
    fill_before();
    run(graph);
    return bytes();
  }
  worker::devices::cuda::GpuMemory memory_;
  worker::devices::cuda::Stream stream_;
};

TEST_F(MemsetsOfAGraph, WriteTheSameBytes) {
  const auto put = [this] {
    std::size_t offset = 0;
    for (const std::size_t count : {1, 3, 4, 16, 17, 100, 4096, 5000, 65536, 262144}) {
      for (const std::size_t shift : {0, 1, 4}) {
        worker::devices::cuda::check_cuda(cudaMemsetAsync(at(offset + shift), 0xab, count, stream_.get()),
                                          "cudaMemsetAsync");
        offset += (count + 512) / 256 * 256;
      }
    }
    ASSERT_LE(offset, kBytes - (std::size_t{1} << 20U));
  };
  const auto expected = bytes_after(capture(put));
  const worker::devices::cuda::Graph replaced = capture(put);
  EXPECT_EQ(worker::devices::cuda::replace_memsets(replaced.get(), 0), 30);
  EXPECT_EQ(bytes_after(replaced), expected);
}

TEST_F(MemsetsOfAGraph, WriteElementsOfSeveralBytes) {
  struct Element {
    unsigned size;
    unsigned value;
    std::size_t offset;
    std::size_t count;
  };
  const auto make = [this] {
    cudaGraph_t made = nullptr;
    worker::devices::cuda::check_cuda(cudaGraphCreate(&made, 0), "cudaGraphCreate");
    worker::devices::cuda::Graph graph(made);
    for (const Element& one : {Element{2, 0x0201, 0, 3}, Element{2, 0x0403, 64, 1024}, Element{4, 0x08070605, 4096, 5},
                               Element{4, 0x0c0b0a09, 8192, 4096}}) {
      cudaMemsetParams memset{};
      memset.dst = at(one.offset);
      memset.elementSize = one.size;
      memset.value = one.value;
      memset.width = one.count;
      memset.height = 1;
      cudaGraphNode_t node = nullptr;
      worker::devices::cuda::check_cuda(cudaGraphAddMemsetNode(&node, graph.get(), nullptr, 0, &memset),
                                        "cudaGraphAddMemsetNode");
    }
    return graph;
  };
  const auto expected = bytes_after(make());
  EXPECT_EQ(expected[1], 2);
  EXPECT_EQ(expected[4096 + 19], 8);
  const worker::devices::cuda::Graph replaced = make();
  EXPECT_EQ(worker::devices::cuda::replace_memsets(replaced.get(), 0), 4);
  EXPECT_EQ(bytes_after(replaced), expected);
}

TEST_F(MemsetsOfAGraph, KeepTheirPlaceBetweenOtherNodes) {
  const auto put = [this] {
    worker::devices::cuda::check_cuda(cudaMemsetAsync(at(0), 1, 1024, stream_.get()), "cudaMemsetAsync");
    worker::devices::cuda::check_cuda(cudaMemcpyAsync(at(1024), at(0), 1024, cudaMemcpyDeviceToDevice, stream_.get()),
                                      "cudaMemcpyAsync");
    worker::devices::cuda::check_cuda(cudaMemsetAsync(at(0), 2, 1024, stream_.get()), "cudaMemsetAsync");
    worker::devices::cuda::check_cuda(cudaMemcpyAsync(at(2048), at(0), 2048, cudaMemcpyDeviceToDevice, stream_.get()),
                                      "cudaMemcpyAsync");
    worker::devices::cuda::check_cuda(cudaMemsetAsync(at(512), 3, 512, stream_.get()), "cudaMemsetAsync");
  };
  const worker::devices::cuda::Graph graph = capture(put);
  EXPECT_EQ(worker::devices::cuda::replace_memsets(graph.get(), 0), 3);
  for (int i = 0; i < 20; ++i) {
    const auto all = bytes_after(graph);
    for (std::size_t k = 0; k < 512; ++k) {
      ASSERT_EQ(all[k], 2);
      ASSERT_EQ(all[k + 512], 3);
      ASSERT_EQ(all[k + 1024], 1);
      ASSERT_EQ(all[k + 2048], 2);
      ASSERT_EQ(all[k + 3072], 1);
    }
  }
}

TEST_F(MemsetsOfAGraph, AreFoundBesideNodesWhoseTypeTheRuntimeLacks) {
  constexpr unsigned kSinceCuda = 11070;  // a version in the format of the driver
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  const auto code =
      cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &found, kSinceCuda, cudaEnableDefault, &result);
#else
  const auto code = cudaGetDriverEntryPoint("cuStreamBatchMemOp", &found, cudaEnableDefault, &result);
#endif
  if (code != cudaSuccess || result != cudaDriverEntryPointSuccess) GTEST_SKIP() << "no cuStreamBatchMemOp";
  const auto batch_mem_op = reinterpret_cast<decltype(&cuStreamBatchMemOp)>(found);
  const worker::devices::cuda::Graph graph = capture([&] {
    worker::devices::cuda::check_cuda(cudaMemsetAsync(at(0), 1, 1024, stream_.get()), "cudaMemsetAsync");
    CUstreamBatchMemOpParams write{};
    write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.writeValue.address = reinterpret_cast<CUdeviceptr>(at(512));
    write.writeValue.value = 0x09090909;
    ASSERT_EQ(batch_mem_op(stream_.get(), 1, &write, 0), CUDA_SUCCESS);
    worker::devices::cuda::check_cuda(cudaMemsetAsync(at(1024), 2, 1024, stream_.get()), "cudaMemsetAsync");
  });
  EXPECT_EQ(worker::devices::cuda::replace_memsets(graph.get(), 0), 2);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  const auto all = bytes_after(graph);
  EXPECT_EQ(all[511], 1);
  EXPECT_EQ(all[512], 9);
  EXPECT_EQ(all[516], 1);
  EXPECT_EQ(all[2047], 2);
}

TEST_F(MemsetsOfAGraph, StayIfTheyAreLargeOrOfSeveralRows) {
  const worker::devices::cuda::Graph graph = capture([this] {
    worker::devices::cuda::check_cuda(cudaMemsetAsync(at(0), 1, kBytes, stream_.get()), "cudaMemsetAsync");
    worker::devices::cuda::check_cuda(cudaMemset2DAsync(at(0), 64, 2, 32, 4, stream_.get()), "cudaMemset2DAsync");
  });
  EXPECT_EQ(worker::devices::cuda::replace_memsets(graph.get(), 0), 0);
  const auto all = bytes_after(graph);
  EXPECT_EQ(all[31], 2);
  EXPECT_EQ(all[32], 1);
  EXPECT_EQ(all[64], 2);
  EXPECT_EQ(all[kBytes - 1], 1);
}

}  // namespace
}  // namespace syncrun::detail

#include "worker/devices/cuda/stream_meetings.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <iterator>
#include <string>

#include "syncrun/error.hpp"
#include "worker/devices/cuda/check.hpp"

namespace syncrun::detail::worker::devices::cuda {

namespace {

constexpr std::chrono::microseconds kReleaseInterval{100};
constexpr unsigned kSinceCuda = 11070;  // a version in the format of the driver

CUstreamBatchMemOpParams write_of(CUdeviceptr address, std::uint32_t value) noexcept {
  CUstreamBatchMemOpParams operation{};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = address;
  operation.writeValue.value = value;
  operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // after everything the stream has written before
  return operation;
}

CUstreamBatchMemOpParams wait_for(CUdeviceptr address, std::uint32_t value) noexcept {
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = address;
  operation.waitValue.value = value;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return operation;
}

/// Finds the function at run time. So the library can be loaded on machines without a driver.
void* batch_mem_op() noexcept {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  const cudaError_t code =
      cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &found, kSinceCuda, cudaEnableDefault, &result);
#else
  const cudaError_t code = cudaGetDriverEntryPoint("cuStreamBatchMemOp", &found, cudaEnableDefault, &result);
#endif
  return code == cudaSuccess && result == cudaDriverEntryPointSuccess ? found : nullptr;
}

}  // namespace

std::span<std::uint32_t> StreamMeetings::own_words() const noexcept {
  return host_.meeting_words(attachment_.rank).first(static_cast<std::size_t>(attachment_.world_size) * kSteps);
}

/// The word on rank `at` that says that rank `from` has reached the step.
CUdeviceptr StreamMeetings::word(int at, int step, int from) const noexcept {
  const auto ranks = static_cast<std::size_t>(attachment_.world_size);
  const std::size_t index = static_cast<std::size_t>(step) * ranks + static_cast<std::size_t>(from);
  return pages_[static_cast<std::size_t>(at)] + index * sizeof(std::uint32_t);
}

bool StreamMeetings::open() noexcept {
  if (!pages_.empty()) return true;
  batch_mem_op_ = reinterpret_cast<BatchMemOp>(batch_mem_op());
  try {
    if (batch_mem_op_ != nullptr && register_pages() && is_able()) {
      releaser_ = std::jthread([this](const std::stop_token& stop) { release_while_wanted(stop); });
      return true;
    }
  } catch (const std::exception&) {  // no thread or no memory available
  }
  close();
  static_cast<void>(cudaGetLastError());
  return false;
}

bool StreamMeetings::register_pages() {
  for (int rank = 0; rank < attachment_.world_size; ++rank) {
    const auto words = host_.meeting_words(rank);
    if (cudaHostRegister(words.data(), words.size_bytes(), cudaHostRegisterPortable | cudaHostRegisterMapped) !=
        cudaSuccess) {
      return false;
    }
    registered_.emplace_back(words.data());
    void* on_device = nullptr;
    if (cudaHostGetDevicePointer(&on_device, words.data(), 0) != cudaSuccess) return false;
    pages_.push_back(reinterpret_cast<CUdeviceptr>(on_device));
  }
  return true;
}

/// Tries whether a stream can write a word and wait for it, also in a graph.
bool StreamMeetings::is_able() const {
  const CUdeviceptr own = word(attachment_.rank, 0, attachment_.rank);
  CUstreamBatchMemOpParams operations[] = {write_of(own, 1), wait_for(own, 1), write_of(own, 0)};
  const auto meets_itself = [&](const Stream& stream) {
    return batch_mem_op_(stream.get(), std::size(operations), operations, 0) == CUDA_SUCCESS;
  };
  const Stream stream = Stream::make();
  if (!meets_itself(stream)) return false;
  if (cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeRelaxed) != cudaSuccess) return false;
  const bool is_captured = meets_itself(stream);
  cudaGraph_t captured = nullptr;
  const bool is_ended = cudaStreamEndCapture(stream.get(), &captured) == cudaSuccess;
  const Graph graph(captured);
  cudaGraphExec_t made = nullptr;
  if (!is_captured || !is_ended || cudaGraphInstantiate(&made, graph.get(), 0) != cudaSuccess) return false;
  const GraphExec exec(made);
  return cudaGraphLaunch(exec.get(), stream.get()) == cudaSuccess && cudaStreamSynchronize(stream.get()) == cudaSuccess;
}

void StreamMeetings::close() noexcept {
  end_release();
  releaser_ = {};
  registered_.clear();
  pages_.clear();
}

void StreamMeetings::meet(int step, cudaStream_t stream) const {
  const int ranks = attachment_.world_size;
  const int own = attachment_.rank;
  std::vector<CUstreamBatchMemOpParams> operations;
  operations.reserve(static_cast<std::size_t>(ranks) * 3);
  for (int k = 1; k < ranks; ++k) operations.push_back(write_of(word((own + k) % ranks, step, own), 1));
  for (int k = 1; k < ranks; ++k) operations.push_back(wait_for(word(own, step, (own + k) % ranks), 1));
  for (int k = 1; k < ranks; ++k) operations.push_back(write_of(word(own, step, (own + k) % ranks), 0));
  const CUresult code = batch_mem_op_(stream, static_cast<unsigned>(operations.size()), operations.data(), 0);
  if (code == CUDA_SUCCESS) return;
  throw Error(ErrorKind::cuda, "cuStreamBatchMemOp, for an average: CUresult " + std::to_string(code),
              static_cast<int>(code));
}

void StreamMeetings::clear() noexcept {
  end_release();
  for (std::uint32_t& word : own_words()) std::atomic_ref(word).store(0, std::memory_order_seq_cst);
}

void StreamMeetings::set_releasing(bool releasing) noexcept {
  {
    const os::MutexLock lock(mutex_);
    is_releasing_ = releasing;
  }
  wanted_.notify_one();
}

void StreamMeetings::release_while_wanted(const std::stop_token& stop) {
  os::UniqueLock lock(mutex_);
  while (wanted_.wait(lock, stop, [this]() SYNCRUN_REQUIRES(mutex_) { return is_releasing_; })) {
    for (std::uint32_t& word : own_words()) std::atomic_ref(word).store(1, std::memory_order_seq_cst);
    wanted_.wait_for(lock, stop, kReleaseInterval, [this]() SYNCRUN_REQUIRES(mutex_) { return !is_releasing_; });
  }
}

}  // namespace syncrun::detail::worker::devices::cuda

#include "worker/cuda/background_stream.hpp"

#include <utility>

#include "worker/cuda/check.hpp"

namespace syncrun::detail {

BackgroundStream::~BackgroundStream() {
  if (joined_ != nullptr) static_cast<void>(cudaEventDestroy(joined_));
  if (forked_ != nullptr) static_cast<void>(cudaEventDestroy(forked_));
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
}

void BackgroundStream::make() {
  int least = 0;
  int most = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &most), "cudaDeviceGetStreamPriorityRange");
  if (forked_ == nullptr) check_cuda(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming), "cudaEventCreate");
  if (joined_ == nullptr) check_cuda(cudaEventCreateWithFlags(&joined_, cudaEventDisableTiming), "cudaEventCreate");
  // First to get a multiprocessor: peers wait for what it does.
  check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, most), "cudaStreamCreate");
}

cudaStream_t BackgroundStream::fork(cudaStream_t worker) {
  if (!is_made()) make();
  check_cuda(cudaEventRecord(forked_, worker), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(stream_, forked_), "cudaStreamWaitEvent");
  is_ahead_ = true;
  return stream_;
}

void BackgroundStream::join(cudaStream_t worker) {
  if (!std::exchange(is_ahead_, false)) return;
  check_cuda(cudaEventRecord(joined_, stream_), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(worker, joined_), "cudaStreamWaitEvent");
}

void BackgroundStream::abandon() noexcept {
  is_ahead_ = false;
  if (is_made()) static_cast<void>(cudaStreamSynchronize(stream_));
}

}  // namespace syncrun::detail

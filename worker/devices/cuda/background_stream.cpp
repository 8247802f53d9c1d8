#include "worker/devices/cuda/background_stream.hpp"

#include <utility>

#include "worker/devices/cuda/check.hpp"

namespace syncrun::detail::worker::devices::cuda {

void BackgroundStream::make() {
  if (!forked_) forked_ = Event::make();
  if (!joined_) joined_ = Event::make();
  for (Event& event : marks_) {  // so that little can fail after a collective has started
    if (!event) event = Event::make();
  }
  // The highest priority, because peers wait for the work of this stream.
  stream_ = Stream::make(stream_priorities().most);
}

cudaStream_t BackgroundStream::fork(cudaStream_t worker) {
  if (!is_made()) make();
  check_cuda(cudaEventRecord(forked_.get(), worker), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(stream_.get(), forked_.get()), "cudaStreamWaitEvent");
  is_ahead_ = true;
  return stream_.get();
}

void BackgroundStream::join(cudaStream_t worker) {
  if (!std::exchange(is_ahead_, false)) return;
  check_cuda(cudaEventRecord(joined_.get(), stream_.get()), "cudaEventRecord");
  check_cuda(cudaStreamWaitEvent(worker, joined_.get()), "cudaStreamWaitEvent");
}

std::uint64_t BackgroundStream::mark() {
  check_cuda(cudaEventRecord(marks_[mark_count_ % marks_.size()].get(), stream_.get()), "cudaEventRecord");
  return mark_count_++;
}

void BackgroundStream::join(std::uint64_t mark, cudaStream_t worker) {
  check_cuda(cudaStreamWaitEvent(worker, marks_[mark % marks_.size()].get()), "cudaStreamWaitEvent");
}

void BackgroundStream::abandon() noexcept {
  is_ahead_ = false;
  if (is_made()) static_cast<void>(cudaStreamSynchronize(stream_.get()));
}

}  // namespace syncrun::detail::worker::devices::cuda

#include "worker/comm/end_if_stuck.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "common/os/threads.hpp"

namespace syncrun::detail::worker::comm {

namespace {
using Clock = std::chrono::steady_clock;

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kNextLook{100};
}  // namespace

EndIfStuck::EndIfStuck(const process::Attachment& attachment, const protocol::RankSet& ranks, Milliseconds limit)
    : attachment_(attachment), ranks_(ranks), limit_(limit) {
  if (attachment.control.header().respawns) watcher_ = os::start_thread([this] { watch(); });
}

EndIfStuck::~EndIfStuck() {
  if (!watcher_.joinable()) return;
  {
    const os::MutexLock lock(mutex_);
    is_over_ = true;
  }
  has_ended_.notify_one();
  watcher_.join();
}

bool EndIfStuck::is_lost(int rank) const noexcept {
  return attachment_.control.worker(rank).is_lost.load(std::memory_order_seq_cst) != 0;
}

int EndIfStuck::lost_rank() const noexcept {
  const auto lost = std::find_if(ranks_.begin(), ranks_.end(), [this](int rank) { return is_lost(rank); });
  return lost == ranks_.end() ? -1 : *lost;
}

int EndIfStuck::survivors_before() const noexcept {
  return static_cast<int>(std::count_if(ranks_.begin(), ranks_.end(),
                                        [this](int rank) { return rank < attachment_.rank && !is_lost(rank); }));
}

void EndIfStuck::watch() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  Milliseconds waited{0};  // since the first look that saw the loss
  auto last_look = os::Clock::now();
  os::UniqueLock lock(mutex_);
  while (!has_ended_.wait_for(lock, kNextLook, [this]() SYNCRUN_REQUIRES(mutex_) { return is_over_; })) {
    const auto now = os::Clock::now();
    const auto since = std::chrono::duration_cast<Milliseconds>(now - std::exchange(last_look, now));
    const int lost = lost_rank();
    if (lost < 0) continue;
    waited += std::min(since, 2 * kNextLook);  // while a signal or a debugger stops the process, no time passes
    if (waited < limit_ + survivors_before() * kBetween) continue;
    const std::string text =
        "NCCL connected GPUs when rank " + std::to_string(lost) +
        " was lost, and waits for it in a call that nothing can interrupt. So this worker ends, and "
        "is replaced too\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    ::kill(::getpid(), SIGKILL);
  }
}

}  // namespace syncrun::detail::worker::comm

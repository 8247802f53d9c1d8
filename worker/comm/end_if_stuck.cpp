#include "worker/comm/end_if_stuck.hpp"

#include <signal.h>
#include <unistd.h>

#include <string>

#include "common/os/threads.hpp"

namespace syncrun::detail {

namespace {
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kNextLook{100};
}  // namespace

EndIfStuck::EndIfStuck(const Attachment& attachment, const RankSet& ranks, Milliseconds limit)
    : attachment_(attachment), ranks_(ranks), limit_(limit) {
  if (attachment.control.header().respawns) watcher_ = start_thread([this] { watch(); });
}

EndIfStuck::~EndIfStuck() {
  if (!watcher_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  has_ended_.notify_one();
  watcher_.join();
}

int EndIfStuck::lost_rank() const noexcept {
  for (const int rank : ranks_) {
    if (attachment_.control.worker(rank).is_lost.load(std::memory_order_seq_cst) != 0) return rank;
  }
  return -1;
}

void EndIfStuck::watch() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
  auto lost_at = Clock::time_point::max();
  std::unique_lock lock(mutex_);
  while (!has_ended_.wait_for(lock, kNextLook, [this] { return is_over_; })) {
    const int lost = lost_rank();
    if (lost < 0) continue;
    const auto now = Clock::now();
    if (lost_at == Clock::time_point::max()) lost_at = now;
    if (now - lost_at < limit_) continue;
    const std::string text =
        "NCCL connected GPUs when rank " + std::to_string(lost) +
        " was lost, and waits for it in a call that nothing can interrupt. So this worker ends, and "
        "is replaced too\n";
    static_cast<void>(::write(STDERR_FILENO, text.data(), text.size()));
    ::kill(::getpid(), SIGKILL);
  }
}

}  // namespace syncrun::detail

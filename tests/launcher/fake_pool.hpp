#pragma once

// Workers without processes: the control block is plain memory of the test, which plays the workers' part in it.

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "launcher/worker_pool.hpp"

namespace syncrun::test {

using detail::ChildEnd;
using detail::Clock;
using detail::ControlBlock;
using detail::Milliseconds;

class FakePool final : public detail::WorkerPool {
 public:
  static constexpr int kFirstPid = 100;

  explicit FakePool(int world_size) : memory_(ControlBlock::bytes(world_size)) {
    set_control(ControlBlock(memory_.begin(), world_size));
    for (int rank = 0; rank < world_size; ++rank) pids_.push_back(kFirstPid + rank);
  }

  // ---- the workers' part
  /// The rank is done with everything up to `id`.
  void finish(int rank, std::uint64_t id) { control().worker(rank).done.store(id); }
  void finish_all(std::uint64_t id) {
    for (int rank = 0; rank < world_size(); ++rank) finish(rank, id);
  }
  /// The rank fails in a command, the `order`-th of all; 0: it shares somebody else's failure.
  void fail(int rank, std::uint64_t id, std::int64_t order, const std::string& message) {
    detail::Outbox& outbox = control().outbox(id, rank);
    outbox.vote = detail::Vote::failed;
    outbox.error_kind = ErrorKind::function;
    outbox.native_code = 0;
    outbox.failed_ns = order == 0 ? std::numeric_limits<std::int64_t>::max() : order;
    outbox.failed_phase = detail::Phase::function;
    outbox.is_fatal = false;
    detail::put_text(outbox.message, message);
    control().command(id).failed.store(id);
  }
  void set_phase(int rank, std::uint64_t id, detail::Phase phase) {
    control().worker(rank).progress.store(detail::progress_word(id, phase));
  }
  void die(int rank, ChildEnd end) {
    ends_[rank] = std::move(end);
    control().worker(rank).is_lost.store(1);
    std::uint64_t none = 0;
    control().header().lost.compare_exchange_strong(none, static_cast<std::uint64_t>(rank) + 1);
  }

  // ---- what is asked of it
  std::vector<std::string> log;  // of what was done, in order
  std::map<int, std::vector<std::string>> stderr_lines;
  std::map<int, int> stop_signals;
  std::string kill_note;
  std::set<int> immortal;  // that do not end

  void start() override { log.emplace_back("start"); }
  void watch() override { log.emplace_back("watch"); }
  void expect_ends() noexcept override {}
  void kill_all() noexcept override {}
  void end() noexcept override {}
  int pid(int rank) const noexcept override { return pids_[static_cast<std::size_t>(rank)]; }
  ChildEnd await_end(int rank) override { return ends_[rank]; }
  std::optional<int> end_status(int rank) override { return ends_[rank].wait_status; }
  bool await_all_ends(Milliseconds) override { return true; }
  int stop_signal(int rank) const override {
    const auto found = stop_signals.find(rank);
    return found == stop_signals.end() ? 0 : found->second;
  }
  int tracer(int) const override { return 0; }
  void take_stacks(std::vector<RankState>&) override { log.emplace_back("take stacks"); }
  std::vector<std::string> last_stderr(int rank) override { return stderr_lines[rank]; }
  std::string describe_kill() const override { return kill_note; }
  std::optional<Error> blindness() const override { return std::nullopt; }
  bool is_debugged() const override { return false; }
  Clock::duration awake_time(Clock::time_point) noexcept override { return {}; }
  bool bury(int rank) override {
    log.push_back("bury " + std::to_string(rank));
    return immortal.count(rank) == 0;
  }
  void replace(const std::vector<int>& ranks) override {
    for (const int rank : ranks) {
      log.push_back("replace " + std::to_string(rank));
      pids_[static_cast<std::size_t>(rank)] += 100;
      ends_.erase(rank);
      stderr_lines.erase(rank);
      control().worker(rank).is_lost.store(0);
    }
    control().header().lost.store(0);
  }
  void watch(int rank) override { log.push_back("watch " + std::to_string(rank)); }

 private:
  /// Zeros, in whole lines of the cache, as a segment is.
  class Memory {
   public:
    explicit Memory(std::size_t bytes)
        : bytes_(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kAlign}))) {
      std::fill(bytes_, bytes_ + bytes, std::byte{});
    }
    ~Memory() { ::operator delete(bytes_, std::align_val_t{kAlign}); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    std::byte* begin() noexcept { return bytes_; }

   private:
    static constexpr std::size_t kAlign = 128;
    std::byte* bytes_;
  };

  Memory memory_;
  std::vector<int> pids_;
  std::map<int, ChildEnd> ends_;
};

}  // namespace syncrun::test

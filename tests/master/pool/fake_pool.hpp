#pragma once

// A pool of workers without processes. The test does in the control block what the workers would do.

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "master/pool/worker_pool.hpp"
#include "master/process/spawn.hpp"

namespace syncrun::test {

using detail::master::process::ChildEnd;
using detail::os::Clock;
using detail::os::Milliseconds;
using detail::protocol::ControlBlock;

class FakePool final : public detail::master::pool::WorkerPool {
 public:
  static constexpr int kFirstPid = 100;

  static constexpr std::size_t kHeapBytes = std::size_t{16} << 20U;

  explicit FakePool(int world_size) {
    set_memory(detail::os::Segment::create(detail::os::Segment::kSmallestReservation), world_size);
    detail::protocol::ControlHeader& header = control().header();
    header.world_size = static_cast<std::uint32_t>(world_size);
    header.place = detail::protocol::NodePlace::alone(world_size);
    header.heap_offset = (ControlBlock::bytes(world_size) / kPageBytes + 1) * kPageBytes;
    header.heap_bytes = kHeapBytes;
    for (int rank = 0; rank < world_size; ++rank) pids_.push_back(kFirstPid + rank);
  }

  // ---- what the test does in place of workers
  /// The rank has finished all commands up to `id`.
  void finish(int rank, std::uint64_t id) { control().worker(rank).done.store(id); }
  void finish_all(std::uint64_t id) {
    for (int rank = 0; rank < world_size(); ++rank) finish(rank, id);
  }
  /// The function of the rank fails in command `id`. This may be the next command, which is not published yet. `order`
  /// says which of all failures it is, from 1; 0: the rank shares the failure of another rank.
  void fail(int rank, std::uint64_t id, std::int64_t order, const std::string& message) {
    detail::protocol::Command* const published = find(id);
    detail::protocol::Command& command = published != nullptr ? *published : control().command_in(0);
    auto& place = command.places[static_cast<std::size_t>(rank)];
    const auto known_place = place;
    for (std::uint8_t any = 0; published == nullptr && any < detail::protocol::kInboxSize; ++any) {
      place = any;
      fail_in(control().outbox(command, rank), order, message);
    }
    place = known_place;
    fail_in(control().outbox(command, rank), order, message);
    command.failed.store(id);
  }
  void set_phase(int rank, std::uint64_t id, detail::protocol::Phase phase) {
    control().worker(rank).progress.store(detail::protocol::progress_word(id, phase));
  }
  void die(int rank, ChildEnd end) {
    ends_[rank] = std::move(end);
    control().worker(rank).is_lost.store(1);
    std::uint64_t none = 0;
    control().header().lost.compare_exchange_strong(none, static_cast<std::uint64_t>(rank) + 1);
  }

  /// The worker ends without being lost.
  void end_by_itself(int rank, int wait_status = 0) {
    ends_[rank] = {wait_status, detail::master::process::describe_status(wait_status)};
  }
  static ChildEnd killed() { return {SIGKILL, detail::master::process::describe_status(SIGKILL)}; }

  // ---- what the code under test asks of the pool
  std::vector<std::string> log;  // what the pool has done, in order
  std::map<int, std::vector<std::string>> stderr_lines;
  std::set<int> immortal;         // ranks whose processes do not end when they are reaped
  std::function<void()> on_reap;  // called by reap()
  bool successors_are_ready = false;

  void start() override {
    log.emplace_back("start");
    for (int rank = 0; rank < world_size(); ++rank)
      control().worker(rank).start.store(detail::protocol::StartState::ready);
  }
  void watch() override { log.emplace_back("watch"); }
  void expect_ends() noexcept override { log.emplace_back("expect ends"); }
  void kill_all() noexcept override {
    log.emplace_back("kill all");
    for (int rank = 0; rank < world_size(); ++rank) ends_.try_emplace(rank, killed());
  }
  void end() noexcept override { log.emplace_back("end"); }
  int pid(int rank) const noexcept override { return pids_[static_cast<std::size_t>(rank)]; }
  ChildEnd await_end(int rank) override { return ends_[rank]; }
  std::optional<int> end_status(int rank) override { return ends_[rank].wait_status; }
  bool await_all_ends(Milliseconds) override { return ends_.size() == pids_.size(); }
  int stop_signal(int) const override { return 0; }
  int tracer(int) const override { return 0; }
  void take_stacks(std::vector<RankState>&) override { log.emplace_back("take stacks"); }
  std::vector<std::string> last_stderr(int rank) override { return stderr_lines[rank]; }
  std::string describe_kill() const override { return {}; }
  std::optional<Error> watch_failure() const override { return std::nullopt; }
  bool is_debugged() const override { return false; }
  Clock::duration awake_time(Clock::time_point) noexcept override { return {}; }
  bool reap(int rank) override {
    log.push_back("reap " + std::to_string(rank));
    if (on_reap) on_reap();
    return immortal.count(rank) == 0;
  }
  void replace(const std::vector<detail::master::pool::Successor>& successors) override {
    for (const detail::master::pool::Successor& successor : successors) {
      const int rank = successor.rank;
      log.push_back("replace " + std::to_string(rank));
      pids_[static_cast<std::size_t>(rank)] += 100;
      ends_.erase(rank);
      stderr_lines.erase(rank);
      control().worker(rank).is_lost.store(0);
      if (successors_are_ready) control().worker(rank).start.store(detail::protocol::StartState::ready);
    }
    control().header().lost.store(0);
  }
  void watch(int rank) override { log.push_back("watch " + std::to_string(rank)); }

 private:
  /// The slot of a command, or null if it has not been published.
  detail::protocol::Command* find(std::uint64_t id) const {
    for (std::size_t slot = 0; slot < control().slots(); ++slot) {
      if (control().command_in(slot).id == id) return &control().command_in(slot);
    }
    return nullptr;
  }
  static void fail_in(detail::protocol::Outbox& outbox, std::int64_t order, const std::string& message) {
    outbox.vote = detail::protocol::Vote::failed;
    outbox.error_kind = ErrorKind::function;
    outbox.native_code = 0;
    outbox.failed_ns = order == 0 ? std::numeric_limits<std::int64_t>::max() : order;
    outbox.failed_phase = detail::protocol::Phase::function;
    outbox.is_fatal = false;
    outbox.may_have_updated = false;
    detail::text::put_text(outbox.message, message);
  }

  static constexpr std::size_t kPageBytes = std::size_t{1} << 16U;

  std::vector<int> pids_;
  std::map<int, ChildEnd> ends_;
};

}  // namespace syncrun::test

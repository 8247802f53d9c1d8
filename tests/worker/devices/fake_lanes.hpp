#pragma once

// The lanes of a device for tests: queues whose work runs later, as on a GPU. The order of work in different queues is
// chosen at random among all that a GPU may choose. So code that forgets an order gets wrong values in some of the runs.
// Device memory is not host memory: an address in it cannot be used on the host.

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <new>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "syncrun/error.hpp"
#include "worker/devices/staging.hpp"

namespace syncrun::test {

/// The lowest address in device memory. No process may use addresses above it.
inline constexpr std::uintptr_t kDeviceMemory = std::uintptr_t{1} << 56U;
/// Where the host finds what is at an address in device memory.
template <class T>
T* host_view(T* device_memory) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(device_memory) - kDeviceMemory);
}
/// The address in device memory for memory of the host.
inline std::byte* device_view(void* host_memory) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(host_memory) + kDeviceMemory);
}

/// Work of a device, in order.
class WorkQueue {
 public:
  using Clock = std::chrono::steady_clock;
  struct Step {
    std::function<void()> run;
    std::function<bool()> may_run{};  // empty: always
    bool computes = false;            // until it may run
  };

  void push_back(std::function<void()> work) { steps_.push_back({std::move(work)}); }
  /// What comes later waits until this returns true.
  void wait_until(std::function<bool()> condition) {
    steps_.push_back({[] {}, std::move(condition)});
  }
  /// The device computes for this time, which begins when earlier work is done.
  void compute_for(std::chrono::microseconds time) {
    const auto is_over = [time, end = Clock::time_point{}]() mutable {
      if (end == Clock::time_point{}) end = Clock::now() + time;
      return Clock::now() >= end;
    };
    steps_.push_back({[] {}, is_over, true});
  }
  /// The device loses its context, as after an illegal address.
  void lose_context() {
    push_back([this] {
      has_lost_context_ = true;
      throw Error(ErrorKind::cuda, "the fake GPU's context is lost");
    });
  }
  bool has_lost_context() const { return has_lost_context_; }
  void push_all(const std::deque<Step>& steps) { steps_.insert(steps_.end(), steps.begin(), steps.end()); }
  /// Takes all steps out of the queue.
  std::deque<Step> take() { return std::exchange(steps_, {}); }

  bool is_empty() const { return steps_.empty(); }
  bool is_computing() const { return !steps_.empty() && steps_.front().computes; }
  /// Runs the first step, if there is one and it may run.
  bool run_one() {
    if (steps_.empty() || (steps_.front().may_run && !steps_.front().may_run())) return false;
    const Step step = std::move(steps_.front());
    steps_.pop_front();
    step.run();
    return true;
  }

 private:
  std::deque<Step> steps_;
  bool has_lost_context_ = false;
};

/// Device memory that is given out again as soon as it was released, as that of a GPU's pool.
class FakeMemory {
 public:
  FakeMemory() = default;
  FakeMemory(const FakeMemory&) = delete;
  FakeMemory& operator=(const FakeMemory&) = delete;
  ~FakeMemory() {
    for (const auto& [memory, bytes] : blocks_) std::free(host_view(memory));
  }
  detail::worker::devices::StagingLanes::Block allocate(std::size_t bytes) {
    std::size_t size = kAlignment;
    while (size < bytes) size *= 2;
    if (const auto found = free_.find(size); found != free_.end()) {
      void* const memory = found->second;
      free_.erase(found);
      return {memory, size};
    }
    if (held_ + size > most_bytes) throw Error(ErrorKind::system, "the fake device has too little memory", ENOMEM);
    void* const memory = std::aligned_alloc(kAlignment, size);
    if (memory == nullptr) throw std::bad_alloc();
    held_ += size;
    return {blocks_.emplace(device_view(memory), size).first->first, size};
  }
  void release(void* memory) { free_.emplace(blocks_.at(memory), memory); }
  bool has_free() const { return !free_.empty(); }
  /// Frees the blocks that were released.
  void trim() {
    for (const auto& [bytes, memory] : std::exchange(free_, {})) {
      std::free(host_view(memory));
      blocks_.erase(memory);
      held_ -= bytes;
    }
  }

  std::size_t most_bytes = std::numeric_limits<std::size_t>::max();

 private:
  static constexpr std::size_t kAlignment = 256;
  std::map<void*, std::size_t> blocks_;
  std::multimap<std::size_t, void*> free_;
  std::size_t held_ = 0;
};

class FakeLanes final : public detail::worker::devices::StagingLanes {
 public:
  explicit FakeLanes(std::uint32_t seed = 1) : random_(seed) {}

  /// The lane of bodies. Its address stays the same.
  WorkQueue& work() { return queues_[0]; }
  FakeMemory& memory() { return memory_; }
  bool has_lost_context() const { return queues_[0].has_lost_context(); }

  /// Returns when the lane `work` is empty. Calls `poll()` meanwhile. In each call of finish(), the other lane hurries, lags
  /// behind, or does one or the other from step to step.
  template <class Poll>
  void finish(Poll&& poll) {
    const auto pace = random_() % 3;
    while (!work().is_empty()) {
      poll();
      const bool hurries = pace == 0 || (pace == 1 && toss());
      if ((hurries && ahead().run_one()) || work().run_one()) continue;
      if (work().is_computing()) std::this_thread::sleep_for(std::chrono::microseconds(20));
      else ahead().run_one();  // the lane `work` waits for it
    }
  }
  bool toss() { return random_() % 2 == 0; }
  /// Forgets the work of bodies, as after a failed call.
  void abandon_work() {
    static_cast<void>(work().take());
    marks_[0].reached = marks_[0].made;
  }

  Block allocate(std::size_t bytes, Effort) override {
    try {
      return memory_.allocate(bytes);
    } catch (const Error&) {
      if (!memory_.has_free()) throw;
      await_all();  // as a GPU does before it frees memory
      memory_.trim();
      return memory_.allocate(bytes);
    }
  }
  void release(void* memory) noexcept override { memory_.release(memory); }
  void bring(void* to, const detail::worker::devices::SharedRows& from,
             const detail::worker::devices::RowsWanted& wanted, Lane lane) override {
    std::vector<Copy> copies;
    const auto at = [&](std::int64_t row) { return from.array + static_cast<std::size_t>(row) * from.row_bytes; };
    if (wanted.indices == nullptr) {
      copies.push_back({to, at(wanted.first), from.row_bytes * static_cast<std::size_t>(wanted.rows)});
    } else {
      for (std::int64_t i = 0; i < wanted.rows; ++i) {
        auto* const place = static_cast<std::byte*>(to) + static_cast<std::size_t>(i) * from.row_bytes;
        copies.push_back({place, at(wanted.indices[i]), from.row_bytes});
      }
    }
    // A GPU copies long rows at once, and gathers the others for all arguments together.
    if (wanted.indices == nullptr && copies.front().bytes >= kCopiedBytes) copy(std::move(copies), lane);
    else requests_.insert(requests_.end(), copies.begin(), copies.end());
  }
  void gather_local(void* to, const std::byte* array, std::size_t row_bytes, const std::int64_t* indices,
                    std::int64_t rows) override {
    for (std::int64_t i = 0; i < rows; ++i) {
      requests_.push_back({static_cast<std::byte*>(to) + static_cast<std::size_t>(i) * row_bytes,
                           host_view(array) + static_cast<std::size_t>(indices[i]) * row_bytes, row_bytes});
    }
  }
  void start(Lane lane) override {
    if (!requests_.empty()) copy(std::exchange(requests_, {}), lane);
  }
  void forget_requests() noexcept override { requests_.clear(); }
  void mark(Lane lane) override {
    Mark& mark = marks_[index(lane)];
    queues_[index(lane)].push_back([&mark, number = ++mark.made] { mark.reached = number; });
  }
  void follow(Lane lane) override {
    const Mark& mark = marks_[1 - index(lane)];
    queues_[index(lane)].wait_until([&mark, number = mark.made] { return mark.reached >= number; });
  }
  /// The lane `ahead` waits only for calls that have ended.
  void await_ahead() noexcept override {
    while (!ahead().is_empty()) {
      if (!ahead().run_one() && !work().run_one()) std::this_thread::yield();
    }
  }

 private:
  static constexpr std::size_t kCopiedBytes = std::size_t{64} << 10U;
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  struct Mark {
    std::uint64_t made = 0;
    std::uint64_t reached = 0;
  };
  static std::size_t index(Lane lane) { return static_cast<std::size_t>(lane); }
  WorkQueue& ahead() { return queues_[1]; }
  void await_all() {
    while (!work().is_empty() || !ahead().is_empty()) {
      if (!ahead().run_one() && !work().run_one()) std::this_thread::yield();
    }
  }
  void copy(std::vector<Copy> copies, Lane lane) {
    queues_[index(lane)].push_back([copies = std::move(copies)] {
      for (const Copy& each : copies) std::memcpy(host_view(each.to), each.from, each.bytes);
    });
  }

  std::array<WorkQueue, 2> queues_;  // by lane
  std::array<Mark, 2> marks_;        // by lane
  std::vector<Copy> requests_;
  FakeMemory memory_;
  std::minstd_rand random_;
};

}  // namespace syncrun::test

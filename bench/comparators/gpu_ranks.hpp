#pragma once

// Runs one process per GPU, for the comparators that use CUDA and NCCL directly. The processes are forked before any of
// them makes a CUDA call. They share a page of memory.

#include <cuda_runtime_api.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/comparators/gpu_owners.hpp"

namespace comparators {

inline constexpr int kMaxRanks = 64;

/// The memory that the ranks share.
struct Meeting {
  std::atomic<std::uint32_t> arrived{0};
  std::atomic<std::uint32_t> round{0};
  std::array<double, kMaxRanks> numbers{};
  std::array<std::byte, 1024> bytes{};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// What one rank uses to communicate with the others. Each rank is a process.
class Peers {
 public:
  Peers(Meeting& meeting, int rank, int size) noexcept : meeting_(meeting), rank_(rank), size_(size) {}

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// Blocks until every rank has called it. It spins, so that the ranks continue at the same time. Now and then it
  /// yields its core, in case there are more processes than cores.
  void barrier() noexcept {
    constexpr int kSpinsPerYield = 4096;
    const std::uint32_t round = meeting_.round.load(std::memory_order_acquire);
    if (meeting_.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<std::uint32_t>(size_)) {
      meeting_.arrived.store(0, std::memory_order_relaxed);
      meeting_.round.store(round + 1, std::memory_order_release);  // also publishes the reset of `arrived`
      return;
    }
    for (int spins = 1; meeting_.round.load(std::memory_order_acquire) == round; ++spins) {
      if (spins % kSpinsPerYield == 0) ::sched_yield();
    }
  }

  /// Returns the largest number that a rank has passed. All ranks call it.
  double max(double number) noexcept {
    meeting_.numbers[static_cast<std::size_t>(rank_)] = number;
    barrier();
    const double largest = *std::max_element(meeting_.numbers.begin(), meeting_.numbers.begin() + size_);
    barrier();
    return largest;
  }

  /// Returns the value of rank 0 on every rank. All ranks call it.
  template <class T>
  T from_first(T value) noexcept {
    static_assert(sizeof(T) <= sizeof(Meeting::bytes) && std::is_trivially_copyable_v<T>);
    if (rank_ == 0) std::memcpy(meeting_.bytes.data(), &value, sizeof(T));
    barrier();
    std::memcpy(&value, meeting_.bytes.data(), sizeof(T));
    barrier();
    return value;
  }

 private:
  Meeting& meeting_;
  int rank_;
  int size_;
};

/// Runs `body(peers)` in one process per GPU. Rank r uses GPU r, which is the current device of its process. If one
/// process fails, the others are killed. Returns the exit code for main. The caller must not have made a CUDA call
/// before.
template <class Body>
int run_on_gpus(int count, Body body) {
  if (count < 1 || count > kMaxRanks) throw std::invalid_argument("--workers: expected 1 to 64");
  void* const memory = ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
  auto& meeting = *new (memory) Meeting;

  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < count; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    int code = 0;
    try {
      check_cuda(cudaSetDevice(rank));
      Peers peers(meeting, rank, count);
      body(peers);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "error: rank %d: %s\n", rank, error.what());
      code = 1;
    }
    std::fflush(nullptr);
    ::_exit(code);
  }

  int code = 0;
  for (int left = count; left > 0; --left) {
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, 0);
    std::erase(children, ended);
    if (status == 0 || code != 0) continue;
    code = 1;
    for (const pid_t child : children) ::kill(child, SIGKILL);
  }
  return code;
}

/// Runs `main`, which parses the options and then runs the ranks. Reports exceptions, and returns the exit code.
template <class Main>
int report_errors(Main main) noexcept {
  try {
    return main();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

// ---- owners ---------------------------------------------------------------------------------------------------

enum class Place { device, pinned_host };

class GpuBuffer {
 public:
  GpuBuffer(Place place, std::size_t bytes) : place_(place) {
    check_cuda(place == Place::device ? cudaMalloc(&memory_, bytes)
                                      : cudaHostAlloc(&memory_, bytes, cudaHostAllocDefault));
  }
  ~GpuBuffer() { static_cast<void>(place_ == Place::device ? cudaFree(memory_) : cudaFreeHost(memory_)); }
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(memory_);
  }

 private:
  Place place_;
  void* memory_ = nullptr;
};

}  // namespace comparators

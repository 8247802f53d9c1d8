#pragma once

// Owners of NCCL's communicators, memory and windows. Each has a move-only type.

#include <nccl.h>

#include <cstddef>
#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

#include "bench/comparators/gpu_owners.hpp"
#include "bench/comparators/gpu_ranks.hpp"

namespace comparators {

/// Throws std::runtime_error with the place of the call if `code` is an error.
inline void check_nccl(ncclResult_t code, std::source_location where = std::source_location::current()) {
  if (code == ncclSuccess) return;
  throw std::runtime_error(std::string(ncclGetErrorString(code)) + " at " + where.file_name() + ":" +
                           std::to_string(where.line()));
}

/// A communicator of all ranks. Every rank constructs one, and the constructor waits for the other ranks.
class NcclCommunicator : public GpuOwner<ncclComm_t, ncclCommDestroy> {
 public:
  explicit NcclCommunicator(Peers& peers) : GpuOwner(make(peers)) {}
  /// The ranks of `all` with the same color, in the order of their ranks.
  NcclCommunicator(const NcclCommunicator& all, int color, int rank) : GpuOwner(split(all, color, rank)) {}

 private:
  static ncclComm_t split(const NcclCommunicator& all, int color, int rank) {
    ncclComm_t comm = nullptr;
    check_nccl(ncclCommSplit(all.get(), color, rank, &comm, nullptr));
    return comm;
  }
  static ncclComm_t make(Peers& peers) {
    ncclUniqueId id{};
    if (peers.rank() == 0) check_nccl(ncclGetUniqueId(&id));
    id = peers.from_first(id);
    ncclComm_t comm = nullptr;
    check_nccl(ncclCommInitRank(&comm, peers.size(), id, peers.rank()));
    return comm;
  }
};

/// Device memory that can be registered as a window.
class NcclMemory : public GpuOwner<void*, ncclMemFree> {
 public:
  explicit NcclMemory(std::size_t bytes) : GpuOwner(make(bytes)) {}

 private:
  static void* make(std::size_t bytes) {
    void* memory = nullptr;
    check_nccl(ncclMemAlloc(&memory, bytes));
    return memory;
  }
};

/// Memory that all ranks have registered together. NCCL can then read and write the memory of peers directly. The
/// communicator and the memory must outlive the window.
class NcclWindow {
 public:
  NcclWindow(const NcclCommunicator& comm, const NcclMemory& memory, std::size_t bytes) : comm_(&comm) {
    check_nccl(ncclCommWindowRegister(comm.get(), memory.get(), bytes, &window_, NCCL_WIN_COLL_SYMMETRIC));
  }
  NcclWindow(NcclWindow&& other) noexcept : comm_(other.comm_), window_(std::exchange(other.window_, nullptr)) {}
  NcclWindow& operator=(NcclWindow&& other) noexcept {
    std::swap(comm_, other.comm_);
    std::swap(window_, other.window_);
    return *this;
  }
  ~NcclWindow() {
    if (window_ != nullptr) static_cast<void>(ncclCommWindowDeregister(comm_->get(), window_));
  }

 private:
  const NcclCommunicator* comm_;
  ncclWindow_t window_ = nullptr;
};

}  // namespace comparators

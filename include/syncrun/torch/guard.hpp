#pragma once

// Guard: prepares a worker for LibTorch in a body of your own. average(): for bodies that use an optimizer of LibTorch.

#include <torch/torch.h>

#include <utility>

#include "syncrun/cuda_worker.hpp"
#include "syncrun/detail/handle_access.hpp"
#include "syncrun/torch/torch_interface.hpp"
#include "syncrun/worker.hpp"

namespace syncrun::libtorch {

/// Prepares the worker for LibTorch during the lifetime of this object. Replica's own functions do this themselves.
///
/// - On a CUDA device, LibTorch puts its work on the worker's stream, and tensor() makes tensors of the worker's GPU.
///   The first Guard throws Error (usage) if LibTorch or Syncrun has no CUDA here, or if the process has a cuDNN that
///   LibTorch cannot use.
/// - LibTorch computes with as many threads as the worker's OMP_NUM_THREADS says, which Syncrun sets.
/// - On a CPU device, the process keeps the memory of freed tensors for the next step: of each up to 32 MiB, and 1 GiB in
///   all. Settings of glibc's malloc in the environment, such as MALLOC_TRIM_THRESHOLD_, stay as they are. Limits that
///   the program has set with mallopt() before the first Guard are replaced.
/// - An error of LibTorch names the line of the program that caused it, in place of a backtrace of C++ functions.
class Guard {
 public:
  /// Begins the scope on this worker. Throws Error (usage) as above.
  explicit Guard(CpuWorker& worker) : Guard(worker, nullptr) {}
  explicit Guard(CudaWorker& worker) : Guard(worker, nullptr) {}
  /// Modules that compute with all ranks (SyncBatchNorm) use `comm` during the lifetime of this object.
  Guard(CpuWorker& worker, Comm& comm) : Guard(worker, &comm) {}
  Guard(CudaWorker& worker, Comm& comm) : Guard(worker, &comm) {}
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// Runs code of the body, and returns its result. An error of LibTorch that it throws becomes an Error with the same
  /// message, and without LibTorch's own source line.
  template <class Code>
  decltype(auto) run(Code&& code) const {
    try {
      return std::forward<Code>(code)();
    } catch (const c10::Error& error) {
      detail::rethrow_plainly(error);
    }
  }

 private:
  friend struct syncrun::detail::HandleAccess;

  template <class Worker>
  Guard(Worker& worker, Comm* comm, detail::BodyMemory memory = detail::BodyMemory::lasting)
      : prepared_(worker, comm, memory) {}

  detail::PreparedWorker prepared_;
};

/// Whether average() compares the modules of the ranks first.
enum class ReplicaCheck : bool {
  off,  ///< It does not.
  on    ///< It compares the parameters.
};

/// Averages the gradients of a module over all ranks, for a body that updates the parameters with an optimizer of
/// LibTorch:
///
///   optimizer.zero_grad();
///   loss.backward();
///   sr::libtorch::average(comm, net);
///   optimizer.step();
///
/// All ranks must call it. The weight of each rank is its number of rows (see Comm::all_reduce). So if the loss is the
/// mean over the rank's rows, the result is the gradient of the mean over all rows. A parameter without a gradient on
/// this rank counts as zero, and has a gradient afterwards. Throws Error (usage) if a gradient is sparse or not of a
/// floating-point type, and the errors of a collective.
///
/// With ReplicaCheck::on, throws Error (function) on all ranks if parameters of the ranks differ. The message names
/// the first. The check reads all parameters, and copies them from a GPU.
inline void average(Comm& comm, ::torch::nn::Module& net, ReplicaCheck check = ReplicaCheck::off) {
  if (check == ReplicaCheck::on) detail::check_equal_modules(comm, net);
  detail::average_gradients(comm, net);
}
/// The same for a module holder, such as torch::nn::Sequential.
template <class Contained>
void average(Comm& comm, ::torch::nn::ModuleHolder<Contained>& net, ReplicaCheck check = ReplicaCheck::off) {
  average(comm, *net, check);
}

}  // namespace syncrun::libtorch

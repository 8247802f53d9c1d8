#include "syncrun/torch/guard.hpp"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "libtorch/converted_parameters.hpp"
#include "libtorch/cuda_part.hpp"
#include "libtorch/module_tensors.hpp"
#include "libtorch/step_scope.hpp"
#include "libtorch/user_line.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch {

namespace {

/// The number of threads in OMP_NUM_THREADS, or 0. The variable can have several numbers: the first one counts.
int wanted_threads() noexcept {
  const char* text = std::getenv("OMP_NUM_THREADS");
  return text == nullptr ? 0 : static_cast<int>(std::strtol(text, nullptr, 10));
}

/// A backtrace of LibTorch as text. In LibTorch 1.13 it is a string. In 2.11 it is an object that makes the string.
[[maybe_unused]] std::string text_of(const std::string& backtrace) { return backtrace; }
template <class Lazy>
std::string text_of(const std::shared_ptr<const Lazy>& backtrace) {
  return backtrace == nullptr ? std::string() : backtrace->get();
}

/// The scope of the innermost Guard of this thread.
thread_local const detail::StepScope* innermost_scope = nullptr;
thread_local detail::LossScale scale_of_loss = detail::LossScale::unknown;

/// The number of the worker's GPU. LibTorch runs backward passes on a thread of its own, which has no Guard. -1: none.
std::atomic<int> gpu_of_process = -1;

/// The part for CUDA devices, started by the first call.
detail::CudaPart& started_part() {
  static detail::CudaPart& part = []() -> detail::CudaPart& {
    detail::CudaPart& part = detail::cuda_part();
    try {
      part.start();
    } catch (const c10::Error& error) {
      detail::rethrow_plainly(error);
    }
    return part;
  }();
  return part;
}

/// From now on, the errors of LibTorch have a line of the program in place of a backtrace.
void name_user_lines() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetStackTraceFetcher([] { return detail::user_line(); }); });
}

/// Whether the environment of the process has settings of malloc.
bool has_malloc_settings() noexcept {
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  const char* tunables = std::getenv("GLIBC_TUNABLES");
  return tunables != nullptr && std::string_view(tunables).find("glibc.malloc") != std::string_view::npos;
}

/// From now on, the process keeps the memory of freed tensors up to 32 MiB, 1 GiB in all. Otherwise, glibc returns most of it
/// to the system after each backward pass, and the next step gets it again page by page: a page costs a page fault and is
/// cleared. The limit of a tensor is the largest that glibc itself chooses. Above it, free memory that does not fit again
/// would add up.
void keep_freed_memory() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (has_malloc_settings()) return;
    constexpr int kLargestTensor = 32 << 20;
    constexpr int kMost = 1 << 30;
    static_cast<void>(::mallopt(M_MMAP_THRESHOLD, kLargestTensor));
    static_cast<void>(::mallopt(M_TRIM_THRESHOLD, kMost));
  });
}

/// From now on, `scope` is the innermost scope of this thread.
void enter(detail::StepScope& scope, int threads_before, AnyWorker& worker, Comm* comm) {
  if (comm != nullptr) {
    scope.world_size = comm->world_size();
    scope.comm = std::make_shared<detail::StepComm>(detail::StepComm{comm, worker.rows()});
  } else if (scope.outer != nullptr) {
    scope.world_size = scope.outer->world_size;
    scope.comm = scope.outer->comm;
  }
  name_user_lines();
  if (scope.device.is_cuda()) gpu_of_process = scope.device.index();
  const int wanted = wanted_threads();
  if (wanted > 0 && wanted != threads_before) at::set_num_threads(wanted);
  innermost_scope = &scope;
}

}  // namespace

namespace detail {

PreparedWorker::PreparedWorker(CpuWorker& worker, Comm* comm, BodyMemory)
    : threads_before_(at::get_num_threads()), scope_{worker.world_size(), ::torch::kCPU, nullptr, innermost_scope} {
  keep_freed_memory();
  enter(scope_, threads_before_, worker, comm);
}

PreparedWorker::PreparedWorker(CudaWorker& worker, Comm* comm, BodyMemory memory)
    : cuda_(started_part().enter(worker.stream(), memory)),
      threads_before_(at::get_num_threads()),
      scope_{worker.world_size(), cuda_part().device(), nullptr, innermost_scope} {
  enter(scope_, threads_before_, worker, comm);
}

PreparedWorker::~PreparedWorker() {
  ConvertedParameters::of_thread().unbind();
  if (scope_.outer == nullptr) note_loss_scale(LossScale::unknown);
  innermost_scope = scope_.outer;
  const bool is_of_outer = scope_.outer != nullptr && scope_.outer->comm == scope_.comm;
  if (scope_.comm && !is_of_outer) scope_.comm->comm = nullptr;
  if (at::get_num_threads() != threads_before_) at::set_num_threads(threads_before_);
}

const StepScope* step_scope() noexcept { return innermost_scope; }

void check_number(const ::torch::Tensor& number) {
  if (number.defined() && number.numel() == 1) return;
  throw Error(ErrorKind::usage, "number(): the tensor is " + (number.defined() ? type_and_shape(number) : "undefined") +
                                    ", expected one number. Apply .sum() or .mean() to it");
}

const void* keep_number(const ::torch::Tensor& number, ::torch::ScalarType type) {
  const StepScope* scope = innermost_scope;
  if (scope == nullptr) throw Error(ErrorKind::usage, "number() was called outside a body, expected a Guard");
  while (scope->outer != nullptr) scope = scope->outer;
  const ::torch::NoGradGuard no_gradients;
  scope->kept.push_back(number.detach().reshape({}).to(type, /*non_blocking=*/false, /*copy=*/true));
  return scope->kept.back().data_ptr();
}

LossScale loss_scale() noexcept { return scale_of_loss; }
void note_loss_scale(LossScale scale) noexcept { scale_of_loss = scale; }

ScopeOfThread::ScopeOfThread(const StepScope* scope) noexcept : before_(innermost_scope) {
  if (scope != nullptr) innermost_scope = scope;
}
ScopeOfThread::~ScopeOfThread() { innermost_scope = before_; }

::torch::Device device_here() noexcept {
  if (innermost_scope != nullptr) return innermost_scope->device;
  const int gpu = gpu_of_process;
  return gpu < 0 ? ::torch::Device(::torch::kCPU) : ::torch::Device(::torch::kCUDA, static_cast<c10::DeviceIndex>(gpu));
}

void rethrow_plainly(const c10::Error& error) {
  std::string text = error.what_without_backtrace();
  while (text.ends_with('\n')) text.pop_back();
  // The first line of the backtrace is LibTorch's own source line. The line of the program follows it.
  const std::string backtrace = text_of(error.backtrace());
  const auto end = backtrace.find('\n');
  if (end != std::string::npos && end + 1 < backtrace.size()) text += "\n  at " + backtrace.substr(end + 1);
  throw Error(ErrorKind::function, text);
}

void seed_equally(std::uint64_t seed) { ::torch::manual_seed(seed); }

void seed_by_rank(std::uint64_t seed, int rank) {
  // An odd number with irregular bits, so that seeds that follow each other have no rank in common.
  constexpr std::uint64_t kStride = 0x9e3779b97f4a7c15U;
  ::torch::manual_seed(seed + kStride * (static_cast<std::uint64_t>(rank) + 1));
}

SeededScope::SeededScope(std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);  // where modules make their values
  before_ = generator.get_state();
  generator.set_current_seed(seed);
}
SeededScope::~SeededScope() {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_state(before_);
}

}  // namespace detail
}  // namespace syncrun::libtorch

#include "syncrun/torch/guard.hpp"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

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
std::string text_of(const std::string& backtrace) { return backtrace; }
template <class Lazy>
std::string text_of(const std::shared_ptr<const Lazy>& backtrace) {
  return backtrace == nullptr ? std::string() : backtrace->get();
}

/// The scope of the innermost Guard of this thread.
thread_local const detail::StepScope* innermost_scope = nullptr;

/// From now on, the errors of LibTorch have a line of the program in place of a backtrace.
void name_user_lines() {
  static std::once_flag once;
  std::call_once(once, [] { c10::SetStackTraceFetcher([] { return detail::user_line(); }); });
}

}  // namespace

Guard::Guard(CpuWorker& worker, Comm* comm)
    : threads_before_(at::get_num_threads()), scope_{worker.world_size(), nullptr, innermost_scope} {
  if (comm != nullptr) {
    scope_.world_size = comm->world_size();
    scope_.comm = std::make_shared<detail::StepComm>(detail::StepComm{comm, worker.rows()});
  } else if (scope_.outer != nullptr) {
    scope_.world_size = scope_.outer->world_size;
    scope_.comm = scope_.outer->comm;
  }
  name_user_lines();
  const int wanted = wanted_threads();
  if (wanted > 0 && wanted != threads_before_) at::set_num_threads(wanted);
  innermost_scope = &scope_;
}

Guard::~Guard() {
  innermost_scope = scope_.outer;
  const bool is_of_outer = scope_.outer != nullptr && scope_.outer->comm == scope_.comm;
  if (scope_.comm && !is_of_outer) scope_.comm->comm = nullptr;
  if (at::get_num_threads() != threads_before_) at::set_num_threads(threads_before_);
}

namespace detail {

const StepScope* step_scope() noexcept { return innermost_scope; }

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

}  // namespace detail
}  // namespace syncrun::libtorch

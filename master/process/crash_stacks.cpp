#include "master/process/crash_stacks.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>

#include <condition_variable>
#include <csignal>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/os/mutex.hpp"
#include "common/os/threads.hpp"
#include "common/text/errors.hpp"
#include "common/text/fixed_text.hpp"

namespace syncrun::detail::master::process {

namespace {

struct Job {
  int pid;
  protocol::CrashReport crash;
  os::KeptDescriptor link;  // a copy of the nursery's, which may be closed meanwhile
  os::Clock::time_point deadline;
};

NativeStack not_in_time() {
  return {{}, "it was not available within " + std::to_string(protocol::kCrashStackLimit.count()) + " ms"};
}

/// Whether the child has died. Then its number may soon belong to another process.
bool has_died(const os::KeptDescriptor& link) noexcept {
  char byte = 0;
  return link.is_intact() && ::recv(link.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

NativeStack read_stack(const Job& job) {
  if (os::Clock::now() > job.deadline) return not_in_time();
  if (has_died(job.link)) return {{}, "the process has died"};
  try {
    return crashed_stack(job.crash, job.deadline);
  } catch (const std::exception& error) {
    return {{}, error.what()};
  }
}

NativeStack stack_for(const Job& job) {
  NativeStack stack = read_stack(job);
  if (const auto used = text::get_text(job.crash.used); !used.empty())
    stack.lines.insert(stack.lines.begin(), "it used " + std::string(used));
  return stack;
}

void answer(const os::KeptDescriptor& link) noexcept {
  if (link.is_intact()) ::send(link.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

struct CrashStacks::Work {
  mutable os::Mutex mutex;
  std::condition_variable changed;
  std::deque<Job> waiting SYNCRUN_GUARDED_BY(mutex);
  std::map<int, NativeStack> stacks SYNCRUN_GUARDED_BY(mutex);
  bool is_running SYNCRUN_GUARDED_BY(mutex) = false;

  void put(int pid, NativeStack stack) {
    const os::MutexLock lock(mutex);
    if (const auto place = stacks.find(pid); place != stacks.end()) place->second = std::move(stack);
  }
  /// Returns no job if none is left. The thread then ends.
  std::optional<Job> next() {
    std::optional<Job> job;
    const os::MutexLock lock(mutex);
    is_running = !waiting.empty();
    if (is_running) {
      job = std::move(waiting.front());
      waiting.pop_front();
    }
    changed.notify_all();
    return job;
  }
  void give_up() noexcept {
    const os::MutexLock lock(mutex);
    waiting.clear();
    is_running = false;
  }
  void run() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    ::pthread_setname_np(::pthread_self(), "syncrun-stacks");
    for (auto job = next(); job; job = next()) {
      put(job->pid, stack_for(*job));
      answer(job->link);
    }
  }
};

CrashStacks::CrashStacks() : work_(std::make_shared<Work>()) {}

CrashStacks::~CrashStacks() {
  if (!thread_.joinable()) return;
  os::UniqueLock lock(work_->mutex);
  work_->waiting.clear();
  const bool has_ended = work_->changed.wait_for(
      lock, protocol::kCrashStackLimit, [this]() SYNCRUN_REQUIRES(work_->mutex) { return !work_->is_running; });
  lock.unlock();
  if (has_ended) thread_.join();
  else thread_.detach();
}

void CrashStacks::take(int pid, const protocol::CrashReport& crash, const os::KeptDescriptor& link) noexcept {
  try {
    start(pid, crash, link);
  } catch (const std::exception& error) {
    work_->put(pid, {{}, error.what()});
    answer(link);
  }
}

void CrashStacks::start(int pid, const protocol::CrashReport& crash, const os::KeptDescriptor& link) {
  {
    const os::MutexLock lock(work_->mutex);
    if (!work_->stacks.emplace(pid, not_in_time()).second) return;
  }
  os::FileDescriptor copy(text::check_system(::fcntl(link.get(), F_DUPFD_CLOEXEC, 0), "dup"));
  Job job{pid, crash, std::move(copy), os::Clock::now() + protocol::kCrashStackLimit};
  {
    const os::MutexLock lock(work_->mutex);
    work_->waiting.push_back(std::move(job));
    if (std::exchange(work_->is_running, true)) return;
  }
  if (thread_.joinable()) thread_.join();  // it has no more to do
  try {
    thread_ = os::start_thread([work = work_] { work->run(); });
  } catch (...) {
    work_->give_up();
    throw;
  }
}

NativeStack CrashStacks::of(int pid) const {
  const os::MutexLock lock(work_->mutex);
  const auto found = work_->stacks.find(pid);
  return found == work_->stacks.end() ? NativeStack{} : found->second;
}

void CrashStacks::forget(int pid) {
  const os::MutexLock lock(work_->mutex);
  work_->stacks.erase(pid);
}

}  // namespace syncrun::detail::master::process

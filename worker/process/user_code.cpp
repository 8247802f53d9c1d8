#include "worker/process/user_code.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "common/text/errors.hpp"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace syncrun::detail::worker::process {

namespace {

constexpr std::size_t kMaxChildren = 64;  // how many children are waited for after one section of user code
// How long, and how often at least: a machine that stands still meanwhile also stops the children.
constexpr os::Milliseconds kChildLimit{100};
constexpr int kLeastLooks = 200;

/// Shared only by the process that serves and its descendants.
struct Reports {
  std::atomic<std::uint32_t> came;     // number of children that came back or called the library
  std::atomic<std::int32_t> pid;       // of the first such child
  std::atomic<std::uint64_t> command;  // the command that ran when it was forked
  std::atomic<ChildAct> act;
  std::atomic<std::uint32_t> forks;                          // calls of fork(), counted by the process that made them
  std::atomic<std::uint32_t> children;                       // children that registered, counted by each child
  std::array<std::atomic<std::int32_t>, kMaxChildren> pids;  // in the order of registration; 0: not written yet
};

/// Making a process takes more ticks than this: 13,900 were measured at 2.6 GHz. So user code that took fewer ticks has
/// not called vfork, and no system call is needed to check the process id.
#if defined(__x86_64__)
constexpr std::uint64_t kTicksOfAFork = 10'000;
std::uint64_t ticks() noexcept { return __rdtsc(); }
#else
constexpr std::uint64_t kTicksOfAFork = 0;
std::uint64_t ticks() noexcept { return 0; }
#endif

constexpr const char* kAdvice = "A child that a function forks must end with _exit or call exec";

}  // namespace

struct UserCodeWatch {
  os::ForkGuard guard;
  Reports* reports;
  pid_t self;
  std::string who;
  std::array<char, protocol::kMessageBytes>* reason;
  std::atomic<std::uint64_t> command{0};
  // The next three values are from the end of the last section of user code. A long wait since then also updates
  // `ticks_then`.
  std::uint64_t ticks_then = 0;
  std::uint32_t forks_then = 0;
  std::uint32_t children_then = 0;  // children that had registered, including children of children
};

UserCodeWatch* user_code_watch = nullptr;

namespace {

/// Runs in a forked child. Must be async-signal-safe, because other threads may have held any lock at the fork.
void register_child() noexcept {
  Reports& reports = *user_code_watch->reports;
  const std::uint32_t place = reports.children.fetch_add(1);
  reports.pids[place % kMaxChildren].store(::getpid());
}

/// Whether the process has ended or runs another program. A pid of 0 belongs to a child that has not registered its pid
/// yet.
bool is_out_of_the_way(pid_t pid, const struct stat& own_image) noexcept {
  if (pid == 0) return false;
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/exe", static_cast<int>(pid));
  struct stat image {};
  // The link of a process that has ended, or of a zombie, cannot be followed.
  if (::stat(path.data(), &image) != 0) return true;
  return image.st_dev != own_image.st_dev || image.st_ino != own_image.st_ino;
}

/// Waits for the children that were forked since the end of the last section of user code, and for their children. A
/// child that comes back does so at about the same time as its parent, and this call should report it.
void await_children() noexcept {
  struct stat own_image {};
  if (::stat("/proc/self/exe", &own_image) != 0) return;
  const UserCodeWatch& watch = *user_code_watch;
  const Reports& reports = *watch.reports;
  const auto deadline = os::Clock::now() + kChildLimit;
  const auto all_gone = [&] {
    const std::uint32_t all = reports.children.load();
    if (all - watch.children_then < reports.forks.load() - watch.forks_then)
      return false;  // a child has not registered yet
    const std::uint32_t known = std::min<std::uint32_t>(all - watch.children_then, kMaxChildren);
    for (std::uint32_t i = all - known; i != all; ++i) {
      if (!is_out_of_the_way(reports.pids[i % kMaxChildren].load(), own_image)) return false;
    }
    return true;
  };
  const auto goes_on = [&](int looks) {
    const auto now = os::Clock::now();
    return now < deadline || (looks < kLeastLooks && now < deadline + 9 * kChildLimit);
  };
  for (int looks = 0; !all_gone() && goes_on(looks); ++looks)
    std::this_thread::sleep_for(std::chrono::microseconds(200));
}

void say(const char* what) noexcept {
  std::array<char, 512> text{};
  const int length = std::snprintf(text.data(), text.size(), "syncrun: process %d %s of %s and was ended. %s.\n",
                                   static_cast<int>(::getpid()), what, user_code_watch->who.c_str(), kAdvice);
  // Does not use stdio, because its buffers are a copy of the parent's.
  if (length > 0) {
    static_cast<void>(
        !::write(STDERR_FILENO, text.data(), std::min<std::size_t>(text.size() - 1, static_cast<std::size_t>(length))));
  }
}

/// Ends a child of vfork and its parent. The child has run on the stack of the parent, which the kernel suspends until
/// the child is gone.
[[noreturn]] void end_with_parent() noexcept {
  say("came back from vfork() in a function");
  if (user_code_watch->reason != nullptr) {
    text::put_text(
        *user_code_watch->reason,
        "a child that a function made with vfork() came back from it, on the function's own stack. After vfork(), a "
        "child must call exec or _exit");
  }
  ::kill(user_code_watch->self, SIGKILL);
  ::_exit(kChildCameBack);
}

}  // namespace

void watch_user_code(std::string who, std::array<char, protocol::kMessageBytes>* reason) {
  void* page = ::mmap(nullptr, sizeof(Reports), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) text::throw_errno("cannot map a page");
  // Never destroyed, because user code may run until the process ends.
  static UserCodeWatch* const watch = new UserCodeWatch{{}, new (page) Reports{}, ::getpid(), std::move(who), reason};
  user_code_watch = watch;
  const int code = ::pthread_atfork(
      nullptr, [] { user_code_watch->reports->forks.fetch_add(1); }, [] { register_child(); });
  if (code != 0) text::throw_errno("pthread_atfork", code);
}

void note_command(std::uint64_t command) noexcept {
  if (user_code_watch != nullptr) user_code_watch->command.store(command, std::memory_order_relaxed);
}

void note_long_wait() noexcept {
  if (user_code_watch != nullptr) user_code_watch->ticks_then = ticks();
}

bool is_forked_child() noexcept { return !user_code_watch->guard.is_here(); }

void end_child(ChildAct act) noexcept {
  say(act == ChildAct::came_back ? "came back from a fork in a function"
                                 : "called the library from a fork in a function");
  Reports& reports = *user_code_watch->reports;
  std::int32_t nobody = 0;
  if (reports.pid.compare_exchange_strong(nobody, ::getpid())) {
    reports.command.store(user_code_watch->command.load());
    reports.act.store(act);
  }
  reports.came.fetch_add(1);
  ::_exit(kChildCameBack);
}

UserCode::~UserCode() {
  UserCodeWatch* const watch = user_code_watch;
  if (watch == nullptr) return;
  if (is_forked_child()) [[unlikely]]
    end_child(ChildAct::came_back);
  const std::uint64_t now = ticks();
  if (now - watch->ticks_then >= kTicksOfAFork && ::getpid() != watch->self) [[unlikely]]
    end_with_parent();
  watch->ticks_then = now;
  Reports& reports = *watch->reports;
  if (reports.forks.load(std::memory_order_relaxed) == watch->forks_then) [[likely]]
    return;
  await_children();
  watch->forks_then = reports.forks.load();
  for (const std::uint32_t all = reports.children.load(); watch->children_then != all; ++watch->children_then) {
    reports.pids[watch->children_then % kMaxChildren].store(0);
  }
}

void throw_if_child_came() {
  if (user_code_watch == nullptr) return;
  Reports& reports = *user_code_watch->reports;
  if (reports.came.load(std::memory_order_relaxed) == 0) [[likely]]
    return;
  const bool is_of_this_call = reports.command.load() == user_code_watch->command.load();
  std::string message = "process " + std::to_string(reports.pid.load()) + ", a child that ";
  message += is_of_this_call ? "the function" : "the function of an earlier call";
  message += reports.act.load() == ChildAct::came_back ? " had forked, came back from it (it returned or threw)"
                                                       : " had forked, called the library";
  message += ". It was ended before it touched shared memory. ";
  message += kAdvice;
  forget_children_that_came();
  throw Error(ErrorKind::function, message);
}

void forget_children_that_came() noexcept {
  if (user_code_watch == nullptr) return;
  Reports& reports = *user_code_watch->reports;
  reports.came.store(0);
  reports.pid.store(0);
}

}  // namespace syncrun::detail::worker::process

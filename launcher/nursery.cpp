#include "launcher/nursery.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "common/errors.hpp"
#include "common/life.hpp"
#include "common/threads.hpp"
#include "common/wait.hpp"

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace syncrun::detail {

namespace {

// What was killed is gone within this, or is in an uninterruptible sleep; however short the grace was.
constexpr Milliseconds kReapLimit = std::chrono::seconds(5);
// How often to look again at a zombie that a debugger holds, or after the kernel refused to wait.
constexpr Milliseconds kRetryLap{50};
// At the end, how long the reader of children's output may take nothing: after healthy ends, and when an error waits for
// it. And how long it may take in all.
constexpr Milliseconds kReaderLimit = std::chrono::seconds(2);
constexpr Milliseconds kHurriedReaderLimit{250};
constexpr Milliseconds kLongestFlush = std::chrono::seconds(30);
// Reads of a dead child's pipe: what it wrote fits; who still writes is not the child.
constexpr int kLastReads = 64;

void block_signals() noexcept {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

int to_poll_limit(Milliseconds limit) noexcept { return static_cast<int>(limit.count()); }

}  // namespace

Nursery::Nursery(Brood& brood, Milliseconds grace, const SupervisorLink& supervisor)
    : brood_(brood),
      grace_(grace),
      supervisor_(supervisor),
      output_(STDOUT_FILENO),
      error_(STDERR_FILENO),
      children_(static_cast<std::size_t>(brood.size())),
      epoll_(check_system(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      wake_(check_system(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      life_watchers_(children_.size()) {}

Nursery::~Nursery() {
  expect_ends();
  closes_.store(true);
  kill_all();
  if (thread_.joinable()) {
    await_all_ends(std::max(grace_, kReapLimit));
    stops_.store(true);
    ::eventfd_write(wake_.get(), 1);  // fails only if it was rung already
    thread_.join();
  }
  for (auto& watcher : life_watchers_) watcher.stops.store(true);
  for (int child = 0; child < size(); ++child) unwatch_life(child);
}

// ---- birth ----------------------------------------------------------------------------------------------------

void Nursery::spawn_all(Milliseconds limit, std::string_view limit_name) {
  thread_ = start_thread(&Nursery::run, this);
  await_spawned(limit, limit_name);
}

void Nursery::replace(int child, Milliseconds limit, std::string_view limit_name) {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = child;
    spawned_ = false;
  }
  ::eventfd_write(wake_.get(), 1);
  await_spawned(limit, limit_name);
}

void Nursery::await_spawned(Milliseconds limit, std::string_view limit_name) {
  std::unique_lock lock(mutex_);
  if (!await_change(lock, Patience(limit), [this] { return spawned_; })) {
    throw Error(ErrorKind::timeout, "the processes of " + brood_.describe() + " were not started within " +
                                        std::to_string(limit.count()) + " ms (" + std::string(limit_name) +
                                        " sets another limit)");
  }
  if (spawn_error_) std::rethrow_exception(spawn_error_);
}

void Nursery::run() noexcept {
  // Signals are the program's own threads' business; a closed standard output is seen as an error of write.
  block_signals();
  ::pthread_setname_np(::pthread_self(), "syncrun-nursery");
  std::exception_ptr error;
  try {
    if (!watch(wake_.get(), Source::wake, 0)) throw_errno("epoll_ctl");
    give_birth();
  } catch (...) {
    error = std::current_exception();
  }
  if (closes_.load()) kill_all();  // for who was born after the closing one looked
  {
    const std::lock_guard lock(mutex_);
    spawn_error_ = error;
    spawned_ = true;
  }
  changed_.notify_all();
  loop();
  flush_the_rest();
}

void Nursery::watch_lives() {
  for (int child = 0; child < size(); ++child) watch_life(child);
}

void Nursery::watch_life(int child) {
  LifeWatcher& watcher = life_watchers_[static_cast<std::size_t>(child)];
  watcher.stops.store(false);
  watcher.thread = start_thread([this, child, &watcher] {
    block_signals();
    if (await_death(brood_.life_of(child), watcher.stops)) raise_loss(child);
  });
}

void Nursery::unwatch_life(int child) {
  LifeWatcher& watcher = life_watchers_[static_cast<std::size_t>(child)];
  watcher.stops.store(true);
  if (watcher.thread.joinable()) watcher.thread.join();
}

// ---- watching -------------------------------------------------------------------------------------------------

bool Nursery::watch(int fd, Source source, int child) noexcept {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<std::uint64_t>(child) << 2U | static_cast<std::uint64_t>(source);
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

/// Closing a descriptor is not enough where the program has forked: the child's copy keeps it in the set.
void Nursery::unwatch(int fd) noexcept { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void Nursery::loop() {
  while (!stops_.load()) {
    await_events();
    std::array<epoll_event, 32> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    if (count < 0 && errno != EINTR) std::this_thread::sleep_for(kRetryLap);  // the program closed our descriptors
    for (int i = 0; i < count; ++i) on_event(events[static_cast<std::size_t>(i)].data.u64);
    for (int index = 0; index < size(); ++index) {
      if (children_[static_cast<std::size_t>(index)].is_zombie) reap(index);
    }
    for (Outlet* outlet : {&output_, &error_}) {
      if (!outlet->is_blocked()) outlet->flush();
    }
    resume_streams();
  }
}

/// Sleeps until there is something to do, and writes what a reader has made room for.
void Nursery::await_events() {
  int limit = -1;
  const auto is_zombie = [](const Child& child) { return child.is_zombie; };
  if (std::any_of(children_.begin(), children_.end(), is_zombie)) limit = to_poll_limit(kRetryLap);
  flush_when_writable(limit, {epoll_.get(), POLLIN, 0});
}

void Nursery::flush_when_writable(int limit_ms, pollfd other) {
  if (output_.is_resting() || error_.is_resting()) limit_ms = to_poll_limit(Outlet::kRest);
  std::array<pollfd, 3> polled{output_.poll_entry(), error_.poll_entry(), other};
  const int count = ::poll(polled.data(), polled.size(), limit_ms);
  if (count < 0 && errno != EINTR) std::this_thread::sleep_for(kRetryLap);
  if (output_.is_resting() || (count > 0 && polled[0].revents != 0)) output_.flush();
  if (error_.is_resting() || (count > 0 && polled[1].revents != 0)) error_.flush();
}

void Nursery::on_event(std::uint64_t tag) {
  const int index = static_cast<int>(tag >> 2U);
  Child& child = children_[static_cast<std::size_t>(index)];
  switch (static_cast<Source>(tag & 3U)) {
    case Source::wake: return give_births_again();
    case Source::death: return bury(index);
    case Source::output: return read_some(child.output);
    case Source::error: return read_some(child.error);
  }
}

/// Reads from a child, unless nobody reads us: then the child waits in its own writes until somebody does.
void Nursery::read_some(Stream& stream) {
  ChildOutput& reader = *stream.reader;
  if (reader.fd() < 0) return;
  if (reader.outlet().is_full()) {
    unwatch(reader.fd());
    stream.is_paused = true;
  } else if (!reader.pump()) {
    end_stream(stream);
  }
}

void Nursery::resume_streams() noexcept {
  const auto resume = [this](Stream& stream, Source source, int index) {
    if (!stream.is_paused || !stream.reader->outlet().is_half_empty()) return;
    // A failure (no memory) is tried again after the next event.
    stream.is_paused = stream.reader->fd() >= 0 && !watch(stream.reader->fd(), source, index);
  };
  for (int index = 0; index < size(); ++index) {
    Child& child = children_[static_cast<std::size_t>(index)];
    resume(child.output, Source::output, index);
    resume(child.error, Source::error, index);
  }
}

void Nursery::end_stream(Stream& stream) {
  unwatch(stream.reader->fd());
  stream.reader->finish();
}

// ---- deaths ---------------------------------------------------------------------------------------------------

void Nursery::raise_loss(int child) noexcept {
  if (!expects_ends_.load()) brood_.on_loss(child);
}

/// The child is a zombie: release those who wait for it, end what it started, read its last words, and reap it.
void Nursery::bury(int index) {
  raise_loss(index);
  Child& child = children_[static_cast<std::size_t>(index)];
  unwatch(child.pidfd.get());
  ::kill(-child.pid, SIGKILL);  // its group; the pid cannot be anybody else's before it is reaped
  read_last_words(child.output);
  read_last_words(child.error);
  reap(index);
}

/// What it wrote is in the pipe; who else holds the other end is being killed.
void Nursery::read_last_words(Stream& stream) {
  for (int round = 0; round < kLastReads && stream.reader->fd() >= 0; ++round) {
    if (!stream.reader->pump()) return end_stream(stream);
    int waiting = 0;
    if (::ioctl(stream.reader->fd(), FIONREAD, &waiting) != 0 || waiting == 0) return;
  }
}

/// Does not wait: a debugger that is attached may hold the zombie as long as it likes, and the loop comes back to it.
void Nursery::reap(int index) {
  Child& child = children_[static_cast<std::size_t>(index)];
  {
    const std::lock_guard lock(mutex_);
    siginfo_t info{};
    const bool knows =
        ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(child.pidfd.get()), &info, WEXITED | WNOHANG) == 0;
    child.is_zombie = knows && info.si_pid == 0;
    if (child.is_zombie) return;
    child.wait_status = kUnknownStatus;
    if (knows) child.wait_status = info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status;
    child.pidfd.reset();
  }
  changed_.notify_all();
  supervisor_.send({SupervisorMessage::Kind::ended, child.pid, {}});
}

// ---- ends -----------------------------------------------------------------------------------------------------

/// Waits in laps, so that time in which the job was stopped does not count.
template <class Holds>
bool Nursery::await_change(std::unique_lock<std::mutex>& lock, Patience patience, Holds holds) {
  while (!holds()) {
    if (patience.is_over()) return false;
    changed_.wait_for(lock, patience.nap(kLap));
  }
  return true;
}

std::optional<int> Nursery::await_end(int index, Milliseconds limit) {
  std::unique_lock lock(mutex_);
  const Child& child = children_[static_cast<std::size_t>(index)];
  const auto has_ended = [&] { return child.wait_status.has_value(); };
  if (limit.count() > 0) await_change(lock, Patience(limit), has_ended);
  return child.wait_status;
}

bool Nursery::await_all_ends(Milliseconds limit) {
  std::unique_lock lock(mutex_);
  const auto have_ended = [this] {
    return spawned_ && std::all_of(children_.begin(), children_.end(),
                                   [](const Child& child) { return child.pid < 0 || child.wait_status.has_value(); });
  };
  return limit.count() > 0 ? await_change(lock, Patience(limit), have_ended) : have_ended();
}

/// What children have said is passed on as long as the reader takes it. (None is left to say more.)
void Nursery::flush_the_rest() {
  const bool is_healthy =
      std::all_of(children_.begin(), children_.end(), [](const Child& child) { return child.wait_status == 0; });
  const auto waiting_bytes = [this] { return output_.waiting_bytes() + error_.waiting_bytes(); };
  const Milliseconds limit = is_healthy ? kReaderLimit : kHurriedReaderLimit;
  Patience patience(limit);
  Patience longest(kLongestFlush);
  for (std::size_t left = waiting_bytes(); left != 0 && !patience.is_over() && !longest.is_over();) {
    flush_when_writable(to_poll_limit(kRetryLap), {-1, 0, 0});
    if (waiting_bytes() < left) patience = Patience(limit);
    left = waiting_bytes();
  }
  if (output_.waiting_bytes() == 0 || error_.waiting_bytes() != 0) return;
  error_.push("syncrun: ", std::to_string(output_.waiting_bytes()) + " bytes of the standard output of " +
                               brood_.describe() + " are lost: nobody reads them");
  error_.flush();
}

void Nursery::kill_all() noexcept {
  const std::lock_guard lock(mutex_);
  for (const Child& child : children_) kill_group(child);
}

void Nursery::kill(int child) noexcept {
  const std::lock_guard lock(mutex_);
  kill_group(children_[static_cast<std::size_t>(child)]);
}

/// Under the lock, so that the number is still the child's.
void Nursery::kill_group(const Child& child) noexcept {
  if (child.pid < 0 || child.wait_status) return;
  ::kill(-child.pid, SIGKILL);
  ::kill(child.pid, SIGKILL);  // in case it has not yet come as far as leading its group
}

int Nursery::stop_signal(int index) const {
  const std::lock_guard lock(mutex_);
  const Child& child = children_[static_cast<std::size_t>(index)];
  siginfo_t info{};
  if (!child.pidfd.is_open() || ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(child.pidfd.get()), &info,
                                         WSTOPPED | WNOHANG | WNOWAIT) != 0) {
    return 0;
  }
  return info.si_pid == 0 ? 0 : info.si_status;
}

std::vector<std::string> Nursery::last_stderr(int index) {
  const std::lock_guard lock(mutex_);
  const auto& error = children_[static_cast<std::size_t>(index)].error.reader;
  return error ? error->tail() : std::vector<std::string>();
}

}  // namespace syncrun::detail

#include "master/process/nursery.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include "common/os/sign_of_life.hpp"
#include "common/os/threads.hpp"
#include "common/os/wait.hpp"
#include "common/text/errors.hpp"
#include "master/process/child_end.hpp"

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace syncrun::detail::master::process {

namespace {

// A killed process is gone within this time, unless it is in an uninterruptible sleep. Applies even if the grace is
// shorter.
constexpr os::Milliseconds kReapLimit = std::chrono::seconds(5);
// How often to try again to reap a zombie that a debugger holds, or to poll after the kernel refused to.
constexpr os::Milliseconds kRetryLap{50};
// How often to check whether the program has closed our descriptors.
constexpr os::Milliseconds kCheckLap{250};
// Limits for writing the last output at the end. The first two say how long the reader may take nothing: if all
// children ended well, and if an error waits for it. The third limits the total time.
constexpr os::Milliseconds kReaderLimit = std::chrono::seconds(2);
constexpr os::Milliseconds kHurriedReaderLimit{250};
constexpr os::Milliseconds kLongestFlush = std::chrono::seconds(30);
// How often to read the pipe of a dead child. This is enough for what the child wrote. More can only come from other
// processes.
constexpr int kLastReads = 64;

void block_signals() noexcept {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
}

}  // namespace

Nursery::Nursery(ChildWatcher& watcher, os::Milliseconds grace, const protocol::SupervisorLink& supervisor)
    : watcher_(watcher),
      grace_(grace),
      supervisor_(supervisor),
      children_(static_cast<std::size_t>(watcher.size())),
      output_(STDOUT_FILENO),
      error_(STDERR_FILENO),
      notes_(static_cast<std::size_t>(watcher.size())),
      polled_(kFirstChild + notes_.size() * kSources, pollfd{-1, POLLIN, 0}),
      life_watchers_(notes_.size()) {
  std::array<int, 2> ends{};
  text::check_system(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), "socketpair");
  wake_ = os::FileDescriptor(ends[0]);
  wake_other_end_ = os::FileDescriptor(ends[1]);
}

Nursery::~Nursery() {
  expect_ends();
  closes_.store(true);
  kill_all();
  if (thread_.joinable()) {
    await_all_ends(std::max(grace_, kReapLimit));
    stops_.store(true);
    ring();
    thread_.join();
  }
  for (auto& watcher : life_watchers_) watcher.stops.store(true);
  for (int child = 0; child < size(); ++child) unwatch_life(child);
}

/// Wakes the thread, which otherwise checks only once per lap. (Fails only if many rings are waiting already.)
void Nursery::ring() noexcept {
  if (wake_other_end_.is_intact()) ::send(wake_other_end_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// ---- starting -------------------------------------------------------------------------------------------------

void Nursery::spawn_all(os::Milliseconds limit, std::string_view limit_name) {
  thread_ = os::start_thread(&Nursery::run, this);
  await_spawned(limit, limit_name);
}

void Nursery::replace(int child, os::Milliseconds limit, std::string_view limit_name) {
  {
    const os::MutexLock lock(mutex_);
    if (has_lost_descriptors_.load()) throw lost_descriptors();
    wanted_ = child;
    spawned_ = false;
  }
  ring();
  await_spawned(limit, limit_name);
}

void Nursery::await_spawned(os::Milliseconds limit, std::string_view limit_name) {
  os::UniqueLock lock(mutex_);
  os::Patience patience(limit);
  while (!spawned_) {
    if (await_change(lock, patience)) continue;
    throw Error(ErrorKind::timeout, "the processes of " + watcher_.describe() + " were not started within " +
                                        std::to_string(limit.count()) + " ms (" + std::string(limit_name) +
                                        " sets another limit)");
  }
  if (spawn_error_) std::rethrow_exception(spawn_error_);
}

void Nursery::run() noexcept {
  // Only threads of the program handle signals. A closed standard output shows as an error of write.
  block_signals();
  ::pthread_setname_np(::pthread_self(), "syncrun-nursery");
  std::exception_ptr error;
  try {
    start_children();
  } catch (...) {
    error = std::current_exception();
  }
  if (closes_.load()) kill_all();  // for children that were started after the destructor had killed all
  {
    const os::MutexLock lock(mutex_);
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
  pthread_mutex_t* const life = watcher_.life_of(child);
  if (life == nullptr) return;
  LifeWatcher& watcher = life_watchers_[static_cast<std::size_t>(child)];
  watcher.stops.store(false);
  watcher.thread = os::start_thread([this, child, life, &watcher] {
    block_signals();
    if (os::await_death(*life, watcher.stops)) raise_loss(child);
  });
}

void Nursery::unwatch_life(int child) {
  LifeWatcher& watcher = life_watchers_[static_cast<std::size_t>(child)];
  watcher.stops.store(true);
  if (watcher.thread.joinable()) watcher.thread.join();
}

// ---- watching -------------------------------------------------------------------------------------------------

void Nursery::loop() {
  while (!stops_.load()) {
    choose_polled();
    awake_.look(os::Clock::now());
    if (await_events(longest_sleep(), polled_.size())) {
      if (polled_[kWakeEntry].revents != 0) restart_children();
      for (std::size_t i = kFirstChild; i < polled_.size(); ++i) {
        if (polled_[i].revents == 0) continue;
        const std::size_t place = i - kFirstChild;
        on_event(static_cast<int>(place / kSources), static_cast<Source>(place % kSources));
      }
    }
    for (int index = 0; index < size(); ++index) {
      if (notes_of(index).is_zombie || has_ended_unseen(own_child(index))) finish(index);
    }
    report_lost_log_lines();
    for (NonblockingWriter* writer : {&output_, &error_}) {
      if (!writer->is_blocked()) writer->flush();
    }
    if (os::Clock::now() < next_check_) continue;
    next_check_ = os::Clock::now() + kCheckLap;
    if (!has_lost_descriptors_.load() && !has_all_descriptors()) give_descriptors_up();
    look_for_core_dumps();
  }
}

os::Milliseconds Nursery::longest_sleep() noexcept {
  for (int index = 0; index < size(); ++index) {
    const Child& child = own_child(index);
    if (notes_of(index).is_zombie || (!has_pidfd(child) && !child.wait_status)) return kRetryLap;
  }
  return os::kLap;
}

/// Entries that are missing or not needed now get a negative number, which poll ignores.
void Nursery::choose_polled() noexcept {
  const bool has_lost = has_lost_descriptors_.load();
  polled_[kWakeEntry].fd = has_lost && !wake_.is_intact() ? -1 : wake_.get();
  for (int index = 0; index < size(); ++index) {
    const Child& child = own_child(index);
    Notes& notes = notes_of(index);
    pollfd* const entries = &polled_[kFirstChild + static_cast<std::size_t>(index) * kSources];
    const bool may_report = child.socket.is_open() && !notes.cannot_report && !notes.is_zombie && !has_lost;
    entries[static_cast<std::size_t>(Source::crash)].fd = may_report ? child.socket.get() : -1;
    const bool is_watched = child.pidfd.is_open() && !notes.is_zombie && !has_lost;
    entries[static_cast<std::size_t>(Source::death)].fd = is_watched ? child.pidfd.get() : -1;
    entries[static_cast<std::size_t>(Source::output)].fd = number_to_poll(child.output.get(), notes.pauses_output);
    entries[static_cast<std::size_t>(Source::error)].fd = number_to_poll(child.error.get(), notes.pauses_error);
  }
}

/// The number to poll for an output. If its writer is full, the output is not polled. The child then waits in its own
/// writes until our output is read.
int Nursery::number_to_poll(const ChildOutput* reader, bool& is_paused) const noexcept {
  if (reader == nullptr || (has_lost_descriptors_.load() && !reader->is_intact())) return -1;
  const OutputTarget& target = reader->target();
  is_paused = is_paused ? !target.is_half_empty() : target.is_full();
  return is_paused ? -1 : reader->fd();
}

/// Sleeps until one of the first `entries` entries has an event. Writes waiting output if its reader has made room.
/// Returns false if there was no event.
bool Nursery::await_events(os::Milliseconds limit, std::size_t entries) {
  if (output_.is_resting() || error_.is_resting()) limit = std::min<os::Milliseconds>(limit, NonblockingWriter::kRest);
  polled_[kOutputEntry] = output_.poll_entry();
  polled_[kErrorEntry] = error_.poll_entry();
  int count = ::poll(polled_.data(), entries, static_cast<int>(limit.count()));
  if (count < 0 && errno == EINVAL) count = poll_one_by_one(entries);
  if (count < 0 && errno != EINTR) std::this_thread::sleep_for(kRetryLap);
  if (output_.is_resting() || (count > 0 && polled_[kOutputEntry].revents != 0)) output_.flush();
  if (error_.is_resting() || (count > 0 && polled_[kErrorEntry].revents != 0)) error_.flush();
  return count > 0;
}

/// poll refuses more entries than the limit on descriptors allows. In this case, polls each entry separately after a
/// pause.
int Nursery::poll_one_by_one(std::size_t entries) noexcept {
  std::this_thread::sleep_for(NonblockingWriter::kRest);
  int count = 0;
  for (std::size_t i = 0; i < entries; ++i) {
    polled_[i].revents = 0;
    if (polled_[i].fd >= 0 && ::poll(&polled_[i], 1, 0) > 0) ++count;
  }
  return count;
}

void Nursery::on_event(int index, Source source) {
  const Child& child = own_child(index);
  switch (source) {
    case Source::crash: return read_report(index);
    case Source::death:
      // If the number now belongs to something else, its event is not a death.
      if (child.pidfd.is_intact()) finish(index);
      else next_check_ = {};
      return;
    case Source::output: return read_some(*child.output);
    case Source::error: return read_some(*child.error);
  }
}

void Nursery::read_some(ChildOutput& reader) {
  if (!reader.is_intact()) next_check_ = {};  // the bytes to read are not ours
  else if (reader.fd() >= 0 && !reader.pump()) reader.finish();
}

void Nursery::read_report(int index) {
  const Child& child = own_child(index);
  if (!child.socket.is_intact()) {
    next_check_ = {};
    return;
  }
  protocol::CrashReport report{};
  const auto count = ::recv(child.socket.get(), &report, sizeof(report), MSG_DONTWAIT);
  if (count == static_cast<ssize_t>(sizeof(report))) return crashes_.take(child.pid, report, child.socket);
  notes_of(index).cannot_report = count >= 0 || (errno != EAGAIN && errno != EINTR);
}

void Nursery::say(LogLevel level, const std::string& text) { error_.push({}, text::own_line(level, text)); }

// ---- descriptors ----------------------------------------------------------------------------------------------

bool Nursery::has_lost_descriptors() const { return has_lost_descriptors_.load() || !has_all_descriptors(); }

Error Nursery::lost_descriptors() const {
  return text::descriptors_closed("those by which it watches " + watcher_.describe());
}

bool Nursery::has_all_descriptors() const {
  const auto is_well = [](const os::KeptDescriptor& fd) { return !fd.is_open() || fd.is_intact(); };
  const auto is_read = [](const auto& reader) { return !reader || reader->is_intact(); };
  const os::MutexLock lock(mutex_);
  return is_well(wake_) && is_well(wake_other_end_) && watcher_.has_descriptors() &&
         std::all_of(children_.begin(), children_.end(), [&](const Child& child) {
           return is_well(child.pidfd) && is_well(child.socket) && child.log->is_intact() && is_read(child.output) &&
                  is_read(child.error);
         });
}

/// Kills the children, since the nursery can no longer watch them, and wakes the threads that wait for them.
void Nursery::give_descriptors_up() {
  {
    const os::MutexLock lock(mutex_);
    has_lost_descriptors_.store(true);
    wanted_.reset();
    if (!spawned_) spawn_error_ = std::make_exception_ptr(lost_descriptors());
    spawned_ = true;
  }
  changed_.notify_all();
  kill_all();
  for (int index = 0; index < size(); ++index) {
    const Child& child = own_child(index);
    if (child.pid < 0 || child.wait_status) continue;
    raise_loss(index);
    notes_of(index).is_zombie = true;  // or will be one in a moment: reap() tries until then
  }
}

// ---- deaths ---------------------------------------------------------------------------------------------------

void Nursery::raise_loss(int child) noexcept {
  if (!expects_ends_.load()) watcher_.on_loss(child);
}

/// The child is a zombie. Reports the loss, kills the rest of its group, reads its last output, and reaps it.
void Nursery::finish(int index) {
  raise_loss(index);
  const Child& child = own_child(index);
  ::kill(-child.pid, SIGKILL);  // its group; no other process can have the pid before the child is reaped
  read_last_output(*child.output);
  read_last_output(*child.error);
  reap(index);
}

/// True for a child without a pidfd that is a zombie, or was reaped elsewhere.
bool Nursery::has_ended_unseen(const Child& child) noexcept {
  if (has_pidfd(child) || child.wait_status) return false;
  siginfo_t info{};
  const bool knows = ::waitid(P_PID, static_cast<id_t>(child.pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
  return !knows || info.si_pid != 0;
}

/// While the kernel writes a core file, there is no other sign of the death. The error would come minutes later if the
/// child has much memory of its own, so the loss is reported now. await_child_end() decides how long the child may go on.
void Nursery::look_for_core_dumps() {
  for (int index = 0; index < size(); ++index) {
    const Child& child = own_child(index);
    Notes& notes = notes_of(index);
    if (child.pid < 0 || child.wait_status || notes.is_zombie || notes.writes_core) continue;
    const auto signal = core_dump_of(child.pid);
    if (!signal) continue;
    notes.writes_core = true;
    say(LogLevel::warning, watcher_.tag_of(index) + describe_crash(*signal) + ", and is writing a core file");
    raise_loss(index);
  }
}

/// Reads what the child has written. Other processes that hold the other end of the pipe are being killed.
void Nursery::read_last_output(ChildOutput& reader) {
  for (int round = 0; round < kLastReads && reader.fd() >= 0 && reader.is_intact(); ++round) {
    if (!reader.pump()) return reader.finish();
    int waiting = 0;
    if (::ioctl(reader.fd(), FIONREAD, &waiting) != 0 || waiting == 0) return;
  }
}

/// Does not wait. A debugger may hold the zombie for any time, and the loop tries again later.
void Nursery::reap(int index) {
  {
    const os::MutexLock lock(mutex_);
    Child& child = children_[static_cast<std::size_t>(index)];
    siginfo_t info{};
    const bool by_pidfd = !has_lost_descriptors_.load() && child.pidfd.is_intact();
    const auto kind = by_pidfd ? static_cast<idtype_t>(P_PIDFD) : P_PID;
    const auto which = static_cast<id_t>(by_pidfd ? child.pidfd.get() : child.pid);
    const bool knows = ::waitid(kind, which, &info, WEXITED | WNOHANG) == 0;
    const bool is_zombie = knows && info.si_pid == 0;
    notes_of(index).is_zombie = is_zombie;
    if (is_zombie) return;
    child.wait_status = kUnknownStatus;
    if (knows) child.wait_status = info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status;
    child.pidfd.reset();
  }
  changed_.notify_all();
  supervisor_.send({protocol::SupervisorMessage::Kind::ended, own_child(index).pid, {}});
}

// ---- log files ------------------------------------------------------------------------------------------------

void Nursery::report_lost_log_lines() {
  for (int index = 0; index < size(); ++index) {
    const ChildLog& log = *own_child(index).log;
    if (log.error() == 0 || std::exchange(notes_of(index).lacks_log_lines, true)) continue;
    const std::string text = "--log-dir: the log file " + log.path() +
                             " lacks lines: cannot write it: " + std::generic_category().message(log.error());
    say(LogLevel::warning, text);
    supervisor_.send({protocol::SupervisorMessage::Kind::note, 0, text});
  }
}

// ---- ends -----------------------------------------------------------------------------------------------------

/// Waits in laps, so that time in which the job is stopped does not count. Returns false when the patience is over.
bool Nursery::await_change(os::UniqueLock& lock, os::Patience& patience) {
  if (patience.is_over()) return false;
  changed_.wait_for(lock, patience.nap(os::kLap));
  return true;
}

std::optional<int> Nursery::await_end(int index, os::Milliseconds limit) {
  os::UniqueLock lock(mutex_);
  const Child& child = children_[static_cast<std::size_t>(index)];
  os::Patience patience(limit);
  while (!child.wait_status && limit.count() > 0 && await_change(lock, patience)) {
  }
  return child.wait_status;
}

bool Nursery::have_all_ended() const {
  return spawned_ && std::all_of(children_.begin(), children_.end(),
                                 [](const Child& child) { return child.pid < 0 || child.wait_status.has_value(); });
}

bool Nursery::await_all_ends(os::Milliseconds limit) {
  os::UniqueLock lock(mutex_);
  os::Patience patience(limit);
  while (!have_all_ended()) {
    if (limit.count() <= 0 || !await_change(lock, patience)) return false;
  }
  return true;
}

/// Passes on the last output as long as its reader takes it. (No child is left that could write more.)
void Nursery::flush_the_rest() {
  const bool is_healthy = std::all_of(own_children().begin(), own_children().end(),
                                      [](const Child& child) { return child.wait_status == 0; });
  const auto waiting_bytes = [this] { return output_.waiting_bytes() + error_.waiting_bytes(); };
  const os::Milliseconds limit = is_healthy ? kReaderLimit : kHurriedReaderLimit;
  os::Patience patience(limit);
  os::Patience longest(kLongestFlush);
  for (std::size_t left = waiting_bytes(); left != 0 && !patience.is_over() && !longest.is_over();) {
    await_events(kRetryLap, kWakeEntry);
    if (waiting_bytes() < left) patience = os::Patience(limit);
    left = waiting_bytes();
  }
  if (output_.waiting_bytes() == 0 || error_.waiting_bytes() != 0) return;
  say(LogLevel::warning, std::to_string(output_.waiting_bytes()) + " bytes of the standard output of " +
                             watcher_.describe() + " are lost: nobody reads them");
  error_.flush();
}

void Nursery::kill_all() noexcept {
  const os::MutexLock lock(mutex_);
  for (const Child& child : children_) kill_group(child);
}

void Nursery::kill(int child) noexcept {
  const os::MutexLock lock(mutex_);
  kill_group(children_[static_cast<std::size_t>(child)]);
}

void Nursery::set_oom_score(const std::string& score) {
  const os::MutexLock lock(mutex_);
  for (const Child& child : children_) {
    if (child.pid < 0 || child.wait_status) continue;
    const std::string path = "/proc/" + std::to_string(child.pid) + "/oom_score_adj";
    const os::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    [[maybe_unused]] const auto written = ::write(file.get(), score.data(), score.size());
  }
}

/// Under the lock, the pid still belongs to the child.
void Nursery::kill_group(const Child& child) noexcept {
  if (child.pid < 0 || child.wait_status) return;
  ::kill(-child.pid, SIGKILL);
  ::kill(child.pid, SIGKILL);  // in case it does not lead its group yet
}

int Nursery::pid(int index) const noexcept {
  const os::MutexLock lock(mutex_);
  return children_[static_cast<std::size_t>(index)].pid;
}

int Nursery::stop_signal(int index) const {
  const os::MutexLock lock(mutex_);
  const Child& child = children_[static_cast<std::size_t>(index)];
  if (child.pid < 0 || child.wait_status) return 0;
  siginfo_t info{};  // the child is not reaped yet, so the pid is still its own
  if (::waitid(P_PID, static_cast<id_t>(child.pid), &info, WSTOPPED | WNOHANG | WNOWAIT) != 0) return 0;
  return info.si_pid == 0 ? 0 : info.si_status;
}

std::vector<std::string> Nursery::last_stderr(int index) {
  const os::MutexLock lock(mutex_);
  const auto& error = children_[static_cast<std::size_t>(index)].error;
  return error ? error->tail() : std::vector<std::string>();
}

}  // namespace syncrun::detail::master::process

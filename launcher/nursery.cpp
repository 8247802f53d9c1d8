#include "launcher/nursery.hpp"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "common/environment.hpp"
#include "common/errors.hpp"
#include "common/life.hpp"
#include "common/log.hpp"
#include "launcher/placement.hpp"

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

namespace syncrun::detail {

namespace {

// What an epoll event is about: the kind in the low bits, the rank above.
enum class Source : std::uint64_t { wake, death, output, error };
constexpr std::uint64_t tag_of(Source source, int rank) noexcept {
  return static_cast<std::uint64_t>(rank) << 2U | static_cast<std::uint64_t>(source);
}

std::pair<FileDescriptor, FileDescriptor> make_pipe() {
  std::array<int, 2> ends{};
  check_system(::pipe2(ends.data(), O_CLOEXEC), "cannot make a pipe for a worker's output");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/// The program's own command line, which workers get too.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  if (arguments.empty()) arguments.emplace_back(program_invocation_name);
  return arguments;
}

}  // namespace

Nursery::Nursery(const Settings& settings, const Segment& segment, ControlBlock control,
                 const SupervisorLink& supervisor)
    : settings_(settings),
      segment_(segment),
      control_(control),
      supervisor_(supervisor),
      workers_(settings.devices.size()),
      epoll_(check_system(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      wake_(check_system(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")) {}

Nursery::~Nursery() {
  expect_ends();
  kill_all();
  if (thread_.joinable()) {
    await_all_ends(settings_.grace);
    {
      const std::lock_guard lock(mutex_);
      stops_ = true;
    }
    const std::uint64_t one = 1;
    static_cast<void>(::write(wake_.get(), &one, sizeof(one)));
    thread_.join();
  }
  for (auto& watcher : life_watchers_) watcher.join();
}

// ---- birth ----------------------------------------------------------------------------------------------------

void Nursery::spawn_all() {
  thread_ = std::thread(&Nursery::run, this);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return spawned_; });
  if (spawn_error_) std::rethrow_exception(spawn_error_);
}

void Nursery::run() noexcept {
  // Signals are the program's own threads' business; a closed standard output is seen as an error of write.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  ::pthread_setname_np(::pthread_self(), "syncrun-nursery");
  std::exception_ptr error;
  try {
    watch(wake_.get(), tag_of(Source::wake, 0));
    for (int rank = 0; rank < control_.world_size(); ++rank) spawn_worker(rank);
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    spawn_error_ = error;
    spawned_ = true;
  }
  changed_.notify_all();
  loop();
}

void Nursery::spawn_worker(int rank) {
  Worker& worker = workers_[static_cast<std::size_t>(rank)];
  std::array<int, 2> ends{};
  check_system(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), "socketpair");
  worker.socket = FileDescriptor(ends[0]);
  const FileDescriptor workers_end(ends[1]);
  auto [output_read, output_write] = make_pipe();
  auto [error_read, error_write] = make_pipe();
  if (!settings_.log_dir.empty()) {
    const std::string path = settings_.log_dir + "/rank" + std::to_string(rank) + ".log";
    worker.log =
        FileDescriptor(check_system(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644),
                                    ("cannot open the log file " + path).c_str()));
  }

  SpawnedProcess process = spawn(request_for(rank, workers_end.get(), output_write.get(), error_write.get()));
  supervisor_.send({SupervisorMessage::Kind::worker, process.pid, {}});
  control_.worker(rank).pid.store(process.pid);
  worker.pidfd = std::move(process.pidfd);
  worker.output = std::make_unique<WorkerOutput>(rank, std::move(output_read), STDOUT_FILENO, worker.log.get());
  worker.error = std::make_unique<WorkerOutput>(rank, std::move(error_read), STDERR_FILENO, worker.log.get());
  worker.pid = process.pid;
  watch(worker.pidfd.get(), tag_of(Source::death, rank));
  watch(worker.output->fd(), tag_of(Source::output, rank));
  watch(worker.error->fd(), tag_of(Source::error, rank));
}

SpawnRequest Nursery::request_for(int rank, int socket, int output, int error) const {
  const int world_size = control_.world_size();
  const std::string device = to_string(settings_.devices[static_cast<std::size_t>(rank)]);
  SpawnRequest request;
  request.program = "/proc/self/exe";  // the very image this process runs, whatever stands at its path by now
  request.arguments = own_arguments();
  request.environment = {
      {environment::kWorkerRank, std::to_string(rank)},
      {environment::kSegmentFd, std::to_string(segment_.fd())},
      {environment::kSegmentBytes, std::to_string(segment_.bytes())},
      {environment::kSocketFd, std::to_string(socket)},
      {environment::kDevice, device},
      {environment::kMasterPid, std::to_string(::getpid())},
      {environment::kRank, std::to_string(rank)},
      {environment::kLocalRank, std::to_string(rank)},
      {environment::kWorldSize, std::to_string(world_size)},
      {environment::kLocalWorldSize, std::to_string(world_size)},
      {environment::kLogLevel, std::string(to_string(settings_.log_level))},
  };
  for (const auto& variable : thread_variables(world_size)) request.environment.push_back(variable);
  request.unset = {environment::kSupervisorFd};
  request.inherited = {segment_.fd(), socket};
  request.standard_output = output;
  request.standard_error = error;
  request.leads_group = true;
  request.cores = cores_for(rank, world_size);
  return request;
}

void Nursery::watch_lives() {
  for (int rank = 0; rank < control_.world_size(); ++rank) {
    life_watchers_.emplace_back([this, rank] {
      sigset_t all;
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
      await_death(control_.worker(rank).life);
      raise_loss(rank);
    });
  }
}

// ---- watching -------------------------------------------------------------------------------------------------

void Nursery::watch(int fd, std::uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  check_system(::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

void Nursery::loop() {
  std::array<epoll_event, 32> events;
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (stops_) return;
    }
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < count; ++i) on_event(events[static_cast<std::size_t>(i)].data.u64);
  }
}

void Nursery::on_event(std::uint64_t tag) {
  const int rank = static_cast<int>(tag >> 2U);
  Worker& worker = workers_[static_cast<std::size_t>(rank)];
  switch (static_cast<Source>(tag & 3U)) {
    case Source::wake: return;
    case Source::death: return bury(rank);
    case Source::output:
    case Source::error: {
      const std::lock_guard lock(mutex_);
      WorkerOutput& stream = static_cast<Source>(tag & 3U) == Source::output ? *worker.output : *worker.error;
      if (stream.fd() >= 0 && !stream.pump()) stream.finish();  // closing it takes it out of the epoll set
      return;
    }
  }
}

void Nursery::raise_loss(int rank) noexcept {
  if (expects_ends_.load()) return;
  auto& header = control_.header();
  std::uint64_t none = 0;
  header.lost.compare_exchange_strong(none, static_cast<std::uint64_t>(rank) + 1, std::memory_order_seq_cst);
  header.to_master.wake();
  header.to_peers.wake();
  header.to_workers.wake();
}

/// The worker is a zombie: release those who wait for it, end what it started, read its last words, and reap it.
void Nursery::bury(int rank) {
  raise_loss(rank);
  Worker& worker = workers_[static_cast<std::size_t>(rank)];
  ::kill(-worker.pid, SIGKILL);  // its group; the pid cannot be anybody else's before it is reaped
  const std::lock_guard lock(mutex_);
  for (WorkerOutput* stream : {worker.output.get(), worker.error.get()}) {
    while (stream->fd() >= 0) {
      // What it wrote is in the pipe; who else holds the other end is being killed.
      const bool is_open = stream->pump();
      if (!is_open) stream->finish();
      int waiting = 0;
      if (is_open && (::ioctl(stream->fd(), FIONREAD, &waiting) != 0 || waiting == 0)) break;
    }
  }
  siginfo_t info{};
  if (::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(worker.pidfd.get()), &info, WEXITED) == 0) {
    worker.wait_status = info.si_code == CLD_EXITED ? info.si_status << 8 : info.si_status;
  } else {
    worker.wait_status = kUnknownStatus;
  }
  worker.pidfd.reset();
  supervisor_.send({SupervisorMessage::Kind::ended, worker.pid, {}});
  changed_.notify_all();
}

// ---- ends -----------------------------------------------------------------------------------------------------

std::optional<int> Nursery::await_end(int rank, Milliseconds limit) {
  std::unique_lock lock(mutex_);
  const Worker& worker = workers_[static_cast<std::size_t>(rank)];
  changed_.wait_for(lock, limit, [&] { return worker.wait_status.has_value(); });
  return worker.wait_status;
}

bool Nursery::await_all_ends(Milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [this] {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const Worker& worker) { return worker.pid < 0 || worker.wait_status.has_value(); });
  });
}

void Nursery::kill_all() noexcept {
  const std::lock_guard lock(mutex_);
  for (const Worker& worker : workers_) {
    if (worker.pid < 0 || worker.wait_status) continue;
    ::kill(-worker.pid, SIGKILL);
    ::kill(worker.pid, SIGKILL);  // in case it has not yet come as far as leading its group
  }
}

int Nursery::stop_signal(int rank) const {
  const std::lock_guard lock(mutex_);
  const Worker& worker = workers_[static_cast<std::size_t>(rank)];
  siginfo_t info{};
  if (!worker.pidfd.is_open() || ::waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(worker.pidfd.get()), &info,
                                          WSTOPPED | WNOHANG | WNOWAIT) != 0) {
    return 0;
  }
  return info.si_pid == 0 ? 0 : info.si_status;
}

std::vector<std::string> Nursery::last_stderr(int rank) {
  const std::lock_guard lock(mutex_);
  const auto& error = workers_[static_cast<std::size_t>(rank)].error;
  return error ? error->tail() : std::vector<std::string>();
}

}  // namespace syncrun::detail

// The program of the matrix. Its workers have children, and one call goes through every phase. SYNCRUN_FAULT says what
// fails (tests/fault/points/fault_points.hpp). With SYNCRUN_MATRIX_DEAF, the master ignores SIGINT.
//
//   program CALL_TIMEOUT_MS GRACE_MS [idle | call | setsid | throw-idle | throw-call | throw-setsid | close-idle |
//   close-call | fork | exec | stopped | eat | dependencies]
//
// With `dependencies`, each rank in turn makes a call that has to wait for a command of another rank. Without the last
// argument, or with an empty one, the program makes one call on all ranks. If the call fails and the session continues, the program makes
// it again. The test reads these lines of its output: "master PID", "ready PID ...", "began TIME_NS" (an odd event
// begins: the program closes all descriptors except the standard ones, or a function forks or calls exec), "failed
// TIME_NS KIND|RANK|PID|DEVICE|CALL|PHASE|CAUSE", "usable", "done".

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <syncrun/syncrun.hpp>
#include <type_traits>
#include <vector>

namespace {

namespace sr = syncrun;
using std::chrono::milliseconds;

constexpr std::int64_t kRows = 1000;
constexpr std::int64_t kLarge = 1 << 16;  // elements; on any device, more than the master reduces itself
constexpr auto kPatience = std::chrono::seconds(20);

/// Starts a child of the worker, which only sleeps.
template <class Worker>
void start_child(Worker&) {
  if (::fork() != 0) return;
  ::execlp("sleep", "sleep", "1000", nullptr);
  ::_exit(127);
}

[[noreturn]] void sleep_long() {
  ::execlp("sleep", "sleep", "1000", nullptr);
  ::_exit(127);
}

/// Starts two more processes, which leave the worker's process group: a child in a session of its own, and a daemon,
/// whose parent has ended.
template <class Worker>
void start_detached(Worker&) {
  std::array<int, 2> left{};
  if (::pipe2(left.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  if (::fork() == 0) {
    ::setsid();
    sleep_long();
  }
  const pid_t parent = ::fork();
  if (parent == 0) {
    ::setsid();
    if (::fork() == 0) sleep_long();
    ::_exit(0);
  }
  ::waitpid(parent, nullptr, 0);
  ::close(left[1]);
  char byte = 0;
  static_cast<void>(::read(left[0], &byte, 1));  // end of file: both run now
  ::close(left[0]);
}

struct Totals {
  sr::Sum<std::int64_t> rows;
  sr::Sum<std::int64_t> ranks;
  sr::Sum<float, 1> large;
};

/// Uses inputs by index, collectives, and an output that the workers reduce. It has no kernel: on GPUs, only NCCL
/// computes.
template <class Worker>
Totals work(Worker& worker, sr::Comm& comm, sr::Scattered<const float, 1> x) {
  const auto scratch = worker.template scratch<float>(kLarge);
  comm.all_reduce(scratch, sr::Reduction::max);
  const auto ranks = comm.all_reduce(std::int64_t{1}, sr::Reduction::sum);
  return {.rows = x.rows(), .ranks = ranks, .large = {worker, {kLarge}}};
}

template <class Worker>
void wait_endlessly(Worker& worker, sr::Comm& comm) {
  if (worker.rank() == 0) {
    for (;;) ::pause();
  }
  comm.barrier();
}

/// Rank 1 allocates and fills memory, part by part, until none is left.
template <class Worker>
void eat(Worker& worker) {
  constexpr std::size_t kPart = std::size_t{4} << 20U;
  std::vector<std::vector<char>> eaten;
  while (worker.rank() == 1) eaten.emplace_back(kPart, 'x');
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

std::string now() { return std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()); }

void close_descriptors() {
  say("began " + now());
  ::closefrom(3);
}

/// Rank 1 forks, and the child returns from the body.
template <class Worker>
sr::Sum<int> fork_and_return(Worker& worker) {
  if (worker.rank() == 1) static_cast<void>(::fork());
  return 1;
}

template <class Worker>
void call_exec(Worker& worker) {
  if (worker.rank() == 1) ::execlp("sleep", "sleep", "1000", nullptr);
}

template <class Worker>
void sleep_for_longer_than_its_limit(Worker&) {
  ::usleep(5'000'000);
}

template <class Worker>
void sleep_a_little(Worker&) {
  ::usleep(300'000);
}

template <class Worker>
void read_values(Worker&, sr::Local<const float, 1>) {}

template <class Worker>
void write_values(Worker&, sr::Local<float, 1>) {}

/// Each rank in turn writes a Value that another rank still has to copy, because this rank is busy with a call. So the
/// call of the writer waits for the copy.
void write_what_others_copy(sr::Session& session, milliseconds timeout) {
  const auto sleep = session.function(sleep_a_little<sr::CpuWorker>, sleep_a_little<sr::CudaWorker>, "sleep");
  const auto read = session.function(read_values<sr::CpuWorker>, read_values<sr::CudaWorker>, "read");
  const auto write = session.function(write_values<sr::CpuWorker>, write_values<sr::CudaWorker>, "work");
  for (int rank = 0; rank < session.world_size(); ++rank) {
    const int other = (rank + 1) % session.world_size();
    const auto values = session.value(std::vector<float>(kRows, 1), sr::Shape{kRows}, session.device(rank));
    auto slept = sleep.on_rank(other).async({.timeout = kPatience});
    auto read_there = read.on_rank(other).async(values, {.timeout = kPatience});
    write.on_rank(rank)(values, {.timeout = timeout});
    slept.get();
    read_there.get();
  }
}

/// Stops this process for four seconds while a call is in flight.
void be_stopped() {
  const pid_t master = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    ::usleep(400'000);
    ::kill(master, SIGSTOP);
    ::usleep(4'000'000);
    ::kill(master, SIGCONT);
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
}

void say_failure(const sr::Error& error) {
  const auto& failure = error.failure();
  say("failed " + now() + " " + std::string(to_string(error.kind())) + "|" + std::to_string(failure.rank) + "|" +
      std::to_string(failure.pid) + "|" + failure.device + "|" + failure.call + "|" + failure.phase + "|" +
      failure.cause);
}

bool goes_on(const sr::Error& error) {
  return error.kind() != sr::ErrorKind::worker_lost && error.kind() != sr::ErrorKind::timeout;
}

/// Makes the call. If the call fails and the session survives, makes it again.
template <class Function>
void call(sr::Session& session, const Function& f, milliseconds timeout) {
  std::vector<float> values(kRows, 1);
  const auto x = session.data(values);
  std::vector<std::int64_t> batch(kRows);
  std::iota(batch.rbegin(), batch.rend(), 0);
  const auto is_right = [&](const Totals& totals) {
    return totals.rows == kRows && totals.ranks == session.world_size() * session.world_size() &&
           totals.large.size() == kLarge;
  };
  try {
    say(is_right(f(x, {.batch = batch, .timeout = timeout})) ? "done" : "wrong");
  } catch (const sr::Error& error) {
    say_failure(error);
    if (goes_on(error) && is_right(f(x, {.batch = batch, .timeout = kPatience}))) say("usable");
    throw;
  }
}

void run_to_the_end(sr::Session& session, const std::string& what, milliseconds timeout) {
  const auto start = session.function(start_child<sr::CpuWorker>, start_child<sr::CudaWorker>, "start_child");
  start({.timeout = kPatience});
  std::string ready = "ready";
  for (const int pid : session.worker_pids()) ready.append(" ").append(std::to_string(pid));
  const bool is_detached = what == "setsid" || what == "throw-setsid";
  if (is_detached) {
    session.function(start_detached<sr::CpuWorker>, start_detached<sr::CudaWorker>, "detach")({.timeout = kPatience});
  }
  if (what == "idle" || what == "throw-idle" || is_detached) {
    say(ready);
    if (what.starts_with("throw")) throw std::runtime_error("the program's own failure");
    for (;;) ::pause();
  }
  if (what == "close-idle") close_descriptors();
  if (what == "fork") {
    say("began " + now());
    const auto f = session.function(fork_and_return<sr::CpuWorker>, fork_and_return<sr::CudaWorker>, "fork");
    try {
      f();
    } catch (const sr::Error& error) {
      say_failure(error);
    }
    return call(session, session.function(work<sr::CpuWorker>, work<sr::CudaWorker>, "work"), timeout);
  }
  if (what == "exec") {
    say("began " + now());
    return session.function(call_exec<sr::CpuWorker>, call_exec<sr::CudaWorker>, "exec")();
  }
  if (what == "stopped") {
    auto future = session
                      .function(sleep_for_longer_than_its_limit<sr::CpuWorker>,
                                sleep_for_longer_than_its_limit<sr::CudaWorker>, "sleep")
                      .async({.timeout = milliseconds(3000)});
    be_stopped();
    future.get();
    say("done");
    return session.close();
  }
  if (what == "eat") {
    session.function(eat<sr::CpuWorker>, eat<sr::CudaWorker>, "eat")({.timeout = kPatience});
    return;
  }
  if (what == "call" || what == "throw-call" || what == "close-call") {
    auto future = session.function(wait_endlessly<sr::CpuWorker>, wait_endlessly<sr::CudaWorker>, "wait").async();
    say(ready);
    if (what == "throw-call") throw std::runtime_error("the program's own failure");
    if (what == "close-call") close_descriptors();
    future.get();
  }
  say(ready);
  if (what == "dependencies") {
    write_what_others_copy(session, timeout);
    say("done");
    return session.close();
  }
  call(session, session.function(work<sr::CpuWorker>, work<sr::CudaWorker>, "work"), timeout);
  session.close();
}

int program(int argc, char** argv) {
  const milliseconds timeout(std::stol(argv[1]));
  const milliseconds grace(std::stol(argv[2]));
  if (std::getenv("SYNCRUN_MATRIX_DEAF") != nullptr) ::signal(SIGINT, SIG_IGN);
  say("master " + std::to_string(::getpid()));
  try {
    sr::Session session({.timeout = timeout, .grace = grace});
    run_to_the_end(session, argc > 3 ? argv[3] : "", timeout);
  } catch (const sr::Error& error) {
    say_failure(error);
    throw;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const rlimit no_cores{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_cores);
  if (const auto code = sr::serve_if_worker(argc, argv)) return *code;
  if (argc < 3) return 2;
  const auto whole = [](int count, char** values) { return program(count, values); };
  return sr::detail::run_master(argc, argv, sr::detail::program_of(whole));
}

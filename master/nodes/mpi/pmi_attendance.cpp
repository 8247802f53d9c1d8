// Engines with PMI-1: MPICH's mpirun, and srun --mpi=pmi2.
//
// The engine keeps names that tasks publish (MPI_Publish_name), at once and for all tasks. So each node publishes a name
// when it has waited for too long, and looks for the names of the others. The lines are those of PMI-1
// (https://wiki.mpich.org/mpich/index.php/PMI_v1_Wire_Protocol).

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "master/nodes/mpi/engine_attendance.hpp"

namespace syncrun::detail::master::nodes::mpi {

namespace {

// On a busy machine, threads and the engine answer late. The start has failed already, so nobody waits for more than this
// report.
/// The nodes did not start at exactly the same time, so the names of some come later.
constexpr os::Milliseconds kLongestWait{2000};
constexpr os::Milliseconds kLookForNodesEvery{100};
constexpr os::Milliseconds kLongestAnswer{5000};
/// How long the other thread may take to stop, and how long it stays there if nobody lets it go.
constexpr os::Milliseconds kLongestStop{5000};
constexpr os::Milliseconds kLongestHold = kLongestStop + kLongestAnswer + kLongestWait + kLongestAnswer;

enum class Hold { none, asked, has_stopped };
std::atomic<Hold> hold{Hold::none};
static_assert(std::atomic<Hold>::is_always_lock_free);  // a signal handler uses it

/// The handler runs in the other thread, which may hold a lock that this one needs. So it returns after kLongestHold at the
/// latest. A signal that arrives when nobody asks for it any more does not stop the thread.
void stay_here(int) {
  const int error = errno;
  Hold expected = Hold::asked;
  if (hold.compare_exchange_strong(expected, Hold::has_stopped)) {
    for (auto turn = kLongestHold.count(); turn > 0 && hold.load() == Hold::has_stopped; --turn) ::poll(nullptr, 0, 1);
  }
  errno = error;
}

/// Stops a thread as long as it lives. Then the thread continues, and a system call that waits begins again.
class HeldThread {
 public:
  explicit HeldThread(pthread_t thread) {
    struct sigaction action {};
    action.sa_handler = stay_here;
    action.sa_flags = SA_RESTART;
    if (::sigaction(SIGUSR2, &action, nullptr) != 0) return;
    hold.store(Hold::asked);
    if (::pthread_kill(thread, SIGUSR2) != 0) return;
    const auto end = os::Clock::now() + kLongestStop;
    while (hold.load() != Hold::has_stopped && os::Clock::now() < end) std::this_thread::sleep_for(os::Milliseconds(1));
  }
  /// The handler stays installed: the signal may still arrive, and would end the process otherwise.
  ~HeldThread() { hold.store(Hold::none); }
  HeldThread(const HeldThread&) = delete;
  HeldThread& operator=(const HeldThread&) = delete;
  bool has_stopped() const noexcept { return hold.load() == Hold::has_stopped; }
};

std::string own_host() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

class Conversation {
 public:
  explicit Conversation(int fd) : fd_(fd) {}
  bool is_over() const noexcept { return is_over_; }
  /// Sends a request, and returns the line of the answer that begins with "cmd=ANSWER". Empty if none comes. Then the
  /// conversation is over: a late answer would look like that to the next request.
  std::string ask(const std::string& request, const std::string& answer) {
    if (is_over_) return {};
    is_over_ = ::write(fd_, request.data(), request.size()) != static_cast<ssize_t>(request.size());
    const auto limit = os::Clock::now() + kLongestAnswer;
    while (!is_over_) {
      if (const auto end = received_.find('\n'); end != std::string::npos) {
        const std::string line = received_.substr(0, end);
        received_.erase(0, end + 1);
        if (line.starts_with("cmd=" + answer)) return line;
      } else {
        is_over_ = !read_more(limit);
      }
    }
    return {};
  }

 private:
  bool read_more(os::Clock::time_point limit) {
    pollfd polled{fd_, POLLIN, 0};
    const auto left = std::max(std::chrono::ceil<os::Milliseconds>(limit - os::Clock::now()), os::Milliseconds(0));
    if (::poll(&polled, 1, static_cast<int>(left.count())) != 1) return false;
    std::array<char, 1024> bytes{};
    const auto count = ::read(fd_, bytes.data(), bytes.size());
    if (count > 0) received_.append(bytes.data(), static_cast<std::size_t>(count));
    return count > 0;
  }
  int fd_;
  std::string received_;
  bool is_over_ = false;
};

bool is_ok(const std::string& answer) { return answer.find("info=ok") != std::string::npos; }

std::string service_of(std::size_t node) { return "service=syncrun-node-" + std::to_string(node); }

/// The value of "port=VALUE" in an answer.
std::string port_in(const std::string& answer) {
  const auto begin = answer.find("port=");
  if (begin == std::string::npos) return {};
  return answer.substr(begin + 5, answer.find(' ', begin) - begin - 5);
}

}  // namespace

std::optional<Attendance> ask_engine(int node, int nodes, pthread_t opener) {
  const char* const text = std::getenv("PMI_FD");
  int fd = -1;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), fd);
  if (fd < 0) return std::nullopt;
  // The thread waits for the engine's answer to MPI. Otherwise it would read the answers to this one.
  const HeldThread held(opener);
  if (!held.has_stopped()) return std::nullopt;
  const auto count = static_cast<std::size_t>(nodes);
  const auto own = static_cast<std::size_t>(node);
  Attendance attendance{std::vector<bool>(count), std::vector<std::string>(count)};
  attendance.has_come[own] = true;
  attendance.hosts[own] = own_host();
  Conversation engine(fd);
  const std::string publish = "cmd=publish_name " + service_of(own) + " port=" + attendance.hosts[own] + "\n";
  if (!is_ok(engine.ask(publish, "publish_result"))) return std::nullopt;
  const auto end = os::Clock::now() + kLongestWait;
  for (std::size_t missing = count; missing != 0 && os::Clock::now() < end;
       std::this_thread::sleep_for(kLookForNodesEvery)) {
    missing = 0;
    for (std::size_t other = 0; other < count && os::Clock::now() < end; ++other) {
      if (attendance.has_come[other]) continue;
      const std::string answer = engine.ask("cmd=lookup_name " + service_of(other) + "\n", "lookup_result");
      if (engine.is_over()) return std::nullopt;
      attendance.has_come[other] = is_ok(answer);
      if (is_ok(answer)) attendance.hosts[other] = port_in(answer);
      else ++missing;
    }
  }
  return attendance;
}

}  // namespace syncrun::detail::master::nodes::mpi

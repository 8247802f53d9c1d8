// Engines with PMI-1: MPICH's mpirun, and srun --mpi=pmi2.
//
// The engine keeps names that tasks publish (MPI_Publish_name), at once and for all tasks. So each node publishes a name
// when it has waited for too long, and looks for the names of the others. The lines are those of PMI-1
// (https://wiki.mpich.org/mpich/index.php/PMI_v1_Wire_Protocol).

#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "launcher/nodes/mpi/engine_attendance.hpp"

namespace syncrun::detail {

namespace {

/// The nodes did not start at exactly the same time, so the names of some come later.
constexpr Milliseconds kLongestWait{1500};
constexpr Milliseconds kLookForNodesEvery{100};
constexpr Milliseconds kLongestAnswer{250};
constexpr Milliseconds kLongestHold{200};

std::atomic<bool> is_held{false};

void stay_here(int) {
  is_held.store(true);
  for (;;) ::pause();
}

/// Stops the thread that waits for the engine's answer to MPI. Otherwise it would read the answers to this one.
bool hold(pthread_t thread) {
  struct sigaction action {};
  action.sa_handler = stay_here;
  if (::sigaction(SIGUSR2, &action, nullptr) != 0 || ::pthread_kill(thread, SIGUSR2) != 0) return false;
  const auto end = Clock::now() + kLongestHold;
  while (!is_held.load()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(Milliseconds(1));
  }
  return true;
}

std::string own_host() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

class Conversation {
 public:
  explicit Conversation(int fd) : fd_(fd) {}
  /// Sends a request, and returns the line of the answer that begins with "cmd=ANSWER". Empty if none comes.
  std::string ask(const std::string& request, const std::string& answer) {
    if (::write(fd_, request.data(), request.size()) != static_cast<ssize_t>(request.size())) return {};
    const auto limit = Clock::now() + kLongestAnswer;
    while (Clock::now() < limit) {
      if (const auto end = received_.find('\n'); end != std::string::npos) {
        const std::string line = received_.substr(0, end);
        received_.erase(0, end + 1);
        if (line.starts_with("cmd=" + answer)) return line;
      } else if (!read_more()) {
        return {};
      }
    }
    return {};
  }

 private:
  bool read_more() {
    pollfd polled{fd_, POLLIN, 0};
    if (::poll(&polled, 1, static_cast<int>(kLongestAnswer.count())) != 1) return false;
    std::array<char, 1024> bytes{};
    const auto count = ::read(fd_, bytes.data(), bytes.size());
    if (count > 0) received_.append(bytes.data(), static_cast<std::size_t>(count));
    return count > 0;
  }
  int fd_;
  std::string received_;
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
  if (fd < 0 || !hold(opener)) return std::nullopt;
  const auto count = static_cast<std::size_t>(nodes);
  const auto own = static_cast<std::size_t>(node);
  Attendance attendance{std::vector<bool>(count), std::vector<std::string>(count)};
  attendance.has_come[own] = true;
  attendance.hosts[own] = own_host();
  Conversation engine(fd);
  const std::string publish = "cmd=publish_name " + service_of(own) + " port=" + attendance.hosts[own] + "\n";
  if (!is_ok(engine.ask(publish, "publish_result"))) return std::nullopt;
  const auto end = Clock::now() + kLongestWait;
  for (std::size_t missing = count; missing != 0 && Clock::now() < end;
       std::this_thread::sleep_for(kLookForNodesEvery)) {
    missing = 0;
    for (std::size_t other = 0; other < count && Clock::now() < end; ++other) {
      if (attendance.has_come[other]) continue;
      const std::string answer = engine.ask("cmd=lookup_name " + service_of(other) + "\n", "lookup_result");
      attendance.has_come[other] = is_ok(answer);
      if (is_ok(answer)) attendance.hosts[other] = port_in(answer);
      else ++missing;
    }
  }
  return attendance;
}

}  // namespace syncrun::detail

// The output of workers if its reader is slow or does not read at all: a pager, or a terminal after Ctrl-S. While a
// reader reads, no line is lost or torn. Only the output waits for the reader.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <syncrun/syncrun.hpp>
#include <thread>

#include "common/os/file_descriptor.hpp"
#include "common/text/errors.hpp"
#include "tests/support/slowdown.hpp"

namespace syncrun::test {
namespace {

using detail::os::FileDescriptor;
using detail::text::check_system;
using testing::HasSubstr;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// How long the master may take to report a failure if nothing reads its output, after the deadline of the call.
constexpr auto kErrorLimit = kSlowdown * 4'500ms;

enum class Reader : std::uint8_t { pipe, socket, terminal };

std::string name_of(Reader reader) {
  switch (reader) {
    case Reader::pipe: return "Pipe";
    case Reader::socket: return "Socket";
    case Reader::terminal: return "Terminal";
  }
  return "Unknown";
}

struct Ends {
  FileDescriptor read;
  FileDescriptor write;
};

Ends make_ends(Reader reader) {
  std::array<int, 2> ends{};
  if (reader == Reader::pipe) check_system(::pipe2(ends.data(), O_CLOEXEC), "pipe2");
  if (reader == Reader::socket) {
    check_system(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), "socketpair");
  }
  if (reader == Reader::terminal) {
    ends[0] = check_system(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), "posix_openpt");
    check_system(::grantpt(ends[0]), "grantpt");
    check_system(::unlockpt(ends[0]), "unlockpt");
    ends[1] = check_system(::open(::ptsname(ends[0]), O_RDWR | O_NOCTTY | O_CLOEXEC), "open of the terminal");
    termios settings{};
    check_system(::tcgetattr(ends[1], &settings), "tcgetattr");
    ::cfmakeraw(&settings);  // keeps newlines as they are
    check_system(::tcsetattr(ends[1], TCSANOW, &settings), "tcsetattr");
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/// Redirects standard output for as long as the object lives.
class Redirection {
 public:
  explicit Redirection(int to) : kept_(check_system(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3), "dup")) {
    std::fflush(stdout);
    check_system(::dup2(to, STDOUT_FILENO), "dup2");
  }
  ~Redirection() { ::dup2(kept_.get(), STDOUT_FILENO); }
  Redirection(const Redirection&) = delete;
  Redirection& operator=(const Redirection&) = delete;

 private:
  FileDescriptor kept_;
};

/// Lines of many lengths that a test can check: a number, followed by (number % 5000) characters.
std::string line(int number) {
  return std::to_string(number) + std::string(static_cast<std::size_t>(number % 5000), 'x');
}

void print_lines(CpuWorker& worker, int lines) {
  if (worker.rank() != 1) return;
  for (int number = 0; number < lines; ++number) std::puts(line(number).c_str());
  std::fflush(stdout);
}
void print_and_die(CpuWorker& worker, int lines) {
  print_lines(worker, lines);
  if (worker.rank() == 1) std::raise(SIGKILL);
}
void print_and_hang(CpuWorker& worker, int lines) {
  print_lines(worker, lines);
  if (worker.rank() == 1) std::this_thread::sleep_for(100s);
}

constexpr int kSomeLines = 700;   // more than a pipe holds, less than the master buffers
constexpr int kManyLines = 2500;  // more than both

class NurseryOutput : public testing::TestWithParam<Reader> {
 protected:
  static void SetUpTestSuite() { ::setenv("NO_COLOR", "1", 1); }

  using Body = void (*)(CpuWorker&, int);

  /// The error of a call while nothing reads the output.
  Error error_of(Body body, int lines, std::chrono::milliseconds timeout = 2s) {
    Clock::time_point start;
    try {
      const Redirection redirection(ends_.write.get());
      Session session({.processes = "2"});
      start = Clock::now();
      session.function(body)(lines, {.timeout = timeout});
    } catch (const Error& error) {
      EXPECT_LT(Clock::now() - start, timeout + kErrorLimit);
      return error;
    }
    ADD_FAILURE() << "threw nothing";
    return Error(ErrorKind::usage, "none");
  }

  Ends ends_ = make_ends(GetParam());
};
INSTANTIATE_TEST_SUITE_P(To, NurseryOutput, testing::Values(Reader::pipe, Reader::socket, Reader::terminal),
                         [](const auto& test) { return name_of(test.param); });

TEST_P(NurseryOutput, ThatNobodyReadsDoesNotHideADeath) {
  const int flags = ::fcntl(ends_.write.get(), F_GETFL);
  const Error error = error_of(print_and_die, kSomeLines, 10s);  // a busy machine writes the lines slowly
  EXPECT_EQ(error.kind(), ErrorKind::worker_lost) << error.what();
  EXPECT_EQ(error.rank(), 1);
  EXPECT_THAT(error.what(), HasSubstr("killed by SIGKILL"));
  EXPECT_EQ(::fcntl(ends_.write.get(), F_GETFL), flags) << "other processes may have this output too";
}

TEST_P(NurseryOutput, ThatNobodyReadsDoesNotHoldADeadlineUp) {
  const Error error = error_of(print_and_hang, kSomeLines);
  EXPECT_EQ(error.kind(), ErrorKind::timeout) << error.what();
  EXPECT_EQ(error.rank(), 1);
}

TEST_P(NurseryOutput, ThatNobodyReadsAtLastMakesTheWorkerWait) {
  const Error error = error_of(print_lines, kManyLines);
  EXPECT_EQ(error.kind(), ErrorKind::timeout) << error.what();
  EXPECT_EQ(error.rank(), 1);
}

TEST_P(NurseryOutput, ReachesASlowReaderWholeAndInOrder) {
  std::string received;
  std::string expected;
  for (int number = 0; number < kManyLines; ++number) expected += "[rank 1] " + line(number) + "\n";
  std::thread reader([&] {
    std::this_thread::sleep_for(300ms);
    std::array<char, 3000> part{};
    while (received.size() < expected.size()) {
      const auto count = ::read(ends_.read.get(), part.data(), part.size());
      if (count <= 0) break;
      received.append(part.data(), static_cast<std::size_t>(count));
    }
  });
  {
    const Redirection redirection(ends_.write.get());
    Session session({.processes = "2"});
    session.function(print_lines)(kManyLines);
    session.close();
  }
  ends_.write.reset();  // ends the reader, even if output is missing
  reader.join();
  EXPECT_TRUE(received == expected) << "received " << received.size() << " of " << expected.size() << " bytes";
}

}  // namespace
}  // namespace syncrun::test

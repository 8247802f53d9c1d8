// The file, the socket and the port that offer metrics. The text is the test's own.

#include "master/metrics/exporter.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "common/os/file_descriptor.hpp"
#include "master/metrics/http_answer.hpp"
#include "tests/common/error_text.hpp"
#include "tests/support/full_disk.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string calls_text() { return "calls 3\n"; }

std::unique_ptr<metrics::Exporter> open(const std::string& target, metrics::Exporter::Text text = calls_text) {
  return metrics::open_exporter(settings::parse_metrics_target(target).value(), std::move(text));
}

/// A socket of this family, bound to the address. Port 0: the system chooses one.
class Peer {
 public:
  explicit Peer(int port) {
    in_.sin_family = AF_INET;
    in_.sin_port = htons(static_cast<std::uint16_t>(port));
    in_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    open(AF_INET, &in_, sizeof in_);
  }
  explicit Peer(const std::string& path) {
    un_.sun_family = AF_UNIX;
    std::memcpy(un_.sun_path, path.data(), path.size());
    open(AF_UNIX, &un_, sizeof un_);
  }
  int listen() {
    EXPECT_EQ(::bind(fd_.get(), address_, length_), 0) << std::strerror(errno);
    EXPECT_EQ(::listen(fd_.get(), 1), 0);
    ::getsockname(fd_.get(), address_, &length_);
    return ntohs(in_.sin_port);
  }
  void close() { fd_.reset(); }
  void connect() { EXPECT_EQ(::connect(fd_.get(), address_, length_), 0) << std::strerror(errno); }
  bool send(const std::string& text) {
    return ::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  /// Sends the request and returns all that comes back.
  std::string ask(const std::string& request) {
    connect();
    EXPECT_TRUE(send(request));
    std::string answer;
    std::array<char, 4096> part{};
    for (ssize_t count = 0; (count = ::recv(fd_.get(), part.data(), part.size(), 0)) > 0;)
      answer.append(part.data(), static_cast<std::size_t>(count));
    return answer;
  }

 private:
  template <class Address>
  void open(int family, Address* address, socklen_t length) {
    fd_ = os::FileDescriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    address_ = reinterpret_cast<sockaddr*>(address);
    length_ = length;
  }
  sockaddr_in in_{};
  sockaddr_un un_{};
  sockaddr* address_ = nullptr;
  socklen_t length_ = 0;
  os::FileDescriptor fd_;
};

struct PortExporter {
  int port;
  std::unique_ptr<metrics::Exporter> exporter;
};
/// Another program may take a free port first.
PortExporter open_port() {
  for (int tries = 1;; ++tries) {
    const int port = Peer(0).listen();
    try {
      return {port, open(std::to_string(port))};
    } catch (const Error&) {
      if (tries == 10) throw;
    }
  }
}

constexpr const char* kRequest = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

TEST(MetricsTarget, IsStandardErrorOrASocketThatTheSystemCanHave) {
  EXPECT_EQ(settings::parse_metrics_target("-")->path, "/dev/stderr");
  EXPECT_FALSE(settings::parse_metrics_target("unix:/" + std::string(107, 'a')));
}

TEST(MetricsFile, IsReplacedAsAWholeAndHasTheLastMetrics) {
  const TemporaryFolder folder;
  const std::string path = folder.at("calls.prom");
  std::atomic<int> calls{0};
  const auto exporter = open(path, [&] { return "calls " + std::to_string(++calls) + "\n"; });
  EXPECT_EQ(::text_of(path), "calls 1\n") << "the file is there from the start";
  std::ifstream reader(path);  // has the first file open
  while (calls.load() < 2) std::this_thread::yield();
  exporter->close();
  EXPECT_EQ(::text_of(path), "calls " + std::to_string(calls.load()) + "\n");
  std::string seen;
  std::getline(reader, seen);
  EXPECT_EQ(seen, "calls 1");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(std::filesystem::path(path).parent_path()), {}), 1);
}

TEST(MetricsFile, ThatIsADeviceStaysOne) {
  const auto exporter = open("/dev/null");
  exporter->close();
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(MetricsFile, ThatCannotBeWrittenIsRefusedWithTheOption) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_text([&] { open(folder.at("no/such/folder")); }),
              AllOf(HasSubstr("--metrics"), HasSubstr("No such file")));
  EXPECT_THAT(error_text([&] { open(folder.at(".")); }), AllOf(HasSubstr("--metrics"), HasSubstr("a folder")));
  std::filesystem::create_symlink("elsewhere", folder.at("link"));
  EXPECT_THAT(error_text([&] { open(folder.at("link")); }), AllOf(HasSubstr("--metrics"), HasSubstr("symbolic link")));
}

TEST(MetricsFile, LeavesNoPartOfItselfIfItCannotBeWritten) {
  const TemporaryFolder folder;
  const std::string path = folder.at("calls.prom");
  const std::string error = error_text([&] {
    const FullDisk full(100);
    open(path, [] { return std::string(200, 'x'); });
  });
  EXPECT_THAT(error, AllOf(HasSubstr("--metrics"), HasSubstr("File too large")));
  EXPECT_TRUE(folder.is_empty());
}

TEST(MetricsPort, AnswersOverHttp) {
  const auto [port, exporter] = open_port();
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(Peer(port).ask(kRequest),
                AllOf(StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"),
                      HasSubstr("Content-Length: 8\r\n"), HasSubstr("\r\n\r\ncalls 3\n")));
  exporter->close();
  open(std::to_string(port))->close();  // the port is free again
}

/// Its own limit is two seconds.
TEST(MetricsPort, DoesNotWaitForAClientThatSendsAByteAtATime) {
  const auto [port, exporter] = open_port();
  std::atomic<bool> is_over{false};
  Peer client(port);
  client.connect();
  std::thread slow([&] {
    while (!is_over && client.send("G")) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  EXPECT_THAT(Peer(port).ask(kRequest), StartsWith("HTTP/1.1 200 OK"));
  is_over = true;
  slow.join();
}

TEST(MetricsPort, InUseIsRefusedWithTheOption) {
  Peer other(0);
  const std::string port = std::to_string(other.listen());
  EXPECT_THAT(error_text([&] { open(port); }),
              AllOf(HasSubstr("--metrics"), HasSubstr("port " + port), HasSubstr("in use by another program")));
}

TEST(MetricsSocket, AnswersOnlyItsUserAndIsRemoved) {
  const TemporaryFolder folder;
  const std::string path = folder.at("socket");
  const auto exporter = open("unix:" + path);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  EXPECT_THAT(Peer(path).ask(kRequest), HasSubstr("\r\n\r\ncalls 3\n"));
  exporter->close();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(MetricsSocket, InUseIsRefusedAndOneThatWasLeftIsReplaced) {
  const TemporaryFolder folder;
  const std::string path = folder.at("socket");
  Peer other(path);
  other.listen();
  EXPECT_THAT(error_text([&] { open("unix:" + path); }), AllOf(HasSubstr("--metrics"), HasSubstr(path + " is in use")));
  other.close();
  open("unix:" + path)->close();
  write_text(path, "a file");
  EXPECT_THAT(error_text([&] { open("unix:" + path); }), AllOf(HasSubstr("--metrics"), HasSubstr("is no socket")));
  EXPECT_EQ(::text_of(path), "a file");
}

TEST(MetricsAnswer, WaitsForTheWholeRequestAndRefusesOthers) {
  const std::string request = kRequest;
  for (std::size_t length = 0; length < request.size(); ++length)
    EXPECT_FALSE(metrics::answer_to(request.substr(0, length), calls_text)) << length;
  const auto answer = [](const std::string& text) { return metrics::answer_to(text, calls_text).value_or("none"); };
  EXPECT_THAT(answer("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), HasSubstr("calls 3"));
  EXPECT_THAT(answer("HEAD / HTTP/1.1\r\n\r\n"), AllOf(HasSubstr("Content-Length: 8"), testing::EndsWith("\r\n\r\n")));
  EXPECT_THAT(answer("GET /other HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(answer("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(answer("hello\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(answer("GET /" + std::string(metrics::kLongestRequest, 'a')), StartsWith("HTTP/1.1 400"));
}

}  // namespace
}  // namespace syncrun::test

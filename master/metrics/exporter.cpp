#include "master/metrics/exporter.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "common/os/file_descriptor.hpp"
#include "common/os/stoppable_thread.hpp"
#include "common/os/threads.hpp"
#include "common/os/wait.hpp"
#include "common/text/errors.hpp"
#include "master/metrics/http_answer.hpp"
#include "master/process/output_file.hpp"

namespace syncrun::detail::master::metrics {

namespace {

constexpr const char* kMetricsFile = "the metrics (--metrics, SessionOptions::metrics)";
constexpr const char* kMetricsOption = "--metrics (SessionOptions::metrics): ";
constexpr std::chrono::seconds kWriteEvery{1};
constexpr std::chrono::seconds kLongestTalk{2};

/// Only threads of the program handle signals.
void prepare_metrics_thread() noexcept {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  ::pthread_setname_np(::pthread_self(), "syncrun-metrics");
}

// ---- a file ---------------------------------------------------------------------------------------------------

/// Replaces a regular file as a whole, so that no reader sees a part of it. Anything else gets the text once.
class FileExporter final : public Exporter {
 public:
  FileExporter(const std::string& path, Text text) : path_(path), text_(std::move(text)) {
    struct stat status {};
    if (::lstat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
      own_.emplace(path_, kMetricsFile);
      return;
    }
    replace();
    thread_.emplace([this](os::StoppableThread& self) {
      prepare_metrics_thread();
      while (!self.nap(kWriteEvery)) {
        try {
          replace();
        } catch (const std::exception&) {  // such as a full disk. close() tries again, and throws
        }
      }
    });
  }
  ~FileExporter() override {
    try {
      close();
    } catch (const std::exception&) {
    }
  }
  void close() override {
    thread_.reset();
    if (std::exchange(is_closed_, true)) return;
    if (!own_) return replace();
    own_->write(text_());
    own_->close();
  }

 private:
  void replace() {
    const std::string fresh = path_ + ".new";
    process::OutputFile file(fresh, kMetricsFile);
    try {
      file.write(text_());
      file.close();
      if (::rename(fresh.c_str(), path_.c_str()) != 0)
        text::throw_errno(std::string("cannot write ") + kMetricsFile + " " + path_);
    } catch (...) {
      ::unlink(fresh.c_str());
      throw;
    }
  }

  std::string path_;
  Text text_;
  std::optional<process::OutputFile> own_;  // what is at the path, if it is no regular file
  bool is_closed_ = false;
  std::optional<os::StoppableThread> thread_;  // last, because it uses the others
};

// ---- a server -------------------------------------------------------------------------------------------------

[[noreturn]] void throw_in_use(const std::string& what) {
  text::throw_usage(kMetricsOption + what + " is in use by another program; name another one, or end that program");
}

os::FileDescriptor make_socket(int family) {
  return os::FileDescriptor(
      text::check_system(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket of --metrics"));
}

template <class Address>
const sockaddr* as_sockaddr(const Address& address) noexcept {
  return reinterpret_cast<const sockaddr*>(&address);
}

os::FileDescriptor listen_on_port(int port) {
  const std::string what = "port " + std::to_string(port) + " of 127.0.0.1";
  os::FileDescriptor fd = make_socket(AF_INET);
  // Old connections of a session that has ended do not keep the port busy.
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(fd.get(), as_sockaddr(address), sizeof address) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) return fd;
  if (errno == EADDRINUSE) throw_in_use(what);
  text::throw_errno(kMetricsOption + ("cannot listen on " + what));
}

/// Removes a socket that a program has left behind. Throws Error (usage) if the path is anything else.
void remove_left_socket(const std::string& path, const sockaddr_un& address) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return;
  if (!S_ISSOCK(status.st_mode))
    text::throw_usage(kMetricsOption + ("expected a new path for a socket, but " + path + " exists and is no socket"));
  const os::FileDescriptor probe = make_socket(AF_UNIX);
  if (::connect(probe.get(), as_sockaddr(address), sizeof address) == 0 || errno != ECONNREFUSED) throw_in_use(path);
  ::unlink(path.c_str());
}

/// Only this user may connect.
os::FileDescriptor listen_on_path(const std::string& path) {
  os::FileDescriptor fd = make_socket(AF_UNIX);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    text::throw_usage(kMetricsOption + ("expected a shorter path for a socket, got " + path));
  std::memcpy(address.sun_path, path.data(), path.size());
  remove_left_socket(path, address);
  constexpr mode_t kOwnerOnly = 0600;
  if (::fchmod(fd.get(), kOwnerOnly) == 0 && ::bind(fd.get(), as_sockaddr(address), sizeof address) == 0 &&
      ::listen(fd.get(), SOMAXCONN) == 0)
    return fd;
  if (errno == EADDRINUSE) throw_in_use(path);
  text::throw_errno(kMetricsOption + ("cannot make the socket " + path));
}

class Server final : public Exporter {
 public:
  Server(const settings::MetricsTarget& target, Text text)
      : path_(target.path),
        text_(std::move(text)),
        stop_(os::FileDescriptor(text::check_system(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd"))),
        listener_(target.kind == settings::MetricsTarget::Kind::port ? listen_on_port(target.port)
                                                                     : listen_on_path(target.path)) {
    struct stat status {};
    if (!path_.empty() && ::lstat(path_.c_str(), &status) == 0) inode_ = status.st_ino;
    thread_ = os::start_thread([this] { serve(); });
  }
  ~Server() override { close(); }
  void close() override {
    if (!thread_.joinable()) return;
    stops_.store(true);
    const std::uint64_t one = 1;
    if (stop_.is_intact()) static_cast<void>(::write(stop_.get(), &one, sizeof one));
    thread_.join();
    if (listener_.is_intact())
      ::shutdown(listener_.get(), SHUT_RDWR);  // also frees the port if a forked child has a copy of the descriptor
    listener_.reset();
    struct stat status {};
    const bool is_own = !path_.empty() && ::lstat(path_.c_str(), &status) == 0 && status.st_ino == inode_;
    if (is_own) ::unlink(path_.c_str());
  }

 private:
  /// Waits until the descriptor is ready. False if the exporter is to end, or after the deadline. The sleep has a limit, in
  /// case the program has closed the descriptors.
  bool await(int fd, short events, std::optional<os::Clock::time_point> deadline) {
    constexpr int kLongestSleepMs = 1000;
    while (!stops_.load() && (!deadline || os::Clock::now() < *deadline)) {
      std::array<pollfd, 2> polled{pollfd{fd, events, 0}, pollfd{stop_.get(), POLLIN, 0}};
      const int ready = ::poll(polled.data(), polled.size(), kLongestSleepMs);
      if (ready < 0 && errno != EINTR) return false;
      if (ready > 0 && (polled[0].revents & POLLNVAL) != 0) return false;
      if (ready > 0 && polled[0].revents != 0) return !stops_.load();
    }
    return false;
  }

  void serve() {
    prepare_metrics_thread();
    while (await(listener_.get(), POLLIN, std::nullopt) && listener_.is_intact()) {
      const os::FileDescriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (client.is_open()) try_to_talk(client.get());
      else await(-1, 0, os::Clock::now() + kLongestTalk);  // too few descriptors, for example
    }
  }

  void try_to_talk(int client) noexcept {
    try {
      talk(client);
    } catch (const std::exception&) {  // too little memory. The client sees that the connection ends
    }
  }

  /// One client at a time, because an answer takes less than a millisecond. A slow client has to give up its place.
  void talk(int client) {
    const auto deadline = os::Clock::now() + kLongestTalk;
    std::string request;
    std::optional<std::string> answer;
    while (!answer) {
      if (!await(client, POLLIN, deadline)) return;
      std::array<char, kLongestRequest> part{};
      const auto count = ::recv(client, part.data(), part.size() - request.size(), 0);
      if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return;
      if (count > 0) request.append(part.data(), static_cast<std::size_t>(count));
      answer = answer_to(request, text_);
    }
    for (std::string_view rest = *answer; !rest.empty();) {
      const auto count = ::send(client, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (count > 0) rest.remove_prefix(static_cast<std::size_t>(count));
      else if ((errno != EAGAIN && errno != EINTR) || !await(client, POLLOUT, deadline)) return;
    }
  }

  std::string path_;  // of the socket; empty: a port
  ino_t inode_ = 0;
  Text text_;
  std::atomic<bool> stops_{false};
  os::KeptDescriptor stop_;
  os::KeptDescriptor listener_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Exporter> open_exporter(const settings::MetricsTarget& target, Exporter::Text text) {
  settings::MetricsTarget lasting = target;
  // The program may change its current folder.
  if (!target.path.empty()) lasting.path = std::filesystem::absolute(target.path).lexically_normal();
  if (target.kind == settings::MetricsTarget::Kind::file)
    return std::make_unique<FileExporter>(lasting.path, std::move(text));
  return std::make_unique<Server>(lasting, std::move(text));
}

}  // namespace syncrun::detail::master::metrics

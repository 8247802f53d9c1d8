#pragma once

// What workers log while a test does something.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <syncrun/syncrun.hpp>
#include <thread>

#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace models {

/// Standard error of this process is a file while this object exists.
class StandardErrorInFile {
 public:
  StandardErrorInFile() : before_(::dup(STDERR_FILENO)) {
    std::fflush(stderr);
    const int file = ::open(name_.c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    EXPECT_GE(::dup2(file, STDERR_FILENO), 0);
    ::close(file);
  }
  ~StandardErrorInFile() {
    std::fflush(stderr);
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }
  StandardErrorInFile(const StandardErrorInFile&) = delete;
  StandardErrorInFile& operator=(const StandardErrorInFile&) = delete;

  std::string text() const { return text_of(name_); }

 private:
  TemporaryFolder folder_;
  std::string name_ = folder_.at("log");
  int before_;
};

template <class Worker>
void log_text(Worker& worker, std::string_view text) {
  worker.log(sr::LogLevel::warning, text);
}

/// Runs `work`. Returns what the workers have logged until its end. The master prints it later, so each worker logs one more
/// text, and this function waits for all of them.
template <class Worker, class Work>
std::string log_of(sr::Session& session, Work&& work) {
  const StandardErrorInFile file;
  work();
  static int ends = 0;
  const std::string end = "end of part " + std::to_string(++ends) + " of the log";
  session.function(log_text<Worker>)(end);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (;;) {
    std::string text = file.text();
    int found = 0;
    for (auto at = text.find(end); at != std::string::npos; at = text.find(end, at + 1)) ++found;
    if (found >= session.world_size()) return text;
    if (std::chrono::steady_clock::now() > deadline) {
      ADD_FAILURE() << found << " of " << session.world_size() << " workers have logged '" << end << "':\n" << text;
      return text;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace models

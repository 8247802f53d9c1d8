// A program for the tests of the output of workers. Usage: printing_program <what> [argument].
//   lines N         each rank prints N lines to standard output and one to standard error
//   bar             rank 1 prints a progress bar
//   variable NAME   each rank prints a variable
//   fail            rank 1 throws
//   die             rank 1 dies
//   warn            rank 1 logs a line, and prints another one to standard error

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <syncrun/syncrun.hpp>

namespace sr = syncrun;

namespace {

using Name = std::array<char, 64>;

void print_lines(sr::CpuWorker& worker, std::int64_t lines) {
  for (std::int64_t line = 0; line < lines; ++line)
    std::printf("line %lld of %d\n", static_cast<long long>(line), worker.rank());
  std::fflush(stdout);
  std::fprintf(stderr, "error of %d\n", worker.rank());
}

void print_bar(sr::CpuWorker& worker) {
  if (worker.rank() == 1) std::fputs("\r 10%\r100%\n", stdout);
  std::fflush(stdout);
}

void print_variable(sr::CpuWorker& worker, Name name) {
  const char* const value = std::getenv(name.data());
  std::printf("%d %s\n", worker.rank(), value == nullptr ? "unset" : value);
  std::fflush(stdout);
}

void fail(sr::CpuWorker& worker) {
  if (worker.rank() == 1) throw std::runtime_error("the \"reason\"");
}

void die(sr::CpuWorker& worker) {
  if (worker.rank() == 1) ::raise(SIGKILL);
}

void warn(sr::CpuWorker& worker) {
  if (worker.rank() != 1) return;
  worker.log(sr::LogLevel::warning, "a \"log\" line");
  std::fputs("a line\n", stderr);
}

void program(sr::Session& session, int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "lines") session.function(print_lines)(std::int64_t{std::atoi(argv[2])});
  if (what == "bar") session.function(print_bar)();
  if (what == "fail") session.function(fail)();
  if (what == "die") session.function(die)();
  if (what == "warn") session.function(warn)();
  if (what == "variable") {
    Name name{};
    std::strncpy(name.data(), argv[2], name.size() - 1);
    session.function(print_variable)(name);
  }
}

}  // namespace

int main(int argc, char** argv) { return sr::run(argc, argv, program); }

// The driver. It runs programs in processes of its own program, so that a program that crashes or hangs is a failure like
// any other. When a program fails, it looks for the fewest operations with which the program still fails.
//
//   random_programs --seed S [--programs N] [--seconds T] [--program K]
//                   [--gpus N]

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string_view>

#include "tests/random/program.hpp"

extern char** environ;

namespace random_test {
namespace {

using Clock = std::chrono::steady_clock;

#if defined(SYNCRUN_ADDRESS_SANITIZER) || defined(SYNCRUN_THREAD_SANITIZER)
constexpr int kSlower = 6;
#else
constexpr int kSlower = 1;
#endif
constexpr double kReportEvery = 30;  // seconds between lines of progress
/// A program takes some tens of milliseconds.
constexpr std::chrono::seconds kLimitOfProgram{60 * kSlower};
constexpr std::chrono::seconds kLimitOfCall{20 * kSlower};
constexpr int kMostFailures = 10;
constexpr int kMostAttempts = 60;

struct Arguments {
  std::uint64_t seed = 1;
  std::int64_t programs = 1'000'000'000;
  std::int64_t seconds = 3600;
  std::int64_t first = 0;
  std::int64_t program = -1;
  std::vector<int> operations;  // empty: all
  int gpus = 1;
  bool is_child = false;
};

template <class T>
T number_in(std::string_view text, std::string_view option) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  std::fprintf(stderr, "error: %s: expected a number, got '%s'\n", std::string(option).c_str(),
               std::string(text).c_str());
  std::exit(2);
}

Arguments arguments_in(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "--child") {
      arguments.is_child = true;
      continue;
    }
    if (i + 1 == argc) {
      std::fprintf(stderr, "error: %s: no such option, or its value is missing (see main.cpp)\n", argv[i]);
      std::exit(2);
    }
    const std::string_view value = argv[++i];
    if (option == "--seed") arguments.seed = number_in<std::uint64_t>(value, option);
    else if (option == "--programs") arguments.programs = number_in<std::int64_t>(value, option);
    else if (option == "--seconds") arguments.seconds = number_in<std::int64_t>(value, option);
    else if (option == "--first") arguments.first = number_in<std::int64_t>(value, option);
    else if (option == "--program") arguments.program = number_in<std::int64_t>(value, option);
    else if (option == "--gpus") arguments.gpus = number_in<int>(value, option);
    else if (option == "--operations") {
      std::istringstream list{std::string(value)};
      for (std::string one; std::getline(list, one, ',');) arguments.operations.push_back(number_in<int>(one, option));
    } else {
      std::fprintf(stderr, "error: %s: no such option (see main.cpp)\n", argv[i - 1]);
      std::exit(2);
    }
  }
  return arguments;
}

std::uint64_t seed_of(const Arguments& arguments, std::int64_t program) {
  Choices choices(arguments.seed * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(program));
  return static_cast<std::uint64_t>(choices.number(1, std::int64_t{1} << 40));
}

/// The number of operations of a program. It begins with those that its list names.
std::vector<int> operations_of(const Arguments& arguments, std::int64_t program) {
  if (!arguments.operations.empty()) return arguments.operations;
  Choices choices(seed_of(arguments, program) + 17);
  std::vector<int> all(static_cast<std::size_t>(choices.number(10, 60)));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  return all;
}

Options options_of(const Arguments& arguments, std::int64_t program) {
  Choices choices(seed_of(arguments, program / programs_per_session()) + 5);
  Options options;
  options.devices = choices.one_of(device_lists(arguments.gpus));
  options.replaces_workers = choices.chance(50);
  return options;
}

// ---- the child: some programs in one session ----------------------------------------------------------------------

/// Prints `kind number ...` and the lines of the program, for the driver.
void report(const char* kind, std::int64_t number, const std::string& text, const std::vector<std::string>& lines) {
  std::printf("%s %lld %s\n", kind, static_cast<long long>(number), text.c_str());
  for (const auto& line : lines) std::printf("| %s\n", line.c_str());
  std::fflush(stdout);
}

std::string in_one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

int run_child(const Arguments& arguments) {
  const Options options = options_of(arguments, arguments.first);
  sr::SessionOptions session_options{
      .devices = options.devices, .timeout = kLimitOfCall, .max_respawns = 1'000'000, .log_level = sr::LogLevel::error};
  if (options.replaces_workers) session_options.on_worker_lost = sr::OnWorkerLost::respawn;
  sr::Session session(session_options);
  const AllFunctions functions = all_functions_of(session);
  const RanksOfRows ranks_of_rows = ranks_of_rows_in(session);
  const std::int64_t end = arguments.first + arguments.programs;
  for (std::int64_t number = arguments.first; number < end; ++number) {
    report("begin", number, options.devices + (options.replaces_workers ? ", respawn" : ""), {});
    Program program(session, options, functions, ranks_of_rows);
    try {
      program.run(seed_of(arguments, number), operations_of(arguments, number));
      const Counts& counts = program.counts();
      std::printf("done %lld %d %d %d %d\n", static_cast<long long>(number), counts.operations, counts.kills,
                  counts.double_losses, counts.throws);
      std::fflush(stdout);
    } catch (const std::exception& error) {
      report("failed", number, in_one_line(error.what()), program.text());
      std::_Exit(1);
    }
  }
  session.close();
  return 0;
}

// ---- the driver -----------------------------------------------------------------------------------------------------

/// What a child has printed, and how it has ended.
struct Outcome {
  std::int64_t next = 0;  // the program after the last one that has worked
  std::string failure;    // of program `next`; empty: none
  std::string settings;
  std::vector<std::string> lines;
  std::int64_t programs = 0;
  Counts counts;
};

class Child {
 public:
  explicit Child(const std::vector<std::string>& words) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::vector<char*> argv;
    for (const auto& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    const int error = ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    output_ = ends[0];
    if (error != 0) throw std::runtime_error("posix_spawn failed");
  }
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    ::close(output_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// The next line. False at the end of the output, or if none comes in time.
  bool line(std::string& text, bool& is_late) {
    for (;;) {
      if (const auto at = rest_.find('\n'); at != std::string::npos) {
        text = rest_.substr(0, at);
        rest_.erase(0, at + 1);
        return true;
      }
      pollfd poll{.fd = output_, .events = POLLIN, .revents = 0};
      is_late = ::poll(&poll, 1, static_cast<int>(std::chrono::milliseconds(kLimitOfProgram).count())) == 0;
      if (is_late) return false;
      char bytes[4096];
      const ssize_t count = ::read(output_, bytes, sizeof bytes);
      if (count <= 0) return false;
      rest_.append(bytes, static_cast<std::size_t>(count));
    }
  }
  int end() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  std::string rest_;
};

Outcome run_programs(const Arguments& arguments, std::int64_t first, std::int64_t count,
                     const std::vector<int>& operations) {
  std::vector<std::string> words{"random_programs", "--child",
                                 "--seed",          std::to_string(arguments.seed),
                                 "--first",         std::to_string(first),
                                 "--programs",      std::to_string(count),
                                 "--gpus",          std::to_string(arguments.gpus)};
  if (!operations.empty()) {
    std::string list;
    for (const int operation : operations) list += (list.empty() ? "" : ",") + std::to_string(operation);
    words.insert(words.end(), {"--operations", list});
  }
  Outcome outcome;
  outcome.next = first;
  Child child(words);
  bool is_late = false;
  bool has_failed = false;
  for (std::string line; child.line(line, is_late);) {
    std::istringstream in(line);
    std::string kind;
    long long number = 0;
    in >> kind >> number;
    if (kind == "|") {
      outcome.lines.push_back(line.substr(2));
    } else if (kind == "begin") {
      std::getline(in >> std::ws, outcome.settings);
    } else if (kind == "done") {
      Counts counts;
      in >> counts.operations >> counts.kills >> counts.double_losses >> counts.throws;
      outcome.counts.operations += counts.operations;
      outcome.counts.kills += counts.kills;
      outcome.counts.double_losses += counts.double_losses;
      outcome.counts.throws += counts.throws;
      ++outcome.programs;
      outcome.next = number + 1;
    } else if (kind == "failed") {
      std::getline(in >> std::ws, outcome.failure);
      has_failed = true;
    }
  }
  if (is_late) {
    outcome.failure = "no answer for " + std::to_string(kLimitOfProgram.count()) + " s";
    return outcome;
  }
  const int status = child.end();
  if (has_failed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) return outcome;
  outcome.failure = WIFSIGNALED(status) ? std::string("the program was killed by ") + ::strsignal(WTERMSIG(status))
                                        : "the program ended with code " + std::to_string(WEXITSTATUS(status));
  return outcome;
}

/// Leaves out operations as long as the program fails.
std::vector<int> shrink(const Arguments& arguments, std::int64_t program, Outcome& outcome) {
  std::vector<int> operations = operations_of(arguments, program);
  int attempts = 0;
  // A failure that depends on time may need several runs.
  const auto fails = [&](const std::vector<int>& some) {
    for (int i = 0; i < 3 && attempts < kMostAttempts && !some.empty(); ++i) {
      ++attempts;
      Outcome again = run_programs(arguments, program, 1, some);
      if (again.failure.empty()) continue;
      outcome = std::move(again);
      return true;
    }
    return false;
  };
  if (!fails(operations)) {
    outcome.failure += " (but not when it runs alone)";
    return operations;
  }
  for (std::size_t part = (operations.size() + 1) / 2; part >= 1; part = part == 1 ? 0 : (part + 1) / 2) {
    for (std::size_t at = 0; at < operations.size();) {
      std::vector<int> fewer = operations;
      const auto begin = fewer.begin() + static_cast<std::ptrdiff_t>(at);
      fewer.erase(begin, begin + static_cast<std::ptrdiff_t>(std::min(part, operations.size() - at)));
      if (fails(fewer)) operations = fewer;
      else at += part;
    }
  }
  return operations;
}

int run_driver(const Arguments& arguments) {
  if (device_lists(arguments.gpus).empty()) {
    std::printf("random programs: skipped, because there are not %d GPUs\n", arguments.gpus);
    return 77;
  }
  const auto begin = Clock::now();
  const bool is_one = arguments.program >= 0;
  std::int64_t next = is_one ? arguments.program : arguments.first;
  const std::int64_t end = is_one ? next + 1 : next + arguments.programs;
  const int per_session = programs_per_session();
  std::int64_t programs = 0;
  Counts counts;
  int failures = 0;
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  double next_report = kReportEvery;
  while (next < end && failures < kMostFailures && seconds() < static_cast<double>(arguments.seconds)) {
    const std::int64_t count = std::min(end, (next / per_session + 1) * per_session) - next;
    Outcome outcome = run_programs(arguments, next, count, is_one ? arguments.operations : std::vector<int>());
    programs += outcome.programs;
    counts.operations += outcome.counts.operations;
    counts.kills += outcome.counts.kills;
    counts.double_losses += outcome.counts.double_losses;
    counts.throws += outcome.counts.throws;
    next = outcome.next;
    if (seconds() > next_report) {
      std::printf("%lld programs, %d failures, %.0f s\n", static_cast<long long>(programs), failures, seconds());
      std::fflush(stdout);
      next_report = seconds() + kReportEvery;
    }
    if (outcome.failure.empty()) continue;
    ++failures;
    std::printf("FAILED: seed %llu, program %lld (%s): %s\n", static_cast<unsigned long long>(arguments.seed),
                static_cast<long long>(next), outcome.settings.c_str(), outcome.failure.c_str());
    std::fflush(stdout);
    const auto operations =
        is_one && !arguments.operations.empty() ? arguments.operations : shrink(arguments, next, outcome);
    std::string list;
    for (const int operation : operations) list += (list.empty() ? "" : ",") + std::to_string(operation);
    std::printf("  with fewer operations: %s\n", outcome.failure.c_str());
    for (const auto& line : outcome.lines) std::printf("    %s\n", line.c_str());
    std::printf("  again: --seed %llu --program %lld --operations %s\n",
                static_cast<unsigned long long>(arguments.seed), static_cast<long long>(next), list.c_str());
    std::fflush(stdout);
    ++next;
    ++programs;
  }
  std::printf(
      "random programs: seed %llu, %lld programs, %d operations, %d kills (%d ended two workers), %d throws, "
      "%d failures, %.1f s\n",
      static_cast<unsigned long long>(arguments.seed), static_cast<long long>(programs), counts.operations,
      counts.kills, counts.double_losses, counts.throws, failures, seconds());
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace random_test

int main(int argc, char** argv) {
  if (const auto code = syncrun::serve_if_worker(argc, argv)) return *code;
  const auto arguments = random_test::arguments_in(argc, argv);
  return arguments.is_child ? random_test::run_child(arguments) : random_test::run_driver(arguments);
}

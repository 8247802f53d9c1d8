#include "master/wrappers/wrappers.hpp"

#include <sys/stat.h>
#include <wordexp.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "common/os/environment.hpp"
#include "common/os/executable.hpp"
#include "common/protocol/rank_set.hpp"
#include "common/text/errors.hpp"
#include "common/text/joined.hpp"

namespace syncrun::detail::master::wrappers {

namespace {

constexpr const char* kEveryRank = "*";
constexpr const char* kShell = "/bin/sh";

[[noreturn]] void refuse(std::string_view line, const std::string& expected) {
  text::throw_usage("--wrap (SYNCRUN_WRAP): expected " + expected + "; got '" + std::string(line) + "'");
}

/// The first word of the command, as a shell reads it. Throws Error (usage).
std::string program_of(const std::string& command, const std::string& line) {
  wordexp_t words{};
  const int code = ::wordexp(command.c_str(), &words, WRDE_NOCMD);
  const std::string program = code == 0 && words.we_wordc != 0 ? words.we_wordv[0] : "";
  if (code == 0) ::wordfree(&words);
  if (code == WRDE_BADCHAR || code == WRDE_CMDSUB)
    refuse(line, "one command, and quotes around the characters |&;<>(){}$` in it");
  if (code == WRDE_SYNTAX) refuse(line, "a command whose quotes are closed");
  if (program.empty()) refuse(line, "a command after the ':'");
  return program;
}

void require_program(const std::string& command, const std::string& line) {
  const std::string program = program_of(command, line);
  const os::FoundExecutable found = os::find_executable(program);
  if (found.error == 0) return;
  text::throw_usage("--wrap (SYNCRUN_WRAP) '" + line + "': expected a program that can be executed, but " + program +
                    ": " + (found.path.empty() ? "not found in PATH" : std::strerror(found.error)) +
                    ". Install it, or write its full path");
}

// Valgrind cannot map more. When it looks for leaks, it reads all shared memory, and each page that it reads takes memory.
constexpr std::size_t kMostInValgrind = std::size_t{32} << 30U;
constexpr std::size_t kMostInLeakCheck = std::size_t{2} << 30U;
constexpr const char* kValgrindOptions = "VALGRIND_OPTS";

bool is_valgrind(const std::string& command) {
  return std::filesystem::path(program_of(command, command)).filename() == "valgrind";
}

/// Valgrind's variable for options, with one that its command line or the user's own value can change.
std::string valgrind_options() {
  const char* const own = environment::get(kValgrindOptions);
  return std::string("--leak-check=no ") + (own == nullptr ? "" : own);
}

bool checks_leaks(const std::string& command) {
  const std::string options = valgrind_options() + " " + command;
  return options.rfind("--leak-check=no") != options.rfind("--leak-check");
}

/// The path of this program's file. In a wrapper, /proc/self/exe is the wrapper itself.
std::string image_path() {
  std::error_code error;
  std::string path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  struct stat running {};
  struct stat there {};
  if (!error && ::stat("/proc/self/exe", &running) == 0 && ::stat(path.c_str(), &there) == 0 &&
      running.st_ino == there.st_ino && running.st_dev == there.st_dev)
    return path;
  throw Error(ErrorKind::system, "--wrap: a wrapper needs the file of the program, and " + path +
                                     " was removed or replaced while the program ran. Start the program again");
}

}  // namespace

Wrappers Wrappers::read(std::string_view lines, std::string terminal) {
  Wrappers wrappers;
  while (!lines.empty()) {
    const auto end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (line.empty()) continue;
    Wrapper added = read_one(line);
    wrappers.refuse_overlap(added);
    wrappers.all_.push_back(std::move(added));
  }
  wrappers.terminal_ = std::move(terminal);
  return wrappers;
}

Wrappers::Wrapper Wrappers::read_one(std::string_view line) {
  const auto colon = line.find(':');
  const std::string_view ranks = line.substr(0, colon);
  const auto list = ranks == kEveryRank ? text::RankList::all() : text::RankList::parse(ranks);
  if (colon == std::string_view::npos || !list || list->highest().value_or(0) >= protocol::kMaxWorldSize)
    refuse(line, "ranks, such as 0 or 0,2 or 1-3 or *, then ':' and a command, such as '0:valgrind'");
  Wrapper wrapper{std::string(ranks), *list, std::string(line.substr(colon + 1))};
  static_cast<void>(program_of(wrapper.command, wrapper.line()));
  return wrapper;
}

void Wrappers::refuse_overlap(const Wrapper& added) const {
  for (int rank = 0; rank < protocol::kMaxWorldSize; ++rank) {
    const Wrapper* const other = wrapper_of(rank);
    if (other == nullptr || !added.ranks.has(rank)) continue;
    text::throw_usage("--wrap (SYNCRUN_WRAP): expected at most one command for each rank, but rank " +
                      std::to_string(rank) + " has two: '" + other->line() + "' and '" + added.line() + "'");
  }
}

std::string Wrappers::lines() const { return text::joined(all_, "\n", &Wrapper::line); }

void Wrappers::check_programs() const {
  for (const Wrapper& wrapper : all_) require_program(wrapper.command, wrapper.line());
}

void Wrappers::check(int world_size, const protocol::NodePlace& here) const {
  for (const Wrapper& wrapper : all_) {
    const int highest = wrapper.ranks.highest().value_or(0);
    if (highest >= world_size) {
      text::throw_usage("--wrap (SYNCRUN_WRAP) '" + wrapper.line() + "': expected ranks from 0 to " +
                        std::to_string(world_size - 1) + ", since there are " + std::to_string(world_size) +
                        " workers; got rank " + std::to_string(highest));
    }
    bool is_here = false;
    for (int rank = here.first_rank; rank < here.first_rank + here.local_size; ++rank)
      is_here = is_here || wrapper.ranks.has(rank);
    if (is_here) require_program(wrapper.command, wrapper.line());
  }
}

std::optional<std::size_t> Wrappers::most_shared_bytes() const {
  std::optional<std::size_t> most;
  for (const Wrapper& wrapper : all_) {
    if (!is_valgrind(wrapper.command)) continue;
    most = std::min(most.value_or(kMostInValgrind), checks_leaks(wrapper.command) ? kMostInLeakCheck : kMostInValgrind);
  }
  return most;
}

const Wrappers::Wrapper* Wrappers::wrapper_of(int rank) const noexcept {
  const auto found = std::ranges::find_if(all_, [rank](const Wrapper& wrapper) { return wrapper.ranks.has(rank); });
  return found == all_.end() ? nullptr : &*found;
}

const std::string* Wrappers::of(int rank) const noexcept {
  const Wrapper* const wrapper = wrapper_of(rank);
  return wrapper == nullptr ? nullptr : &wrapper->command;
}

void Wrappers::apply(process::SpawnRequest& request, int rank) const {
  const std::string* const command = of(rank);
  if (command == nullptr) return;
  const std::string before = terminal_.empty() ? "" : terminal_ + " ";
  std::vector<std::string> words{"sh", "-c", "exec " + before + *command + R"( "$@")", "sh", image_path()};
  words.insert(words.end(), request.arguments.begin() + 1, request.arguments.end());
  request.program = kShell;
  request.arguments = std::move(words);
  request.environment.emplace_back(environment::kIsWrapped, "1");
  if (is_valgrind(*command)) request.environment.emplace_back(kValgrindOptions, valgrind_options());
}

std::string describe_end(const std::string& wrapper, const std::string& status, bool has_begun, bool has_terminal) {
  std::string text = "its wrapper '" + wrapper + "' " + status;
  if (has_begun) return text;
  text += " before the worker had begun";
  if (!has_terminal && wrapper.starts_with("gdb")) {
    text +=
        ". gdb has no input here: use --wrap-terminal, or let it run by itself with "
        "gdb -batch -ex run -ex 'thread apply all bt' --args";
  }
  return text;
}

}  // namespace syncrun::detail::master::wrappers

#include "master/inspect/stacks.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/os/file_descriptor.hpp"
#include "common/os/wait.hpp"
#include "common/text/errors.hpp"
#include "master/inspect/session_view.hpp"
#include "master/inspect/words.hpp"
#include "master/process/debugger.hpp"
#include "master/process/native_stack.hpp"
#include "master/process/stuck_ranks.hpp"

namespace syncrun::detail::master::inspect {

namespace {

constexpr os::Milliseconds kStacksLimit = std::chrono::seconds(10);
/// The agent of another node takes half a second for the stacks, and the messages to it and back may wait a little.
constexpr os::Milliseconds kNodesLimit = std::chrono::seconds(5);

RankState state_of(const RankView& view) {
  RankState state;
  state.rank = view.rank;
  state.pid = view.pid;
  state.device = view.device;
  state.phase = view.phase;
  state.call = view.call;
  state.tracer = view.pid == 0 ? 0 : process::tracer_of(view.pid);
  return state;
}

/// Holds signals back. If Ctrl-C ended this process just after it has asked the kernel to stop a process of the job, that
/// process would stay stopped. So would all of them after Ctrl-Z.
class SignalsHeldBack {
 public:
  SignalsHeldBack() noexcept {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsHeldBack() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeldBack(const SignalsHeldBack&) = delete;
  SignalsHeldBack& operator=(const SignalsHeldBack&) = delete;

 private:
  sigset_t before_{};
};

std::vector<process::NativeStack> take_stacks(const std::vector<int>& pids) {
  const SignalsHeldBack signals;
  return process::native_stacks(pids, kStacksLimit);
}

/// What the agents of other nodes have answered.
class StacksOfNodes {
 public:
  StacksOfNodes()
      : answers_(text::check_system(::memfd_create("stacks", MFD_CLOEXEC), "cannot make a file for the stacks")) {}

  /// Asks the master. Returns how many nodes have answered in time: 0 if another `syncrun stacks` has asked meanwhile.
  int ask(const SessionView& session) const {
    protocol::StacksRequest& request = session.stacks_request();
    request.answers.store(0);
    request.file.store(protocol::StacksRequest::file_of(::getpid(), answers_.get()));
    const std::uint32_t own = request.wanted.fetch_add(1, std::memory_order_seq_cst) + 1;
    const auto others = static_cast<std::uint32_t>(session.place().nodes - 1);
    const auto end = os::Clock::now() + kNodesLimit;
    while (request.answers.load(std::memory_order_acquire) < others && os::Clock::now() < end)
      std::this_thread::sleep_for(os::Milliseconds(5));
    if (request.wanted.load(std::memory_order_acquire) != own) return 0;
    return static_cast<int>(std::min(request.answers.load(std::memory_order_acquire), others));
  }

  std::string text() const {
    std::string text;
    std::array<char, 4096> bytes{};
    for (off_t at = 0;;) {
      const auto count = ::pread(answers_.get(), bytes.data(), bytes.size(), at);
      if (count <= 0) return text;
      text.append(bytes.data(), static_cast<std::size_t>(count));
      at += count;
    }
  }

 private:
  os::FileDescriptor answers_;
};

/// The report without the empty line at its beginning.
std::string lines_of(const std::string& report) { return report.empty() ? "" : report.substr(1) + "\n"; }

/// What to do about a stack that is missing. Empty if nothing is known.
std::string advice_on(const std::vector<process::NativeStack>& stacks) {
  const auto is_refused = [](const auto& stack) { return stack.problem.find("ptrace") != std::string::npos; };
  if (std::any_of(stacks.begin(), stacks.end(), is_refused)) {
    return "a debugger may hold the process, or the system forbids this: run as root, or set "
           "/proc/sys/kernel/yama/ptrace_scope to 0";
  }
  const std::string advice = process::why_no_stacks().advice;
  return advice.empty() ? advice : advice + ", or use syncrun attach RANK";
}

}  // namespace

int show_stacks(std::span<char* const> words) {
  constexpr std::array<std::string_view, 1> kOptions{"--pid"};
  const Words options = read_words("stacks", words, kOptions);
  if (!options.others.empty())
    text::throw_usage("syncrun stacks: expected options only, got '" + options.others.front() + "'");
  const RunningJob job = choose_job(options.pid);
  SessionView session(job);
  std::vector<RankState> states;
  std::vector<int> pids{job.master};
  for (const RankView& view : session.look()) {
    if (!view.is_here) continue;
    states.push_back(state_of(view));
    pids.push_back(view.pid);
  }
  auto stacks = take_stacks(pids);
  const std::string advice = advice_on(stacks);
  bool is_complete = std::all_of(stacks.begin(), stacks.end(), [](const auto& each) { return each.problem.empty(); });
  std::string text = job.command + " (pid " + std::to_string(job.master) + ")\n";
  for (const std::string& line : stacks.front().lines) text += "    " + line + "\n";
  if (!stacks.front().problem.empty()) text += "    no stack: " + stacks.front().problem + "\n";
  stacks.erase(stacks.begin());
  process::put_stacks(states, std::move(stacks));
  text += lines_of(process::report_of(states));

  if (session.place().has_others() && session.place().node == 0) {
    const StacksOfNodes others;
    const int answered = others.ask(session);
    text += lines_of(others.text());
    const int missing = session.place().nodes - 1 - answered;
    is_complete = is_complete && missing == 0;
    if (missing != 0) text += "  " + std::to_string(missing) + " other nodes have not answered\n";
  }
  const bool is_written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  if (!advice.empty()) std::fprintf(stderr, "syncrun: some stacks are missing: %s\n", advice.c_str());
  return is_written && is_complete ? 0 : 1;
}

}  // namespace syncrun::detail::master::inspect

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/nodes/actions.hpp"

namespace syncrun::test {

namespace {

volatile std::sig_atomic_t asked = 0;

Sum<std::int64_t> sum_of_own_rows(CpuWorker&, Local<const double, 1> rows) {
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  double sum = 0;
  for (const double row : rows) sum += row;
  return {static_cast<std::int64_t>(sum)};
}

/// The losses and weights depend on all steps before.
Sum<double> train_step(CpuWorker& worker, Comm& comm, Local<double, 1> weights, int step) {
  std::vector<double> gradient;
  for (const double weight : weights) gradient.push_back(std::sin(weight + step) / (1 + worker.rank()));
  comm.all_reduce(gradient, Reduction::sum);
  auto slope = gradient.begin();
  for (double& weight : weights) weight -= *slope++ / 8;
  return {weights[0] * (1 + worker.rank())};
}

/// Whether SIGTERM ends a program that this process starts.
bool can_end_a_program() {
  pid_t child = 0;
  std::string program = "sleep";
  std::string seconds = "1000";
  const std::array words{program.data(), seconds.data(), static_cast<char*>(nullptr)};
  if (::posix_spawnp(&child, program.c_str(), nullptr, nullptr, words.data(), ::environ) != 0) return false;
  ::kill(child, SIGTERM);
  int status = 0;
  for (int naps = 0; naps < 500 && ::waitpid(child, &status, WNOHANG) == 0; ++naps)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ::kill(child, SIGKILL);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
}

}  // namespace

/// Trains for so many steps. In the first run, each takes so many seconds. When it is told to stop, it saves, and asks to be
/// started again. The words are the folder of the checkpoint, the steps and the seconds.
int train(Session& session, const Words& words) {
  const int steps = std::stoi(words.at(1));
  const std::chrono::duration<double> pause(restarts() == 0 ? std::stod(words.at(2)) : 0);
  const auto weights = session.shared("weights", std::vector<double>{1, 2, 3});
  int step = 0;
  if (Checkpoint::exists(words.at(0))) {
    const Checkpoint checkpoint(words.at(0));
    checkpoint.load({{"weights", weights}});
    step = checkpoint.value<int>("step");
    say("going on after step " + std::to_string(step));
  }
  const auto f = session.function(train_step);
  for (; step < steps && !stop_requested(); ++step) {
    std::printf("step %d loss %.17g\n", step + 1, f(weights, step).value());
    std::fflush(stdout);
    std::this_thread::sleep_for(pause);
  }
  if (step == steps) return 0;
  save_checkpoint(words.at(0), {{"weights", weights}}, {{"step", step}});
  say("told to stop: saved after step " + std::to_string(step));
  return kRequeueExitCode;
}

void wait_at_birth(const char* file) {
  const char* const node = std::getenv("SYNCRUN_NODE");
  if (std::getenv("RANK") != nullptr || node == nullptr || std::string(node) != "0") {
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) std::raise(signal);
    if (!can_end_a_program()) std::exit(9);
    return;
  }
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

/// Makes calls until the program is told to stop. It then makes five more calls, and saves. With the action "handle-signals", the
/// program has handlers of its own. With "stop-never", it does not end.
bool run_signals(Session& session, const std::string& action, const Words& words) {
  if (action != "stop" && action != "stop-late" && action != "stop-never" && action != "handle-signals") return false;
  constexpr int kRows = 1000;
  auto rows = session.shared<double, 1>("rows");
  rows.scatter(std::vector<double>(kRows, 1));
  const auto f = session.function(sum_of_own_rows);
  if (action == "handle-signals") {
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2})
      std::signal(signal, [](int number) { asked = number; });
  }
  const auto stops = [&] { return action == "handle-signals" ? asked != 0 : stop_requested(); };
  const auto call = [&] { require(f(rows).value() == kRows, "the sum of all ranks"); };
  static_cast<void>(stops());
  for (int calls = 0; !stops(); ++calls) {
    call();
    if (calls == 0) say("it goes on");
  }
  say("told to stop");
  for (int calls = 0; calls < 5; ++calls) call();
  save_checkpoint(words.at(0), {{"rows", rows, Placement::scattered}}, {{"calls", 5}});
  require(Checkpoint(words.at(0)).array<double, 1>("rows").size() == kRows, "the saved rows");
  say("saved");
  while (action == "stop-never") std::this_thread::sleep_for(std::chrono::seconds(1));
  return true;
}

}  // namespace syncrun::test

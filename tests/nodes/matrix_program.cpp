// The program of matrix.py. It brings a session to one phase and stays there until a file exists. So the test can make
// something fail in this phase.
//
//   program PHASE FOLDER
//
// In the folder, the program makes these files: "ready" when the master has reached the phase, "rankN" when rank N is in
// its body, "thrown" with the time and the message when the master gets an exception, and "done" at the end. It stays in
// the phase until the file "go" exists. In the phases start and close, SYNCRUN_FAULT lets a worker wait
// (tests/fault/points/fault_points.hpp).

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <syncrun/syncrun.hpp>
#include <thread>
#include <vector>

namespace {

namespace sr = syncrun;

// Rows of 1 MiB, and a result of 32 MiB from each node. The test makes the network slow, so that they take seconds.
constexpr std::int64_t kRowElements = 1 << 17;
constexpr std::int64_t kRows = 96;
constexpr std::int64_t kResultElements = 1 << 22;
// The arrays of collectives. The nodes exchange them in many blocks.
constexpr std::int64_t kReducedElements = 1 << 20;
constexpr int kHeldRank = 2;

std::filesystem::path folder;  // set at the beginning, in all processes

void mark(const std::string& name, const std::string& text = "") {
  const auto partial = folder / (name + ".partial");
  std::ofstream(partial) << text;
  std::filesystem::rename(partial, folder / name);
}

bool may_go() { return std::filesystem::exists(folder / "go"); }

void await_go() {
  while (!may_go()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

std::string now_ns() { return std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()); }

void nothing(sr::CpuWorker&) {}

/// All ranks stay in the body.
void stay(sr::CpuWorker& worker) {
  mark("rank" + std::to_string(worker.rank()));
  await_go();
}

/// One rank stays in the body. The others have returned.
sr::Sum<std::int64_t> stay_alone(sr::CpuWorker& worker) {
  mark("rank" + std::to_string(worker.rank()));
  if (worker.rank() == kHeldRank) await_go();
  return {1};
}

/// The same with an update. The others wait for the vote of this rank before they commit theirs.
sr::Sum<std::int64_t> update_alone(sr::CpuWorker& worker, sr::Update<sr::op::sum, double, 1> total) {
  total.value()[0] = 1;
  return stay_alone(worker);
}

/// All ranks are in collectives without a pause, with small and large values.
void reduce_on(sr::CpuWorker& worker, sr::Comm& comm) {
  std::vector<double> values(kReducedElements, 1);
  mark("rank" + std::to_string(worker.rank()));
  while (comm.all_reduce(may_go() ? 1.0 : 0.0, sr::Reduction::min) == 0) {
    comm.all_reduce(values, sr::Reduction::max);
  }
}

/// The body of a train step.
sr::Avg<double> slope(sr::CpuWorker&, sr::Scattered<const double, 1> x, sr::Local<double, 1> params,
                      sr::Local<double, 1> gradient) {
  for (std::int64_t i = 0; i < gradient.size(); ++i) gradient[i] = x.rows() == 0 ? 0 : params[i] - x[0];
  return {1};
}

sr::Sum<double> add(sr::CpuWorker&, sr::Scattered<const double, 2> x) {
  return {x.rows() == 0 ? 0 : x(0, 0) * static_cast<double>(x.rows())};
}

sr::Sum<double, 1> large(sr::CpuWorker& worker) {
  mark("rank" + std::to_string(worker.rank()));
  return {std::vector<double>(kResultElements, 1), sr::Shape{kResultElements}};
}

void require(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(std::string("not as expected: ") + what);
}

/// One step after the other.
void train(sr::Session& session) {
  const auto params = session.shared("params", std::vector<double>(kReducedElements), sr::Shape{kReducedElements});
  auto step = sr::train_step<sr::Nesterov>(session, slope, params);
  const auto x = session.data(std::vector<double>(64, 1), sr::Shape{64}, "x");
  mark("ready");
  while (!may_go()) require(step(x, {.learning_rate = 0.1}).value() == 1, "the loss");
}

/// One collective of the master after the other.
void reduce_copies(sr::Session& session) {
  auto x = session.shared("x", std::vector<double>(kReducedElements, 1), sr::Shape{kReducedElements});
  mark("ready");
  while (!may_go()) x.all_reduce(sr::Reduction::max);
  require(x.get(session.world_size() - 1)(0) == 1, "the largest value");
}

void go_through(sr::Session& session, const std::string& phase) {
  const auto f = session.function(nothing, "nothing");
  f();
  if (phase == "idle") {
    mark("ready");
    await_go();
  } else if (phase == "body") {
    mark("ready");
    session.function(stay, "work")();
  } else if (phase == "returned") {
    mark("ready");
    require(session.function(stay_alone, "work")().value() == session.world_size(), "the sum of the ranks");
  } else if (phase == "vote") {
    auto total = session.shared("total", std::vector<double>(1), sr::Shape{1});
    mark("ready");
    require(session.function(update_alone, "work")(total).value() == session.world_size(), "the sum of the ranks");
    require(total.get(kHeldRank)(0) == 1, "the update is committed");
  } else if (phase == "collective") {
    mark("ready");
    session.function(reduce_on, "work")();
  } else if (phase == "update") {
    train(session);
  } else if (phase == "shared") {
    reduce_copies(session);
  } else if (phase == "rows") {
    const auto x = session.data(std::vector<double>(kRows * kRowElements, 1), sr::Shape{kRows, kRowElements}, "x");
    mark("ready");
    require(session.function(add, "work")(x).value() == kRows, "the sum of the rows");
  } else if (phase == "outputs") {
    mark("ready");
    require(session.function(large, "work")().to_vector()[0] == session.world_size(), "the sum of the results");
  } else if (phase == "close") {
    mark("ready");
  }
  if (phase != "close") f();
  session.close();
}

/// Notes the time before the session gives its memory back, which takes the kernel milliseconds.
template <class Work>
auto note_errors(Work&& work) {
  try {
    return work();
  } catch (const sr::Error& error) {
    mark("thrown", now_ns() + " " + error.what());
    throw;
  }
}

int program(int, char** argv) {
  const auto session = note_errors([] { return std::make_unique<sr::Session>(); });
  note_errors([&] { go_through(*session, argv[1]); });
  mark("done");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  folder = argv[2];
  if (const auto code = sr::serve_if_worker(argc, argv)) return *code;
  const auto whole = [](int count, char** values) { return program(count, values); };
  return sr::detail::run_master(argc, argv, sr::detail::program_of(whole));
}

// The failures of docs/failures.md: `failures throw`, `failures segfault`, ...

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <syncrun/syncrun.hpp>
#include <thread>
#include <vector>

namespace sr = syncrun;
using namespace std::chrono_literals;

// [functions]
void throws(sr::CpuWorker& worker) {
  if (worker.rank() == 1) throw std::runtime_error("no value for this row");
}

void segfaults(sr::CpuWorker& worker, sr::Comm& comm) {
  if (worker.rank() == 1) {
    std::fprintf(stderr, "about to read what is not there\n");
    std::raise(SIGSEGV);
  }
  comm.barrier();  // the others wait here
}

void exits(sr::CpuWorker& worker, sr::Comm& comm) {
  if (worker.rank() == 1) std::_Exit(3);
  comm.barrier();
}

void sleeps(sr::CpuWorker& worker, sr::Comm& comm) {
  if (worker.rank() == 1) std::this_thread::sleep_for(1h);
  comm.barrier();
}
// [/functions]

int program(sr::Session& session, int argc, char** argv) {
  const std::string_view how = argc > 1 ? argv[1] : "";
  // [goes_on]
  const auto ones = session.function([]() -> sr::Sum<int> { return 1; });
  if (how == "throw") {
    try {
      session.function(throws)();
    } catch (const sr::Error& error) {
      std::printf("%s\n", error.what());
    }
    std::printf("the session goes on: %d ranks answer\n", ones().value());
    return 0;
  }
  // [/goes_on]
  // [over]
  if (how == "over") {
    try {
      session.function(exits)();
    } catch (const sr::Error& error) {
      const sr::Failure& failure = error.failure();
      std::printf("%s: rank %d on %s, call %s, phase %s, %s\n", std::string(to_string(error.kind())).c_str(),
                  failure.rank, failure.device.c_str(), failure.call.c_str(), failure.phase.c_str(),
                  failure.cause.c_str());
    }
    ones();  // throws: the session is over
  }
  // [/over]
  // [deaths]
  if (how == "segfault") session.function(segfaults)();
  if (how == "exit") session.function(exits)();
  if (how == "hang") session.function(sleeps)({.timeout = 500ms});
  // [/deaths]
  return 0;
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

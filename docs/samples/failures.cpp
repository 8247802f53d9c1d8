// The failures of docs/failures.md: `failures throw`, `failures segfault`, ...

#include <chrono>
#include <csignal>
#include <cstdio>
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
// [/functions]

void sleeps(sr::CpuWorker& worker, sr::Comm& comm) {
  if (worker.rank() == 1) std::this_thread::sleep_for(1h);
  comm.barrier();
}

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
  if (how == "segfault") session.function(segfaults)();
  if (how == "hang") session.function(sleeps)({.timeout = 2s});
  return 0;
}

int main(int argc, char** argv) { return syncrun::run(argc, argv, program); }

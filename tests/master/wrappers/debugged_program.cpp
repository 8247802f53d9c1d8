// A Syncrun program that tests look at while it runs: debugged_program NAME [RANK].

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <syncrun/syncrun.hpp>

namespace {

namespace sr = syncrun;

int chosen_rank = 0;

// Not inlined, and not static: stacks and breakpoints have their names.
extern "C" [[gnu::noinline]] void stop_here() { asm volatile(""); }
extern "C" [[gnu::noinline]] void crash_here() { std::raise(SIGSEGV); }
extern "C" [[gnu::noinline]] void hang_here() {
  for (;;) ::usleep(1000);
}

sr::Sum<std::int64_t> count_rows(sr::CpuWorker&, sr::Scattered<const std::int8_t, 1> rows) {
  stop_here();
  return rows.rows();
}

/// Says which variable a wrapper has set.
void say_variable(sr::CpuWorker& worker, sr::Comm& comm) {
  const char* const value = std::getenv("WRAPPED");
  std::printf("rank %d is %s\n", worker.rank(), value == nullptr ? "not wrapped" : value);
  std::fflush(stdout);
  comm.barrier();
}

void crash(sr::CpuWorker& worker, sr::Comm& comm) {
  if (worker.rank() == chosen_rank) crash_here();
  comm.barrier();
}

void hang(sr::CpuWorker& worker, sr::Comm& comm) {
  if (worker.rank() == chosen_rank) {
    std::puts("hangs");
    std::fflush(stdout);
    hang_here();
  }
  comm.barrier();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (argc > 2) chosen_rank = std::atoi(argv[2]);
  return sr::run(argc, argv, [&](sr::Session& session) {
    if (name == "say") session.function(say_variable)();
    if (name == "crash") session.function(crash)();
    if (name == "hang") session.function(hang)();
    if (name != "count" && name != "loop") return;
    const auto data = session.data<std::int8_t, 1>({1000});
    auto count = session.function(count_rows);
    std::printf("%lld rows\n", static_cast<long long>(count(data).value()));
    std::fflush(stdout);
    while (name == "loop") count(data).value();
  });
}

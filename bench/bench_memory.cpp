// Measures the memory of a whole job that broadcasts 1 GiB of Data to every worker: the sum of the proportional set
// sizes of its processes, after every worker has read every byte.
//
//   bench_memory --workers 8

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <numeric>
#include <string>

#include "bench/comparators/measure.hpp"
#include "syncrun/syncrun.hpp"

namespace sr = syncrun;

namespace {

constexpr std::int64_t kBytes = std::int64_t{1} << 30;

sr::Sum<std::int64_t> add_up(sr::Broadcast<const std::int64_t, 1> values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

std::size_t pss_bytes(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/smaps_rollup");
  for (std::string word; file >> word;) {
    std::size_t kib = 0;
    if (word == "Pss:" && file >> kib) return kib * 1024;
  }
  throw std::runtime_error("no smaps_rollup of process " + std::to_string(pid));
}

int measure(std::size_t workers) {
  sr::Session session({.processes = std::to_string(workers)});
  auto values = session.data<std::int64_t, 1>({kBytes / 8});
  {
    const auto guard = values.write();
    std::fill(guard.begin(), guard.end(), 1);
  }
  const auto sum = session.function(add_up, "add_up");
  if (sum(values) != static_cast<std::int64_t>(workers) * (kBytes / 8)) throw std::runtime_error("wrong sum");
  std::size_t bytes = pss_bytes(::getpid());
  for (const int pid : session.worker_pids()) bytes += pss_bytes(pid);
  std::printf(
      "{\"name\": \"memory\", \"impl\": \"syncrun\", \"workers\": %zu, \"data_bytes\": %lld, \"pss_bytes\": %zu}\n",
      workers, static_cast<long long>(kBytes), bytes);
  session.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = sr::serve_if_worker(argc, argv)) return *code;
  return measure(argc == 3 && std::strcmp(argv[1], "--workers") == 0 ? std::stoul(argv[2]) : 8);
}

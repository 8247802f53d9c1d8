// From SIGKILL of a worker to the release of its peers and of the master, with 1 GiB resident in the worker. The victim
// is in the middle of a call in which its peers wait for it in a collective.
//
//   bench_kill --workers 2 --rounds 100

#include <signal.h>

#include <cstring>
#include <string>
#include <thread>

#include "bench/comparators/measure.hpp"
#include "syncrun/syncrun.hpp"

namespace sr = syncrun;

namespace {

constexpr std::size_t kResidentBytes = std::size_t{1} << 30;

/// Rank 0 makes a gigabyte resident and then stays away from the barrier that the others wait in.
void stay_away(sr::CpuWorker& worker, sr::Comm& comm, sr::Broadcast<const std::int64_t, 1> flag) {
  if (worker.rank() != 0) return comm.barrier();
  auto* memory = static_cast<char*>(std::malloc(kResidentBytes));
  std::memset(memory, 1, kResidentBytes);
  // The master learns that the memory is there by this rank's own hand: the flag is in shared memory.
  *const_cast<volatile std::int64_t*>(flag.data()) = 1;
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

struct Release {
  double master_us;
  double peers_us;
  double error_us;
};

Release kill_once(std::size_t workers) {
  sr::Session session({.processes = std::to_string(workers)});
  const auto function = session.function(stay_away, "stay_away");
  const auto flag = session.data<std::int64_t, 1>({1});
  auto future = function.async(flag);
  while (*const_cast<const volatile std::int64_t*>(flag.span().data()) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the peers go to sleep in their barrier
  const int victim = session.worker_pids()[0];

  // From another thread, while this one waits for the call: the clock starts right before the signal.
  std::chrono::steady_clock::time_point killed;
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    killed = std::chrono::steady_clock::now();
    ::kill(victim, SIGKILL);
  });
  Release release{};
  try {
    future.get();
    throw std::runtime_error("the call went through although a worker was killed");
  } catch (const sr::Error& error) {
    killer.join();
    const auto us = [&](auto when) { return std::chrono::duration<double, std::micro>(when - killed).count(); };
    release.error_us = us(std::chrono::steady_clock::now());
    release.master_us = us(error.failure().master_released);
    for (std::size_t rank = 1; rank < workers; ++rank) {
      const auto when = error.failure().peers_released.at(rank);
      if (when.time_since_epoch().count() == 0) throw std::runtime_error("a peer was never released");
      release.peers_us = std::max(release.peers_us, us(when));
    }
  }
  return release;
}

void print(const char* name, std::size_t workers, std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  std::printf(
      "{\"name\": \"%s\", \"impl\": \"syncrun\", \"workers\": %zu, \"median_us\": %.1f, \"p99_us\": %.1f, "
      "\"max_us\": %.1f, \"samples\": %zu}\n",
      name, workers, comparators::percentile(samples, 50), comparators::percentile(samples, 99), samples.back(),
      samples.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = sr::serve_if_worker(argc, argv)) return *code;
  std::size_t workers = 2;
  int rounds = 100;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--workers") == 0) workers = std::stoul(argv[i + 1]);
    if (std::strcmp(argv[i], "--rounds") == 0) rounds = std::stoi(argv[i + 1]);
  }
  std::vector<double> master;
  std::vector<double> peers;
  std::vector<double> error;
  for (int round = 0; round < rounds; ++round) {
    const Release release = kill_once(workers);
    master.push_back(release.master_us);
    peers.push_back(release.peers_us);
    error.push_back(release.error_us);
  }
  print("kill_master", workers, master);
  print("kill_peers", workers, peers);
  print("kill_exception", workers, error);
  return 0;
}

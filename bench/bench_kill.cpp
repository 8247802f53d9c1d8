// Measures the time from SIGKILL of a worker until its peers stop waiting for it, until the master does, and until the
// master throws the exception with the cause. The worker has memory resident (1 GiB by default). It is killed during a
// call, while its peers wait for it in a collective.
//
//   bench_kill --workers 2 --rounds 100
//   bench_kill --workers 2 --rounds 200 --resident-gib 8 --progress 10    # prints its progress every 10 rounds
//
// In each round, a new worker writes to all of the memory. This takes two to four seconds for 8 GiB.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <thread>

#include "bench/comparators/measure.hpp"
#include "syncrun/syncrun.hpp"

namespace sr = syncrun;

namespace {

constexpr std::size_t kGibibyte = std::size_t{1} << 30;

struct Options {
  std::size_t workers = 2;
  std::size_t resident_gib = 1;
  int rounds = 100;
  int progress = 0;  // a line is printed after this many rounds; 0 if never
};

std::size_t resident_bytes_of_process() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  std::size_t resident_pages = 0;
  file >> pages >> resident_pages;
  return resident_pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

/// Rank 0 makes its memory resident, and then does not enter the barrier in which the other ranks wait.
void stay_away(sr::CpuWorker& worker, sr::Comm& comm, sr::Broadcast<const std::int64_t, 1> flag,
               std::int64_t resident_bytes) {
  if (worker.rank() != 0) return comm.barrier();
  const auto bytes = static_cast<std::size_t>(resident_bytes);
  auto* memory = static_cast<char*>(std::malloc(bytes));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 1, bytes);
  __asm__ __volatile__("" : : "r"(memory) : "memory");  // otherwise the compiler removes the memset: nothing reads it
  if (resident_bytes_of_process() < bytes) throw std::runtime_error("the memory is not resident");
  // The flag is in shared memory. It tells the master that the memory is resident.
  *const_cast<volatile std::int64_t*>(flag.data()) = 1;
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

struct Release {
  double master_us;
  double peers_us;
  double error_us;
};

Release kill_once(const Options& options) {
  const std::size_t workers = options.workers;
  sr::Session session({.processes = std::to_string(workers)});
  const auto function = session.function(stay_away, "stay_away");
  const auto flag = session.data<std::int64_t, 1>({1});
  auto future = function.async(flag, static_cast<std::int64_t>(options.resident_gib * kGibibyte));
  while (*const_cast<const volatile std::int64_t*>(flag.span().data()) == 0) {
    if (future.is_ready()) future.get();  // the call has failed, so this throws
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the peers go to sleep in their barrier
  const int victim = session.worker_pids()[0];

  // Another thread sends the signal while this one waits for the call. The clock starts right before the signal.
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

class Samples {
 public:
  explicit Samples(const char* name) : name_(name) {}
  void add(double us) { samples_.push_back(us); }

  void print(const Options& options) {
    std::sort(samples_.begin(), samples_.end());
    std::printf(
        "{\"name\": \"%s\", \"impl\": \"syncrun\", \"workers\": %zu, \"resident_gib\": %zu, \"median_us\": %.1f, "
        "\"p99_us\": %.1f, \"max_us\": %.1f, \"samples\": %zu}\n",
        name_, options.workers, options.resident_gib, comparators::percentile(samples_, 50),
        comparators::percentile(samples_, 99), samples_.back(), samples_.size());
  }
  /// The median, p99 and maximum so far, in ms, for example "kill_master 0.31 0.84 0.90".
  std::string so_far() const {
    auto sorted = samples_;
    std::sort(sorted.begin(), sorted.end());
    std::array<char, 96> text{};
    std::snprintf(text.data(), text.size(), "%s %.2f %.2f %.2f", name_, comparators::percentile(sorted, 50) / 1000,
                  comparators::percentile(sorted, 99) / 1000, sorted.back() / 1000);
    return text.data();
  }

 private:
  const char* name_;
  std::vector<double> samples_;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--workers") options.workers = std::stoul(argv[i + 1]);
    if (name == "--rounds") options.rounds = std::stoi(argv[i + 1]);
    if (name == "--resident-gib") options.resident_gib = std::stoul(argv[i + 1]);
    if (name == "--progress") options.progress = std::stoi(argv[i + 1]);
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = sr::serve_if_worker(argc, argv)) return *code;
  const Options options = parse(argc, argv);
  Samples master("kill_master");
  Samples peers("kill_peers");
  Samples error("kill_exception");
  for (int round = 1; round <= options.rounds; ++round) {
    const Release release = kill_once(options);
    master.add(release.master_us);
    peers.add(release.peers_us);
    error.add(release.error_us);
    if (options.progress == 0 || round % options.progress != 0) continue;
    std::fprintf(stderr, "%d of %d rounds; median, p99, max in ms: %s; %s; %s\n", round, options.rounds,
                 master.so_far().c_str(), peers.so_far().c_str(), error.so_far().c_str());
  }
  master.print(options);
  peers.print(options);
  error.print(options);
  return 0;
}

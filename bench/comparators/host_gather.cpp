// Measures how a carefully written program without Syncrun moves shuffled rows to its GPUs. One process per GPU gathers
// its rows into a pinned buffer with its share of the cores, and then makes one copy. Each process makes its own random
// indices, and this time is not measured. In Syncrun, the master passes one list for all workers, and this time is
// measured.
//
//   host_gather --workers 8 --seconds 1

#include <barrier>
#include <random>
#include <span>
#include <thread>

#include "bench/comparators/gpu_ranks.hpp"
#include "bench/comparators/gpu_report.hpp"

namespace {

using namespace comparators;

/// The rows of the whole data set, in private memory with huge pages. The processes inherit it without a copy. Random
/// access is faster than in shared memory with small pages.
class Pool {
 public:
  Pool(std::size_t row_bytes, std::size_t rows) : row_bytes_(row_bytes), rows_(rows) {
    void* const memory = ::mmap(nullptr, row_bytes * rows, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap of the rows failed");
    rows_memory_ = static_cast<std::byte*>(memory);
    static_cast<void>(::madvise(memory, row_bytes * rows, MADV_HUGEPAGE));  // if there are none: small pages
    // All cores fill the memory, so that the pages are spread over all memory controllers.
    std::vector<std::jthread> threads;
    const std::size_t parts = std::max(1U, std::thread::hardware_concurrency());
    for (std::size_t part = 0; part < parts; ++part) {
      threads.emplace_back([this, part, parts] {
        const std::size_t end = row_bytes_ * rows_ * (part + 1) / parts;
        for (std::size_t i = row_bytes_ * rows_ * part / parts; i < end; ++i) rows_memory_[i] = std::byte(i * 31 >> 3U);
      });
    }
  }
  ~Pool() { ::munmap(rows_memory_, row_bytes_ * rows_); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  std::size_t row_bytes() const noexcept { return row_bytes_; }
  std::size_t rows() const noexcept { return rows_; }
  const std::byte* row(std::int64_t index) const noexcept {
    return rows_memory_ + row_bytes_ * static_cast<std::size_t>(index);
  }

 private:
  std::size_t row_bytes_;
  std::size_t rows_;
  std::byte* rows_memory_ = nullptr;
};

/// Threads that gather rows together. The caller is one of them. Between gathers they wait in a std::barrier, so that
/// they do not give up their cores for long.
class Gatherers {
 public:
  Gatherers(const Pool& pool, std::byte* to, std::size_t threads)
      : pool_(pool), to_(to), threads_(threads), meet_(static_cast<std::ptrdiff_t>(threads)) {
    for (std::size_t part = 1; part < threads; ++part) {
      helpers_.emplace_back([this, part] {
        for (;;) {
          meet_.arrive_and_wait();
          if (is_over_) return;
          gather_part(part);
          meet_.arrive_and_wait();
        }
      });
    }
  }
  ~Gatherers() {
    is_over_ = true;
    meet_.arrive_and_wait();
  }
  Gatherers(const Gatherers&) = delete;
  Gatherers& operator=(const Gatherers&) = delete;

  void gather(std::span<const std::int64_t> indices) {
    indices_ = indices;
    meet_.arrive_and_wait();
    gather_part(0);
    meet_.arrive_and_wait();
  }

 private:
  void gather_part(std::size_t part) const {
    const std::size_t end = indices_.size() * (part + 1) / threads_;
    for (std::size_t i = indices_.size() * part / threads_; i < end; ++i) {
      std::memcpy(to_ + i * pool_.row_bytes(), pool_.row(indices_[i]), pool_.row_bytes());
    }
  }

  const Pool& pool_;
  std::byte* to_;
  std::size_t threads_;
  std::span<const std::int64_t> indices_;  // the caller writes it before meet_, the others read it after meet_
  bool is_over_ = false;                   // written and read like indices_
  std::barrier<> meet_;
  std::vector<std::jthread> helpers_;
};

class Shuffle {
 public:
  Shuffle(std::size_t pool_rows, std::size_t take, int seed)
      : order_(pool_rows), take_(take), random_(static_cast<std::uint64_t>(seed)) {
    std::iota(order_.begin(), order_.end(), 0);
  }
  /// Returns new random indices. Each row occurs at most once.
  std::span<const std::int64_t> next() {
    for (std::size_t i = 0; i < take_; ++i) {
      std::swap(order_[i], order_[i + random_() % (order_.size() - i)]);
    }
    return {order_.data(), take_};
  }

 private:
  std::vector<std::int64_t> order_;
  std::size_t take_;
  std::mt19937_64 random_;
};

void measure(Peers& peers, double seconds, const Pool& pool) {
  constexpr int kWarm = 3;
  const std::size_t rows = kShuffledBytes / pool.row_bytes();
  const std::size_t bytes = rows * pool.row_bytes();
  const GpuStream stream;
  const GpuBuffer staging(Place::pinned_host, bytes);
  const GpuBuffer to(Place::device, bytes);
  const std::size_t threads =
      std::max<std::size_t>(1, std::thread::hardware_concurrency() / static_cast<std::size_t>(peers.size()));
  Gatherers gatherers(pool, staging.as<std::byte>(), threads);
  Shuffle shuffle(pool.rows(), rows, peers.rank());

  const auto once_us = [&] {
    const auto indices = shuffle.next();
    peers.barrier();
    const auto start = Clock::now();
    gatherers.gather(indices);
    check_cuda(cudaMemcpyAsync(to.as<void>(), staging.as<void>(), bytes, cudaMemcpyHostToDevice, stream.get()));
    check_cuda(cudaStreamSynchronize(stream.get()));
    peers.barrier();
    return microseconds_since(start);
  };
  double warm_us = 0;
  for (int i = 0; i < kWarm; ++i) warm_us = once_us();
  const long count = std::min(kMaxShuffledIterations, iterations_for(seconds, peers.max(warm_us)));
  std::vector<double> samples(static_cast<std::size_t>(count));
  for (auto& sample : samples) sample = once_us();
  if (peers.rank() != 0) return;
  print_gpu_line({"gpu_shuffle", "host_gather", peers.size(), shuffled_text(pool.row_bytes()),
                  bytes * static_cast<std::size_t>(peers.size())},
                 std::move(samples));
}

}  // namespace

int main(int argc, char** argv) {
  return report_errors([&] {
    const Options options = parse_options(argc, argv);
    for (const std::size_t row_bytes : kShuffledRowBytes) {
      const Pool pool(row_bytes, kShuffledBytes / row_bytes * options.workers * kShuffledPoolFactor);
      const int code =
          run_on_gpus(static_cast<int>(options.workers), [&](Peers& peers) { measure(peers, options.seconds, pool); });
      if (code != 0) return code;
    }
    return 0;
  });
}

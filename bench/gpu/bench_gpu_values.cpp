// Measures Values on two GPUs:
// - a chain of 1,000 calls that alternate between the GPUs. Each reads the last result (8 bytes). Time per call.
// - moves: of one value, and of ten values in a row. Each destination already has memory, as in a training loop.
// - two matrix products, one on each GPU
// - matrix products on both GPUs, with and without a move of 64 MiB between them
//
//   syncrun -n 2 bench_gpu_values --seconds 1

#include <cuda_runtime_api.h>

#include <array>
#include <stdexcept>
#include <vector>

#include "bench/comparators/gpu_values.hpp"
#include "syncrun/syncrun.hpp"

namespace {

namespace sr = syncrun;
using namespace comparators;

/// x + 1, which stays on the device.
sr::Keep<double, 1> plus_one(sr::CudaWorker& worker, sr::Local<const double, 1> x) {
  sr::Keep<double, 1> y(worker, x.shape());
  add_one(x.data(), y.data(), worker.stream());
  return y;
}

/// Counts as a write, so copies on other devices become invalid.
void touch(sr::CudaWorker& worker, sr::Local<float, 1> x) {
  check_cuda(cudaMemsetAsync(x.data(), 1, sizeof(float), worker.stream()));
}

struct Matrices {
  Product product;
  void run(sr::CudaWorker& worker) const { product.run(worker.cublas()); }
};

class Values {
 public:
  Values(sr::Session& session, double seconds)
      : session_(session), seconds_(seconds), first_(session.device(0)), second_(session.device(1)) {}

  void measure_chain() {
    const auto f = session_.function(plus_one);
    const std::array on{f.on(first_), f.on(second_)};
    const auto once = [&] {
      auto x = session_.value(std::vector<double>{0}, sr::Shape{1}, first_);
      const auto start = Clock::now();
      for (std::size_t i = 0; i < kChainCalls; ++i) x = on[(i + 1) % 2](x);
      if (x.get()[0] != kChainCalls) throw std::runtime_error("the chain has a wrong result");
      return microseconds_since(start) / kChainCalls;
    };
    once();
    std::vector<double> samples(20);
    for (auto& sample : samples) sample = once();
    print_gpu_line({"gpu_values", "syncrun", 2, kChain}, std::move(samples));
  }

  void measure_moves(std::size_t bytes) {
    const auto write = session_.function(touch).on(first_);
    const auto count = static_cast<std::int64_t>(bytes / sizeof(float));
    std::vector<sr::Value<float, 1>> values;
    const std::vector<float> filled(bytes / sizeof(float), 1.5F);
    for (int i = 0; i < kMovesInARow; ++i) values.push_back(session_.value(filled, sr::Shape{count}, first_));
    const auto moves = [&](std::size_t number) {
      for (std::size_t i = 0; i < number; ++i) write(values[i]);
      session_.wait();
      const auto start = Clock::now();
      for (std::size_t i = 0; i < number; ++i) values[i].to(second_);
      session_.synchronize(second_);
      return microseconds_since(start);
    };
    print_gpu_line({"gpu_values", "syncrun", 2, one_move_of(bytes), bytes},
                   samples_of(seconds_, [&] { return moves(1); }));
    print_gpu_line({"gpu_values", "syncrun", 2, moves_of(bytes), bytes * kMovesInARow},
                   samples_of(seconds_, [&] { return moves(kMovesInARow); }));
  }

  void measure_products() {
    const auto matrices = session_.replicate<Matrices>();
    const auto product = session_.function(&Matrices::run, matrices);
    const std::array on{product.on(first_), product.on(second_)};
    const auto once = [&] {
      const auto start = Clock::now();
      for (const auto& f : on) f();
      session_.wait();
      return microseconds_since(start);
    };
    print_gpu_line({"gpu_values", "syncrun", 2, kTwoProducts}, samples_of(seconds_, once));

    constexpr std::size_t kBytes = std::size_t{64} << 20U;
    const auto write = session_.function(touch).on(first_);
    const auto x = session_.value(std::vector<float>(kBytes / sizeof(float), 1.5F),
                                  sr::Shape{static_cast<std::int64_t>(kBytes / sizeof(float))}, first_);
    enum class Moves : std::uint8_t { none, one };
    const auto products = [&](Moves moves) {
      write(x);
      session_.wait();
      const auto start = Clock::now();
      for (const auto& f : on) f();
      if (moves == Moves::one) x.to(second_);
      for (const auto& f : on) f();
      session_.wait();
      return microseconds_since(start);
    };
    for (int i = 0; i < 3; ++i) products(Moves::one);
    std::vector<double> with(static_cast<std::size_t>(iterations_for(seconds_, products(Moves::none))));
    std::vector<double> without(with.size());
    for (std::size_t i = 0; i < with.size(); ++i) {  // side by side
      with[i] = products(Moves::one);
      without[i] = products(Moves::none);
    }
    constexpr const char* kWhat = "two products on each GPU, during a move of 64 MiB";
    print_gpu_line({"gpu_values", "syncrun", 2, kWhat}, std::move(with));
    print_gpu_line({"gpu_values", "without_move", 2, kWhat}, std::move(without));
  }

 private:
  sr::Session& session_;
  double seconds_;
  sr::Device first_;
  sr::Device second_;
};

int measure(sr::Session& session, int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  if (session.world_size() != 2) throw std::invalid_argument("requires two GPUs");
  Values values(session, options.seconds);
  values.measure_chain();
  values.measure_products();
  for (const std::size_t bytes : kMoveBytes) values.measure_moves(bytes);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return syncrun::run(argc, argv, measure); }

// Micro-benchmarks of code that calls use often: reductions, allocation in shared memory, and ringing a doorbell.

#include <benchmark/benchmark.h>

#include <array>
#include <vector>

#include "common/arrays/reduce.hpp"
#include "common/os/segment.hpp"
#include "common/os/shared_heap.hpp"
#include "common/os/wait.hpp"

namespace {

using namespace syncrun;
using namespace syncrun::detail;

void reduce_floats(benchmark::State& state) {
  const auto elements = static_cast<std::size_t>(state.range(0));
  const auto ranks = static_cast<std::size_t>(state.range(1));
  std::vector<std::vector<float>> arrays(ranks, std::vector<float>(elements, 0.0F));
  std::vector<const void*> sources;
  std::vector<void*> destinations;
  for (auto& array : arrays) {
    sources.push_back(array.data());
    destinations.push_back(array.data());
  }
  for (auto _ : state) {
    arrays::reduce_elements(DType::float32, Reduction::sum, destinations, sources, {}, elements);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * elements * ranks * 2 * sizeof(float)));
}
BENCHMARK(reduce_floats)->ArgsProduct({{256, 4096, 1 << 16, 1 << 20}, {2, 4, 8}});

void allocate_and_free(benchmark::State& state) {
  const os::Segment segment = os::Segment::create(std::size_t{1} << 32U);
  os::SharedHeap heap(segment, 0, segment.bytes());
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    const auto offset = heap.allocate(bytes, os::SharedHeap::Contents::any, "a benchmark");
    heap.free(offset, os::SharedHeap::Giveback::later);
  }
}
BENCHMARK(allocate_and_free)->Arg(512)->Arg(1 << 16)->Arg(1 << 20);

void ring_with_nobody_asleep(benchmark::State& state) {
  os::Doorbell bell{};
  for (auto _ : state) bell.ring();
}
BENCHMARK(ring_with_nobody_asleep);

}  // namespace

BENCHMARK_MAIN();

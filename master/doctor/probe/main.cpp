// syncrun-probe: measures what a session can do here, and prints one line per figure: "figure NAME VALUE". The times are in
// seconds and the rates in bytes or operations per second. `syncrun doctor` runs it, and judges the figures.
//
//   syncrun -n 2 syncrun-probe START_NS LARGE_BYTES
//
// START_NS is when the command was started, by CLOCK_MONOTONIC. LARGE_BYTES is the size of the larger all_reduce, or 0.

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <syncrun/syncrun.hpp>
#include "master/doctor/probe/cuda_calls.hpp"

namespace syncrun::detail::master::doctor::probe {
namespace {

namespace sr = syncrun;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kCopiedBytes = 64 << 20;
constexpr int kBlasSize = 768;
constexpr int kCublasSize = 4096;

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// The median of some times, after the first ones.
double median_seconds(int first, int count, const std::function<void()>& work) {
  for (int i = 0; i < first; ++i) work();
  std::vector<double> times;
  for (int i = 0; i < count; ++i) times.push_back(seconds_of(work));
  return median_of(std::move(times));
}

void print_figure(const std::string& name, double value) {
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size() - 1, value);
  *end.ptr = '\0';
  std::printf("figure %s %s\n", name.c_str(), text.data());
  std::fflush(stdout);
}

// ---- memory and BLAS of CPU workers -----------------------------------------------------------------------------

double copy_rate() {
  const std::vector<char> from(kCopiedBytes, 1);
  std::vector<char> to(kCopiedBytes);
  const double seconds = median_seconds(1, 5, [&] { std::memcpy(to.data(), from.data(), from.size()); });
  return to.back() == 1 ? static_cast<double>(kCopiedBytes) / seconds : 0;
}

using Sgemm = void(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*,
                   const float*, const int*, const float*, float*, const int*);

/// The BLAS that programs find here. Debian's libblas.so.3 is a link to the one that the administrator has chosen.
Sgemm* find_blas() {
  for (const char* name : {"libblas.so.3", "libopenblas.so.0", "libmkl_rt.so.2", "libblis.so.4"}) {
    if (void* const library = ::dlopen(name, RTLD_NOW)) return reinterpret_cast<Sgemm*>(::dlsym(library, "sgemm_"));
  }
  return nullptr;
}

double product_rate() {
  Sgemm* const multiply = find_blas();
  if (multiply == nullptr) return 0;
  const int n = kBlasSize;
  const float one = 1;
  const float zero = 0;
  const std::vector<float> a(static_cast<std::size_t>(n) * n, 1.0F);
  std::vector<float> c(a.size());
  const double seconds = median_seconds(
      1, 3, [&] { multiply("N", "N", &n, &n, &n, &one, a.data(), &n, a.data(), &n, &zero, c.data(), &n); });
  return c.back() == static_cast<float>(n) ? 2.0 * n * n * n / seconds : 0;
}

// ---- bodies -----------------------------------------------------------------------------------------------------

void nothing_on_cpu(sr::CpuWorker& /*worker*/) {}
void nothing_on_gpu(sr::CudaWorker& /*worker*/) {}

/// The sum over the ranks of a rate that they measure at the same time.
sr::Sum<double> copy_together(sr::CpuWorker& /*worker*/, sr::Comm& comm) {
  comm.barrier();
  return copy_rate();
}
sr::Sum<double> multiply_together(sr::CpuWorker& /*worker*/, sr::Comm& comm) {
  comm.barrier();
  return product_rate();
}

sr::Sum<double> copy_to_gpu(sr::CudaWorker& worker, sr::Comm& comm) {
  const CudaCalls cuda;
  void* pinned = nullptr;
  check_cuda(cuda.malloc_host(&pinned, kCopiedBytes), "cudaMallocHost");
  const auto on_gpu = worker.scratch<float>(kCopiedBytes / sizeof(float));
  constexpr int kHostToDevice = 1;
  comm.barrier();
  const double seconds = median_seconds(2, 10, [&] {
    check_cuda(cuda.copy_async(on_gpu.data(), pinned, kCopiedBytes, kHostToDevice, worker.stream()), "cudaMemcpyAsync");
    check_cuda(cuda.synchronize(worker.stream()), "cudaStreamSynchronize");
  });
  check_cuda(cuda.free_host(pinned), "cudaFreeHost");
  return static_cast<double>(kCopiedBytes) / seconds;
}

/// What the memory of the GPUs reads and writes per second.
sr::Sum<double> copy_on_gpu(sr::CudaWorker& worker, sr::Comm& comm) {
  const CudaCalls cuda;
  constexpr std::int64_t kBytes = 256 << 20;  // more than the caches of a GPU
  constexpr std::int64_t kElements = kBytes / sizeof(float);
  float* const from = worker.scratch<float>(2 * kElements).data();
  constexpr int kDeviceToDevice = 3;
  comm.barrier();
  const double seconds = median_seconds(2, 5, [&] {
    check_cuda(cuda.copy_async(from + kElements, from, kBytes, kDeviceToDevice, worker.stream()), "cudaMemcpyAsync");
    check_cuda(cuda.synchronize(worker.stream()), "cudaStreamSynchronize");
  });
  return 2.0 * kBytes / seconds;
}

sr::Sum<double> multiply_on_gpu(sr::CudaWorker& worker, sr::Comm& comm) {
  const CudaCalls cuda;
  const int n = kCublasSize;
  const std::int64_t elements = std::int64_t{n} * n;
  float* const a = worker.scratch<float>(2 * elements).data();
  const float one = 1;
  const float zero = 0;
  cublasContext* const cublas = worker.cublas();
  comm.barrier();
  const double seconds = median_seconds(2, 5, [&] {
    check_cuda(cuda.multiply(cublas, 0, 0, n, n, n, &one, a, n, a, n, &zero, a + elements, n), "cublasSgemm");
    check_cuda(cuda.synchronize(worker.stream()), "cudaStreamSynchronize");
  });
  return 2.0 * n * n * n / seconds;
}

sr::Max<double> all_reduce_on_cpu(sr::CpuWorker& /*worker*/, sr::Comm& comm, sr::Local<float, 1> values, int count) {
  comm.barrier();
  return median_seconds(1, count, [&] { comm.all_reduce(values, sr::Reduction::max); });
}
sr::Max<double> all_reduce_on_gpu(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, int count) {
  const CudaCalls cuda;
  comm.barrier();
  return median_seconds(2, count, [&] {
    comm.all_reduce(values, sr::Reduction::max);
    check_cuda(cuda.synchronize(worker.stream()), "cudaStreamSynchronize");
  });
}

/// Runs a step. If a body throws, for example because the probe does not find CUDA's functions, prints why, and goes on.
void measure_if_possible(const std::function<void()>& step) {
  try {
    step();
  } catch (const sr::Error& error) {
    if (error.kind() != sr::ErrorKind::function) throw;
    const std::string_view message = error.what();
    std::printf("unmeasured %s\n", std::string(message.substr(0, message.find('\n'))).c_str());
  }
}

// ---- steps of the master ----------------------------------------------------------------------------------------

/// The ranks that a figure is about: those of one node, or all.
struct Place {
  std::string suffix;  // of names: ":n1", or empty if there is one node or all of them are meant
  std::vector<sr::Device> devices;
  bool has_gpus = false;
};

Place place_of(const sr::Session& session, const std::string& suffix, const std::function<bool(int)>& has_rank) {
  Place place{suffix, {}};
  for (int rank = 0; rank < session.world_size(); ++rank) {
    if (!has_rank(rank)) continue;
    place.devices.push_back(session.device(rank));
    place.has_gpus = session.devices()[static_cast<std::size_t>(rank)].find("cuda") != std::string::npos;
  }
  return place;
}

std::vector<Place> places_of_nodes(const sr::Session& session) {
  if (session.nodes().size() == 1) return {place_of(session, "", [](int) { return true; })};
  std::vector<Place> places;
  for (const std::string& node : session.nodes()) {
    places.push_back(place_of(session, ":" + node, [&](int rank) {
      return session.devices()[static_cast<std::size_t>(rank)].starts_with(node + ":");
    }));
  }
  return places;
}

void measure_empty_call(sr::Session& session, const Place& place, int first, int count) {
  const auto empty = session.function(nothing_on_cpu, nothing_on_gpu, "empty");
  const auto placed = empty.on(place.devices);
  const bool is_whole = std::ssize(place.devices) == session.world_size();
  std::printf("ranks%s %zu\n", place.suffix.c_str(), place.devices.size());
  print_figure("empty-call" + place.suffix, median_seconds(first, count, [&] {
                 if (is_whole) empty();
                 else placed.async().get();  // placed() would not wait
               }));
}

void measure_all_reduce(sr::Session& session, const std::vector<Place>& places, const std::string& name,
                        std::int64_t bytes, int count) {
  const auto reduce = session.function(all_reduce_on_cpu, all_reduce_on_gpu, "all_reduce");
  auto values = session.shared<float, 1>(name);
  values.broadcast(std::vector<float>(static_cast<std::size_t>(bytes) / sizeof(float)));
  for (const Place& place : places) print_figure(name + place.suffix, reduce.on(place.devices)(values, count));
}

void measure_scatter(sr::Session& session) {
  const std::vector<float> values(kCopiedBytes / sizeof(float), 1.0F);
  auto rows = session.shared<float, 1>("rows");
  const double seconds = median_seconds(1, 3, [&] { rows.scatter(values); });
  print_figure("scatter", static_cast<double>(kCopiedBytes) / seconds);
}

/// What it takes to reach one rank of another node.
void measure_way(sr::Session& session, const Place& place) {
  const sr::Device& there = place.devices.front();
  const auto empty = session.function(nothing_on_cpu, nothing_on_gpu, "empty").on(there);
  print_figure("latency" + place.suffix, median_seconds(20, 100, [&] { empty.async().get(); }));
  constexpr std::int64_t kMovedBytes = 16 << 20;
  auto moved = session.shared<float, 1>("moved" + place.suffix);
  const std::vector<float> values(kMovedBytes / sizeof(float), 1.0F);
  const double seconds = median_seconds(1, 3, [&] { moved.set(there.rank(), values); });
  print_figure("bandwidth" + place.suffix, static_cast<double>(kMovedBytes) / seconds);
}

void measure_devices(sr::Session& session, const Place& place) {
  if (!place.has_gpus) {
    print_figure("copies" + place.suffix, session.function(copy_together, "copies").on(place.devices)());
    print_figure("product" + place.suffix, session.function(multiply_together, "product").on(place.devices)());
    return;
  }
  const auto copy = session.function(copy_to_gpu, "host to device");
  for (const sr::Device& device : place.devices) {
    print_figure("to-device:" + session.devices()[static_cast<std::size_t>(device.rank())], copy.on(device)());
  }
  if (place.devices.size() > 1) print_figure("to-devices" + place.suffix, copy.on(place.devices)());
  print_figure("gpu-copies" + place.suffix, session.function(copy_on_gpu, "copies").on(place.devices)());
  print_figure("gpu-product" + place.suffix, session.function(multiply_on_gpu, "product").on(place.devices)());
}

void name_blas() {
  Dl_info found{};
  Sgemm* const multiply = find_blas();
  if (multiply == nullptr || ::dladdr(reinterpret_cast<void*>(multiply), &found) == 0) return;
  char* const path = ::realpath(found.dli_fname, nullptr);
  std::printf("blas %s\n", path == nullptr ? found.dli_fname : path);
  std::free(path);
}

std::int64_t number_in(std::string_view text) {
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc{} && end == text.data() + text.size()) return number;
  throw std::runtime_error("expected START_NS and LARGE_BYTES; run syncrun doctor, which gives them");
}

void measure(sr::Session& session, int argc, char** argv) {
  const std::chrono::nanoseconds started(number_in(argc < 2 ? "" : argv[1]));
  const std::int64_t large_bytes = number_in(argc < 3 ? "" : argv[2]);
  session.function(nothing_on_cpu, nothing_on_gpu, "empty")();
  print_figure("start", std::chrono::duration<double>(Clock::now().time_since_epoch() - started).count());
  std::printf("library %s\n", sr::version());
  print_figure("copy", copy_rate());
  std::vector<Place> places = places_of_nodes(session);
  for (const Place& place : places) {
    measure_empty_call(session, place, 500, 1000);
    measure_if_possible([&] { measure_devices(session, place); });
  }
  measure_scatter(session);
  for (std::size_t node = 1; node < places.size(); ++node) measure_way(session, places[node]);
  if (places.size() > 1) {
    places.push_back(place_of(session, "", [](int) { return true; }));
    measure_empty_call(session, places.back(), 50, 200);
  }
  measure_if_possible([&] { measure_all_reduce(session, places, "all-reduce-1MiB", 1 << 20, 20); });
  if (large_bytes != 0)
    measure_if_possible([&] { measure_all_reduce(session, places, "all-reduce-100MiB", large_bytes, 3); });
  session.close();
  name_blas();
}

}  // namespace
}  // namespace syncrun::detail::master::doctor::probe

int main(int argc, char** argv) { return syncrun::run(argc, argv, syncrun::detail::master::doctor::probe::measure); }

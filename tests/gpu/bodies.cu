#include "tests/gpu/bodies.hpp"

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace gpu_test {

namespace {

template <class T, class F>
__global__ void for_each(std::int64_t count, T* out, F f) {
  for (std::int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) out[i] = f(i);
}

template <class T, class F>
void fill(sr::CudaWorker& worker, T* out, std::int64_t count, F f) {
  if (count != 0) for_each<<<32, 128, 0, worker.stream()>>>(count, out, f);
}

template <class T, class A>
__global__ void add_up(const T* x, std::int64_t count, A* out) {
  A sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<A>(x[i]);
  *out = sum;
}

struct Statistics {
  double sum, avg, min, max;
};
__global__ void take_statistics(const double* x, std::int64_t count, double factor, Statistics* out) {
  Statistics s{0, 0, 1e300, -1e300};
  for (std::int64_t i = 0; i < count; ++i) {
    const double value = x[i] * factor;
    s.sum += value;
    s.min = min(s.min, value);
    s.max = max(s.max, value);
  }
  s.avg = s.sum / count;
  *out = s;
}

__global__ void never_ends(const volatile float* flag) {
  while (*flag > -1e30F) {
  }
}

int runs_on_host = 0;

}  // namespace

void launches_nothing_that_runs(sr::CudaWorker& worker) {
  take_statistics<<<1, 100'000, 0, worker.stream()>>>(nullptr, 0, 0, nullptr);
}

Five statistics(sr::CudaWorker& worker, sr::Scattered<const double, 1> x, double factor) {
  auto* const s = reinterpret_cast<Statistics*>(worker.scratch<double>(4).data());
  take_statistics<<<1, 1, 0, worker.stream()>>>(x.data(), x.rows(), factor, s);
  Five five{.sum = sr::Sum<double>::in_device_memory(&s->sum),
            .avg = sr::Avg<double>::in_device_memory(&s->avg),
            .min = sr::Min<double>::in_device_memory(&s->min),
            .max = sr::Max<double>::in_device_memory(&s->max),
            .rows = {worker, {x.rows()}}};
  fill(worker, five.rows.data(), x.rows(),
       [from = x.data(), factor] __device__(std::int64_t i) { return from[i] * factor; });
  return five;
}

Chosen chosen_in_replay(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, sr::Scattered<const float, 1> y) {
  double wanted = 0;
  for (std::size_t i = 0; i < 4; ++i) wanted += worker.wants(i) ? double(1 << i) : 0;
  double* const place = worker.scratch<double>(1).data();
  fill(worker, place, 1, [wanted] __device__(std::int64_t) { return wanted; });
  Chosen r{.large = {worker, {kLargeElements}},
           .own = {worker, {2}},
           .pairs = {worker, {x.rows()}},
           .wanted = sr::Max<double>::in_device_memory(place)};
  fill(worker, r.large.data(), kLargeElements, [] __device__(std::int64_t) { return 1.0F; });
  const auto rank = static_cast<std::int32_t>(worker.rank());
  const auto rows = static_cast<std::int32_t>(x.rows());
  fill(worker, r.own.data(), 2, [rank, rows] __device__(std::int64_t i) { return i == 0 ? rank : rows; });
  fill(worker, r.pairs.data(), x.rows(),
       [x = x.data(), y = y.data()] __device__(std::int64_t i) { return 1000 * x[i] + y[i]; });
  return r;
}

Chosen chosen(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, sr::Scattered<const float, 1> y) {
  Chosen r = chosen_in_replay(worker, x, y);
  if (!worker.wants<&Chosen::large>()) r.large = {};
  if (!worker.wants<&Chosen::pairs>()) r.pairs = {};
  return r;
}

sr::Gather<float, 2> copy_rows(sr::CudaWorker& worker, sr::Scattered<const float, 2> x) {
  sr::Gather<float, 2> rows(worker, x.shape());
  const std::int64_t width = x.shape(1);
  fill(worker, rows.data(), x.size(), [from = x.data(), width, first = x.first_row()] __device__(std::int64_t i) {
    return from[i] + static_cast<float>(first + i / width);
  });
  return rows;
}

Numbers number_rows(sr::CudaWorker& worker) {
  Numbers numbers{.rows = {worker, {worker.rows()}}, .mean = {worker, {1}}};
  const std::int64_t first = worker.first_row();
  const double mean = static_cast<double>(first) + static_cast<double>(worker.rows() - 1) / 2;
  fill(worker, numbers.rows.data(), worker.rows(), [first] __device__(std::int64_t i) { return first + i; });
  fill(worker, numbers.mean.data(), 1, [mean] __device__(std::int64_t) { return mean; });
  return numbers;
}

sr::Gather<std::uint8_t, 2> copy_bytes(sr::CudaWorker& worker, sr::Scattered<const std::uint8_t, 2> x) {
  sr::Gather<std::uint8_t, 2> rows(worker, x.shape());
  fill(worker, rows.data(), x.size(), [from = x.data()] __device__(std::int64_t i) { return from[i]; });
  return rows;
}

Arrays arrays(sr::CudaWorker& worker, std::int64_t size) {
  Arrays a{.sum = {worker, {size}},
           .avg = {worker, {size}},
           .min = {worker, {size}},
           .max = {worker, {size}},
           .prod = {worker, {size}}};
  const int own = worker.rank() + 1;
  fill(worker, a.sum.data(), size, [own] __device__(std::int64_t i) { return static_cast<float>(own + i % 7); });
  fill(worker, a.avg.data(), size, [own] __device__(std::int64_t) { return static_cast<float>(own); });
  fill(worker, a.min.data(), size, [own] __device__(std::int64_t i) { return own + i; });
  const std::uint16_t bits = sr::bfloat16(static_cast<float>(own)).bits();
  fill(worker, reinterpret_cast<std::uint16_t*>(a.max.data()), size, [bits] __device__(std::int64_t) { return bits; });
  fill(worker, a.prod.data(), size, [own] __device__(std::int64_t) { return static_cast<double>(own); });
  return a;
}

sr::Avg<float, 1> average_of_rows(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, std::int64_t size) {
  sr::Avg<float, 1> average(worker, {size});
  float* const sum = worker.scratch<float>(1).data();
  add_up<<<1, 1, 0, worker.stream()>>>(x.data(), x.rows(), sum);
  fill(worker, average.data(), size,
       [sum, rows = static_cast<float>(x.rows())] __device__(std::int64_t) { return *sum / rows; });
  return average;
}

sr::Sum<float, 1> from_host(sr::CudaWorker& worker, std::int64_t size) {
  return {std::vector<float>(static_cast<std::size_t>(size), static_cast<float>(worker.rank() + 1)), {size}};
}

sr::Sum<double> with_broadcast(sr::CudaWorker& worker, sr::Broadcast<const float, 1> x, sr::PerWorker<double> factor) {
  double* const sum = worker.scratch<double>(1).data();
  add_up<<<1, 1, 0, worker.stream()>>>(x.data(), x.rows(), sum);
  fill(worker, sum, 1, [sum, factor = factor.value()] __device__(std::int64_t) { return *sum * factor; });
  return sr::Sum<double>::in_device_memory(sum);
}

sr::Sum<double> sum_of_selected(sr::CudaWorker& worker, sr::Sliced<const float, 2> rows) {
  double* const sum = worker.scratch<double>(1).data();
  add_up<<<1, 1, 0, worker.stream()>>>(rows.data(), rows.size(), sum);
  return sr::Sum<double>::in_device_memory(sum);
}

void add_to_variable(sr::CudaWorker& worker, sr::Local<float, 1> variable, float value) {
  fill(worker, variable.data(), variable.size(),
       [v = variable.data(), value] __device__(std::int64_t i) { return v[i] + value; });
}

void update_with_sum(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, sr::Update<sr::op::sum, float, 1> total) {
  float* const sum = worker.scratch<float>(1).data();
  add_up<<<1, 1, 0, worker.stream()>>>(x.data(), x.rows(), sum);
  fill(worker, total.value().data(), total.value().size(),
       [sum, original = total.original().data(), first = worker.slice() == 0] __device__(std::int64_t i) {
         return *sum + (first ? original[i] : 0.0F);
       });
}

void reduce_in_place(sr::CudaWorker&, sr::Comm& comm, sr::Local<float, 1> values) {
  comm.all_reduce(values, sr::Reduction::sum);
  comm.all_reduce(values, sr::Reduction::max);
}

void average_in_place(sr::CudaWorker& worker, sr::Comm& comm, sr::Scattered<const float, 1> x,
                      sr::Local<float, 1> values) {
  float* const sum = worker.scratch<float>(1).data();
  add_up<<<1, 1, 0, worker.stream()>>>(x.data(), x.rows(), sum);
  fill(worker, values.data(), values.size(),
       [sum, rows = static_cast<float>(x.rows())] __device__(std::int64_t) { return *sum / rows; });
  comm.avg(values);
}

void reduce_in_shares(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, sr::Reduction reduction,
                      bool in_place, bool in_background) {
  const sr::Share share = comm.share(values.size());
  const auto own = values.span().subspan(static_cast<std::size_t>(share.begin), static_cast<std::size_t>(share.count));
  const std::span<float> part = in_place ? own : worker.scratch<float>(share.count);
  if (in_background) comm.start_reduce_scatter(values, part, reduction).join();
  else comm.reduce_scatter(values, part, reduction);
  fill(worker, part.data(), share.count, [p = part.data()] __device__(std::int64_t i) { return p[i] + 1; });
  if (!in_background) return comm.all_gather(part, values);
  comm.start_all_gather(part, values).join();
  fill(worker, values.data(), values.size(), [v = values.data()] __device__(std::int64_t i) { return v[i]; });
}

void average_in_shares(sr::CudaWorker& worker, sr::Comm& comm, sr::Scattered<const float, 1> x,
                       sr::Local<sr::bfloat16, 1> values) {
  float* const sum = worker.scratch<float>(1).data();
  add_up<<<1, 1, 0, worker.stream()>>>(x.data(), x.rows(), sum);
  fill(worker, reinterpret_cast<std::uint16_t*>(values.data()), values.size(),
       [sum, rows = static_cast<float>(x.rows())] __device__(std::int64_t) {
         return static_cast<std::uint16_t>(__float_as_uint(*sum / rows) >> 16U);
       });
  const sr::Share share = comm.share(values.size());
  const auto part = values.span().subspan(static_cast<std::size_t>(share.begin), static_cast<std::size_t>(share.count));
  comm.reduce_scatter(values, part, sr::Reduction::avg);
  comm.all_gather(part, values);
}

void gather_and_scatter(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, sr::Local<float, 1> all,
                        int root) {
  const auto lengths = comm.lengths(values.size());
  std::int64_t total = 0;
  for (const std::int64_t length : lengths) total += length;
  const bool is_root = worker.rank() == root;
  const auto whole = is_root ? all.span().first(static_cast<std::size_t>(total)) : std::span<float>();
  comm.gather(values, whole, root);
  fill(worker, whole.data(), static_cast<std::int64_t>(whole.size()),
       [w = whole.data()] __device__(std::int64_t i) { return 2 * w[i]; });
  comm.scatter(whole, values, root);
  comm.all_gather(values, all.span().first(static_cast<std::size_t>(total)), lengths);
}

void replayed_gather_and_scatter(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values,
                                 sr::Local<float, 1> all) {
  // Rank r has r + 1 elements, so the ranks do not have to exchange lengths.
  std::vector<std::int64_t> lengths;
  for (int rank = 0; rank < comm.world_size(); ++rank) lengths.push_back(rank + 1);
  const auto whole = worker.rank() == 0 ? all.span() : std::span<float>();
  comm.gather(values, whole, 0, lengths);
  fill(worker, whole.data(), static_cast<std::int64_t>(whole.size()),
       [w = whole.data()] __device__(std::int64_t i) { return 2 * w[i]; });
  comm.scatter(whole, values, 0, lengths);
}

void reduce_to_root(sr::CudaWorker&, sr::Comm& comm, sr::Local<float, 1> values, sr::Reduction reduction, int root) {
  comm.reduce(values, reduction, root);
}

void gather_where_others_reduce(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values) {
  const std::vector<std::int64_t> lengths(static_cast<std::size_t>(comm.world_size()), 1);
  const auto one = values.span().first(1);
  if (worker.rank() == 0) comm.gather(one, values.span().first(lengths.size()), 0, lengths);
  else comm.all_reduce(values, sr::Reduction::sum);
}

void replayed_shares(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values) {
  reduce_in_shares(worker, comm, values, sr::Reduction::sum, true, false);
}

sr::Max<double> reduce_number(sr::CudaWorker& worker, sr::Comm& comm) {
  comm.barrier();
  return comm.all_reduce(static_cast<double>(worker.rank() + 1), sr::Reduction::sum);
}

void misbehave(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, int rank, Fault fault) {
  comm.all_reduce(values, sr::Reduction::sum);
  if (worker.rank() == rank) {
    switch (fault) {
      case Fault::none: break;
      case Fault::exception: throw std::runtime_error("misbehaved on purpose");
      case Fault::other_length: comm.all_reduce(values.span().first(1), sr::Reduction::sum); return;
      case Fault::leaves: return;
      case Fault::kill: ::kill(::getpid(), SIGKILL); break;
      case Fault::illegal_address:
        fill(worker, reinterpret_cast<float*>(16), 1, [] __device__(std::int64_t) { return 1.0F; });
        break;
      case Fault::exception_behind: break;
      case Fault::hang: never_ends<<<1, 1, 0, worker.stream()>>>(values.data()); break;
    }
  }
  comm.all_reduce(values, sr::Reduction::sum);
}

void misbehave_at_once(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, int rank, Fault fault) {
  if (worker.rank() != rank) return comm.all_reduce(values, sr::Reduction::sum);
  if (fault == Fault::exception_behind) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    throw std::runtime_error("misbehaved on purpose");
  }
  comm.all_reduce(values.span().first(1), sr::Reduction::sum);
}

sr::Sum<float, 1> host_output_between_collectives(sr::CudaWorker&, sr::Comm& comm, sr::Scattered<const float, 1> x,
                                                  sr::Local<float, 1> values) {
  comm.all_reduce(values, sr::Reduction::sum);
  return {std::vector<float>(1, static_cast<float>(x.rows())), sr::Shape{1}};
}

sr::Avg<float> scale_and_add(sr::CudaWorker& worker, sr::Comm& comm, sr::Scattered<const float, 1> x,
                             sr::Local<float, 1> values, sr::DeviceScalar<float> factor) {
  float* const sum = worker.scratch<float>(1).data();
  add_up<<<1, 1, 0, worker.stream()>>>(x.data(), x.rows(), sum);
  comm.all_reduce(std::span<float>(sum, 1), sr::Reduction::sum);
  fill(worker, values.data(), values.size(),
       [sum, v = values.data(), factor = static_cast<const float*>(factor.data())] __device__(std::int64_t i) {
         return v[i] * *factor + *sum;
       });
  return sr::Avg<float>::in_device_memory(values.data());
}

void crash_on(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, sr::DeviceScalar<int> rank) {
  fill(worker, values.data(), 1,
       [v = values.data(), rank = static_cast<const int*>(rank.data()), own = worker.rank()] __device__(std::int64_t) {
         if (*rank == own) *reinterpret_cast<float*>(16) = 1;
         return v[0];
       });
  comm.all_reduce(values, sr::Reduction::max);
}

void add_one(sr::CudaWorker& worker, sr::Update<sr::op::sum, float, 1> values) {
  fill(worker, values.value().data(), values.value().size(),
       [from = values.original().data()] __device__(std::int64_t i) { return from[i] + 1; });
}

void add_two(sr::CudaWorker& worker, sr::Update<sr::op::sum, float, 1> values) {
  fill(worker, values.value().data(), values.value().size(),
       [from = values.original().data()] __device__(std::int64_t i) { return from[i] + 2; });
}

sr::Sum<std::int64_t> use_scratch(sr::CudaWorker& worker, std::int64_t elements) {
  return static_cast<std::int64_t>(worker.scratch<float>(elements).size());
}

sr::Sum<float, 1> replayed_array(sr::CudaWorker& worker, sr::Scattered<const float, 1> x) {
  sr::Sum<float, 1> result(worker, {3});
  float* const sum = worker.scratch<float>(1).data();
  add_up<<<1, 1, 0, worker.stream()>>>(x.data(), x.rows(), sum);
  fill(worker, result.data(), 3, [sum] __device__(std::int64_t i) { return *sum * static_cast<float>(i); });
  return result;
}

void waits_in_capture(sr::CudaWorker& worker) { static_cast<void>(cudaStreamSynchronize(worker.stream())); }

void counts_host_runs(sr::CudaWorker&) { ++runs_on_host; }
sr::Sum<std::int64_t> report_host_runs(sr::CudaWorker&) { return static_cast<std::int64_t>(runs_on_host); }

sr::Sum<float, 2> product(sr::CudaWorker& worker) {
  sr::Sum<float, 2> result(worker, {2, 2});
  float* const factors = worker.scratch<float>(4).data();
  fill(worker, factors, 4, [] __device__(std::int64_t i) { return static_cast<float>(i); });
  const float one = 1;
  const float zero = 0;
  if (cublasSgemm(worker.cublas(), CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, factors, 2, factors, 2, &zero,
                  result.data(), 2) != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error("cublasSgemm failed");
  }
  return result;
}

}  // namespace gpu_test

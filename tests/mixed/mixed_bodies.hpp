#pragma once

// Bodies for sessions with CPU and CUDA devices. Each body has two versions, one for each kind. The versions for GPUs are
// in tests/gpu/mixed_bodies.cu, and those for the fake GPU in fake_bodies.cpp.

#include <csignal>
#include <cstdint>
#include <stdexcept>
#include <syncrun/syncrun.hpp>
#include <type_traits>

namespace mixed_test {

namespace sr = syncrun;

/// The number of GPUs that the tests may use. Makes no CUDA call.
int gpus();

// ---- calls ----------------------------------------------------------------------------------------------------

struct Statistics {
  sr::Avg<double> mean;
  sr::Sum<double> sum;
  sr::Gather<double, 1> rows;  // 2 * x
};
Statistics statistics_on_cpu(sr::CpuWorker& worker, sr::Scattered<const double, 1> x);
Statistics statistics_on_gpu(sr::CudaWorker& worker, sr::Scattered<const double, 1> x);

struct Arrays {
  sr::Avg<float, 1> mean;         // each element is the mean of the rows, plus i % 5
  sr::Max<std::int16_t, 1> most;  // each element is the rank; NCCL has no such type
};
Arrays arrays_on_cpu(sr::CpuWorker& worker, sr::Scattered<const float, 1> x, std::int64_t size);
Arrays arrays_on_gpu(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, std::int64_t size);

/// Adds the sum of the rows to each element.
void add_sum_on_cpu(sr::CpuWorker& worker, sr::Scattered<const float, 1> x, sr::Update<sr::op::sum, float, 1> values);
void add_sum_on_gpu(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, sr::Update<sr::op::sum, float, 1> values);

/// Results that are the first row of a slice. The same for both kinds, because the library computes them.
template <class T>
struct FirstRows {
  sr::Sum<T, 1> sum;
  sr::Avg<T, 1> avg;
  sr::Prod<T, 1> prod;
  sr::Min<T, 1> min;
  sr::Max<T, 1> max;
  // The results of the last column. A body on a GPU gives these numbers in device memory.
  sr::Sum<T> last_sum;
  sr::Avg<T> last_avg;
  sr::Min<T> last_min;
  sr::Max<T> last_max;
};
template <class Worker, class T>
FirstRows<T> first_rows(Worker& worker, sr::Scattered<const T, 2> x) {
  const sr::Shape<1> shape{x.shape(1)};
  FirstRows<T> r{.sum = {worker, shape},
                 .avg = {worker, shape},
                 .prod = {worker, shape},
                 .min = {worker, shape},
                 .max = {worker, shape},
                 .last_sum = {},
                 .last_avg = {},
                 .last_min = {},
                 .last_max = {}};
  const std::size_t bytes = static_cast<std::size_t>(x.shape(1)) * sizeof(T);
  for (T* const to : {r.sum.data(), r.avg.data(), r.prod.data(), r.min.data(), r.max.data()})
    sr::detail::copy_values(sr::detail::HandleAccess::command_loop(worker), to, x.data(), bytes);
  const T* const last = x.data() + x.shape(1) - 1;
  const auto set = [last]<class Number>(Number& number) {
    if constexpr (std::is_same_v<Worker, sr::CudaWorker>) number = Number::in_device_memory(last);
    else number = *last;
  };
  set(r.last_sum);
  set(r.last_avg);
  set(r.last_min);
  set(r.last_max);
  return r;
}

/// Updates with the first row of a slice.
template <class Worker, class T>
void update_with_first_row(Worker& worker, sr::Scattered<const T, 2> x, sr::Update<sr::op::sum, T, 1> sum,
                           sr::Update<sr::op::avg, T, 1> avg, sr::Update<sr::op::min, T, 1> min,
                           sr::Update<sr::op::max, T, 1> max) {
  const std::size_t bytes = static_cast<std::size_t>(x.shape(1)) * sizeof(T);
  for (T* const to : {sum.value().data(), avg.value().data(), min.value().data(), max.value().data()})
    sr::detail::copy_values(sr::detail::HandleAccess::command_loop(worker), to, x.data(), bytes);
}

/// The sum of the rows and of `y`, times a factor. A GPU computes for some milliseconds before it reads them.
sr::Sum<double> late_sum_on_cpu(sr::CpuWorker& worker, sr::Scattered<const float, 1> x, sr::Broadcast<const float, 1> y,
                                sr::DeviceScalar<double> factor);
sr::Sum<double> late_sum_on_gpu(sr::CudaWorker& worker, sr::Scattered<const float, 1> x,
                                sr::Broadcast<const float, 1> y, sr::DeviceScalar<double> factor);

// ---- train steps ----------------------------------------------------------------------------------------------

/// Least squares: the mean over rows of (x p - y)^2, and its gradient.
sr::Avg<double> loss_and_gradient_on_cpu(sr::CpuWorker& worker, sr::Scattered<const float, 2> x,
                                         sr::Scattered<const float, 1> y, sr::Local<float, 1> params,
                                         sr::Local<float, 1> gradient);
sr::Avg<double> loss_and_gradient_on_gpu(sr::CudaWorker& worker, sr::Scattered<const float, 2> x,
                                         sr::Scattered<const float, 1> y, sr::Local<float, 1> params,
                                         sr::Local<float, 1> gradient);
/// The same with the gradient of the sum over rows.
sr::Avg<double> summed_on_cpu(sr::CpuWorker& worker, sr::detail::GradientCount& count, sr::Scattered<const float, 2> x,
                              sr::Scattered<const float, 1> y, sr::Local<float, 1> params,
                              sr::Local<float, 1> gradient);
sr::Avg<double> summed_on_gpu(sr::CudaWorker& worker, sr::detail::GradientCount& count, sr::Scattered<const float, 2> x,
                              sr::Scattered<const float, 1> y, sr::Local<float, 1> params,
                              sr::Local<float, 1> gradient);

// ---- Values ---------------------------------------------------------------------------------------------------

/// 2 x, which stays on the device. The same for both kinds, because the library computes it.
template <class Worker>
sr::Keep<float, 1> twice_kept(Worker& worker, sr::Local<const float, 1> x) {
  sr::Keep<float, 1> y(worker, x.shape());
  const std::size_t elements = x.span().size();
  sr::detail::copy_values(sr::detail::HandleAccess::command_loop(worker), y.data(), x.data(), elements * sizeof(float));
  sr::detail::combine_values(sr::detail::HandleAccess::command_loop(worker), sr::DType::float32, y.data(), x.data(),
                             {1, 1}, elements);
  return y;
}

// ---- asynchronous training ------------------------------------------------------------------------------------

constexpr double kDescent = 0.2;

/// The parameters go towards a target. The number of steps differs from round to round. The same for both kinds, because
/// the library computes it.
template <class Worker>
void descend(Worker& worker, sr::Local<float, 1> params, sr::Local<const float, 1> target, std::int64_t round) {
  for (std::int64_t step = 0; step <= round % 3; ++step) {
    sr::detail::combine_values(sr::detail::HandleAccess::command_loop(worker), sr::DType::float32, params.data(),
                               target.data(), {1 - kDescent, kDescent}, params.span().size());
  }
}

// ---- collectives ----------------------------------------------------------------------------------------------
//
// These only call Comm, so they are the same for both kinds.

enum class Operation : std::uint8_t {
  all_reduce,
  reduce,
  reduce_scatter,
  broadcast,
  all_gather,
  gather_and_scatter,
};

/// `all` has as many elements as `values`, and the shares of the ranks come from it.
template <class Worker>
void collect(Worker&, sr::Comm& comm, sr::Local<float, 1> values, sr::Local<float, 1> all, Operation operation,
             int root) {
  const sr::Share own = comm.share(values.size());
  const auto part = values.span().subspan(static_cast<std::size_t>(own.begin), static_cast<std::size_t>(own.count));
  switch (operation) {
    case Operation::all_reduce: return comm.all_reduce(values, sr::Reduction::sum);
    case Operation::reduce: return comm.reduce(values, sr::Reduction::sum, root);
    case Operation::reduce_scatter: return comm.reduce_scatter(values, part, sr::Reduction::sum);
    case Operation::broadcast: return comm.broadcast(values, root);
    case Operation::all_gather: return comm.all_gather(part, all);
    case Operation::gather_and_scatter: comm.gather(part, all, root); return comm.scatter(all, part, root);
  }
}

/// Replayable: all_reduce, twice. The second one uses the result of the first one.
template <class Worker>
void reduce_twice(Worker&, sr::Comm& comm, sr::Local<float, 1> values) {
  comm.all_reduce(values, sr::Reduction::sum);
  comm.all_reduce(values, sr::Reduction::sum);
}

/// Replayable if possible, but host code reads the value.
template <class Worker>
sr::Sum<double> read_on_host(Worker&, sr::DeviceScalar<double> value) {
  return value.value();
}

/// Numbers of the host, and a barrier.
template <class Worker>
sr::Sum<std::int64_t> tell_numbers(Worker& worker, sr::Comm& comm) {
  comm.barrier();
  const std::int64_t sum = comm.all_reduce(std::int64_t{worker.rank() + 1}, sr::Reduction::sum);
  const auto lengths = comm.lengths(worker.rank() + 10);
  for (int rank = 0; rank < comm.world_size(); ++rank) {
    if (lengths[static_cast<std::size_t>(rank)] != rank + 10) throw std::runtime_error("a wrong length");
  }
  return sum;
}

enum class Fault : std::uint8_t { none, exception, leaves, kill, other_length };

/// The GPU loses its context.
void lose_context_on_cpu(sr::CpuWorker& worker);
void lose_context_on_gpu(sr::CudaWorker& worker);

/// all_reduce. Before that, one rank goes wrong.
template <class Worker>
void misbehave(Worker& worker, sr::Comm& comm, sr::Local<float, 1> values, int rank, Fault fault) {
  if (worker.rank() == rank) {
    switch (fault) {
      case Fault::none: break;
      case Fault::exception: throw std::runtime_error("this rank went wrong");
      case Fault::leaves: return;
      case Fault::kill: std::raise(SIGKILL); break;
      case Fault::other_length: return comm.all_reduce(values.span().first(1), sr::Reduction::sum);
    }
  }
  comm.all_reduce(values, sr::Reduction::sum);
}

}  // namespace mixed_test

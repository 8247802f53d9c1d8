#pragma once

// Replicated functions for tests on GPUs. Their kernels are as simple as possible: some use a single thread for all
// elements.

#include <syncrun/syncrun.hpp>

namespace gpu_test {

namespace sr = syncrun;

struct Five {
  sr::Sum<double> sum;
  sr::Avg<double> avg;
  sr::Min<double> min;
  sr::Max<double> max;
  sr::Gather<double, 1> rows;
};

/// Launches a kernel with more threads per block than CUDA allows, so the runtime refuses the launch.
void launches_nothing_that_runs(sr::CudaWorker& worker);
/// Sum, average, minimum and maximum of this rank's rows of x, each multiplied by `factor`, and the rows themselves.
Five statistics(sr::CudaWorker& worker, sr::Scattered<const double, 1> x, double factor);
/// The rows that arrived. The number of its row in the call is added to each element.
sr::Gather<float, 2> copy_rows(sr::CudaWorker& worker, sr::Scattered<const float, 2> x);
/// Replayable: the number of each row of a call without arrays, and the mean of these numbers.
struct Numbers {
  sr::Gather<std::int64_t, 1> rows;
  sr::Avg<double, 1> mean;
};
Numbers number_rows(sr::CudaWorker& worker);
sr::Gather<std::uint8_t, 2> copy_bytes(sr::CudaWorker& worker, sr::Scattered<const std::uint8_t, 2> x);
/// Arrays that are reduced in each way. Their elements are computed from rank + 1.
struct Arrays {
  sr::Sum<float, 1> sum;
  sr::Avg<float, 1> avg;
  sr::Min<std::int64_t, 1> min;
  sr::Max<sr::bfloat16, 1> max;
  sr::Prod<double, 1> prod;
};
Arrays arrays(sr::CudaWorker& worker, std::int64_t size);
/// An array of `size` elements, each of which is the average of all rows. Every row has the same weight.
sr::Avg<float, 1> average_of_rows(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, std::int64_t size);
/// Outputs of every kind. `wanted` has a bit for each output that the caller wants. `pairs` contains 1000 * x + y for
/// each row.
struct Chosen {
  sr::Sum<float, 1> large;
  sr::Stack<std::int32_t, 2> own;
  sr::Gather<float, 1> pairs;
  sr::Max<double> wanted;
};
Chosen chosen(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, sr::Scattered<const float, 1> y);
/// Computes all outputs, including those that the caller does not want, so that it can be replayed.
Chosen chosen_in_replay(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, sr::Scattered<const float, 1> y);
/// The number of elements of Chosen::large. The master does not reduce that many by itself.
inline constexpr std::int64_t kLargeElements = 1 << 20;
/// An output whose values are in the memory of the host.
sr::Sum<float, 1> from_host(sr::CudaWorker& worker, std::int64_t size);

sr::Sum<double> with_broadcast(sr::CudaWorker& worker, sr::Broadcast<const float, 1> x, sr::PerWorker<double> factor);
sr::Sum<double> sum_of_selected(sr::CudaWorker& worker, sr::Sliced<const float, 2> rows);
void add_to_variable(sr::CudaWorker& worker, sr::Local<float, 1> variable, float value);
void update_with_sum(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, sr::Update<sr::op::sum, float, 1> total);

/// Bodies that call collectives. The results are in `values`.
void reduce_in_place(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values);
void average_in_place(sr::CudaWorker& worker, sr::Comm& comm, sr::Scattered<const float, 1> x,
                      sr::Local<float, 1> values);
/// Calls the collectives of an optimizer that shards its state. The values are reduced, each rank adds one to its
/// share, and the shares are gathered. If `in_place`, the share stays in `values`, and otherwise it is in scratch
/// memory. If `in_background`, the collectives are started, and joined before their results are used.
void reduce_in_shares(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, sr::Reduction reduction,
                      bool in_place, bool in_background);
/// Computes the mean of each rank's rows, and averages these in the same way, in 16 bits.
void average_in_shares(sr::CudaWorker& worker, sr::Comm& comm, sr::Scattered<const float, 1> x,
                       sr::Local<sr::bfloat16, 1> values);
/// Gathers parts of any lengths in `all` of rank `root`, doubles them there, and scatters them back. Then gathers them
/// in `all` of every rank.
void gather_and_scatter(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, sr::Local<float, 1> all,
                        int root);
/// Replayable: gathers parts in `all` of rank 0, doubles them there, and scatters them back. Rank r has r + 1 elements.
void replayed_gather_and_scatter(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values,
                                 sr::Local<float, 1> all);
void reduce_to_root(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, sr::Reduction reduction,
                    int root);
/// Rank 0 calls gather, and the other ranks call all_reduce.
void gather_where_others_reduce(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values);
/// Replayable: reduce_in_shares() for the sum, in place.
void replayed_shares(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values);
sr::Max<double> reduce_number(sr::CudaWorker& worker, sr::Comm& comm);

/// The ways in which one rank can go wrong while the others are in a collective.
enum class Fault { none, exception, other_length, leaves, kill, illegal_address, hang, exception_behind };
void misbehave(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, int rank, Fault fault);

/// The first collective goes wrong. For other_length, the rank reduces another length. For exception_behind, it throws
/// when the peers already wait in the collective.
void misbehave_at_once(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, int rank, Fault fault);
/// Calls all_reduce in each slice, and then returns an output from host memory, for which the worker waits for the
/// device. The output is the number of rows.
sr::Sum<float, 1> host_output_between_collectives(sr::CudaWorker& worker, sr::Comm& comm,
                                                  sr::Scattered<const float, 1> x, sr::Local<float, 1> values);

/// Replayable: values = values * factor + the sum of x over all ranks. Returns the first of the new values.
sr::Avg<float> scale_and_add(sr::CudaWorker& worker, sr::Comm& comm, sr::Scattered<const float, 1> x,
                             sr::Local<float, 1> values, sr::DeviceScalar<float> factor);
/// Replayable: calls all_reduce. Before that, the rank with the given number writes to an invalid address.
void crash_on(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, sr::DeviceScalar<int> rank);
/// Replayable: add one to each element, or two.
void add_one(sr::CudaWorker& worker, sr::Update<sr::op::sum, float, 1> values);
void add_two(sr::CudaWorker& worker, sr::Update<sr::op::sum, float, 1> values);
sr::Sum<std::int64_t> use_scratch(sr::CudaWorker& worker, std::int64_t elements);
sr::Sum<float, 1> replayed_array(sr::CudaWorker& worker, sr::Scattered<const float, 1> x);
void waits_in_capture(sr::CudaWorker& worker);
void counts_host_runs(sr::CudaWorker& worker);
sr::Sum<std::int64_t> report_host_runs(sr::CudaWorker& worker);

/// The square of a 2 x 2 matrix, computed by cuBLAS.
sr::Sum<float, 2> product(sr::CudaWorker& worker);

}  // namespace gpu_test

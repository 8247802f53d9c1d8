#pragma once

// Replicated functions for tests on GPUs. Their kernels are as simple as can be: one thread walks over everything.

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

/// A launch that the runtime refuses.
void launches_nothing_that_runs(sr::CudaWorker& worker);
/// Of each rank's rows of x (one column).
Five statistics(sr::CudaWorker& worker, sr::Scattered<const double, 1> x, double factor);
/// Rows as they arrived, each plus its position in the call.
sr::Gather<float, 2> copy_rows(sr::CudaWorker& worker, sr::Scattered<const float, 2> x);
sr::Gather<std::uint8_t, 2> copy_bytes(sr::CudaWorker& worker, sr::Scattered<const std::uint8_t, 2> x);
/// An array whose elements are rank + 1, reduced in each way.
struct Arrays {
  sr::Sum<float, 1> sum;
  sr::Avg<float, 1> avg;
  sr::Min<std::int64_t, 1> min;
  sr::Max<sr::bfloat16, 1> max;
  sr::Prod<double, 1> prod;
};
Arrays arrays(sr::CudaWorker& worker, std::int64_t size);
/// The same where each row counts: the average of the rows' values, over `size` elements.
sr::Avg<float, 1> average_of_rows(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, std::int64_t size);
/// Outputs of every kind, and in `wanted` a bit for each that the caller wants. `pairs`: 1000 * x + y, row by row.
struct Chosen {
  sr::Sum<float, 1> large;
  sr::Stack<std::int32_t, 2> own;
  sr::Gather<float, 1> pairs;
  sr::Max<double> wanted;
};
Chosen chosen(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, sr::Scattered<const float, 1> y);
/// The same without a look at the caller's wishes, to be replayed.
Chosen chosen_in_replay(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, sr::Scattered<const float, 1> y);
/// Elements of Chosen::large: more than the master reduces itself.
inline constexpr std::int64_t kLargeElements = 1 << 20;
/// Host values as an output.
sr::Sum<float, 1> from_host(sr::CudaWorker& worker, std::int64_t size);

sr::Sum<double> with_broadcast(sr::CudaWorker& worker, sr::Broadcast<const float, 1> x, sr::PerWorker<double> factor);
sr::Sum<double> sum_of_selected(sr::CudaWorker& worker, sr::Sliced<const float, 2> rows);
void add_to_variable(sr::CudaWorker& worker, sr::Local<float, 1> variable, float value);
void update_with_sum(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, sr::Update<sr::op::sum, float, 1> total);

/// Collectives inside: `values` becomes what they leave there.
void reduce_in_place(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values);
void average_in_place(sr::CudaWorker& worker, sr::Comm& comm, sr::Scattered<const float, 1> x,
                      sr::Local<float, 1> values);
void spread(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, sr::Local<float, 1> all, int root);
/// What an optimizer that shards its state does: values are reduced, each rank adds one to its share, and shares are
/// gathered. `in_place`: the share stays where it is in `values`; else it goes through scratch.
void reduce_in_shares(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, sr::Reduction reduction,
                      bool in_place);
/// The same average of each rank's rows' mean, in 16 bits.
void average_in_shares(sr::CudaWorker& worker, sr::Comm& comm, sr::Scattered<const float, 1> x,
                       sr::Local<sr::bfloat16, 1> values);
/// Parts of any length to rank `root`'s `all`, doubled there, and back.
void gather_and_scatter(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, sr::Local<float, 1> all,
                        int root);
/// Replayable: the same with the lengths that `values` have on the ranks, once known, and from and to rank 0.
void replayed_gather_and_scatter(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values,
                                 sr::Local<float, 1> all);
void reduce_to_root(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, sr::Reduction reduction,
                    int root);
/// Rank 0 gathers, the others reduce.
void gather_where_others_reduce(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values);
/// Replayable: the sum, in place.
void replayed_shares(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values);
sr::Max<double> reduce_number(sr::CudaWorker& worker, sr::Comm& comm);

/// One way to go wrong per number, on one rank, while the others are in a collective.
enum class Fault { none, exception, other_length, leaves, kill, illegal_address, hang, exception_behind };
void misbehave(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, int rank, Fault fault);

/// The same where the only collective is the one that goes wrong. exception_behind: thrown once the peers wait in it.
void misbehave_at_once(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, int rank, Fault fault);
/// Host values as an output (the device is waited for), after an all_reduce of each slice. Rows count.
sr::Sum<float, 1> host_output_between_collectives(sr::CudaWorker& worker, sr::Comm& comm,
                                                  sr::Scattered<const float, 1> x, sr::Local<float, 1> values);

/// Replayable: values = values * factor + sum over all ranks of x, and that sum's first element as a result.
sr::Avg<float> scale_and_add(sr::CudaWorker& worker, sr::Comm& comm, sr::Scattered<const float, 1> x,
                             sr::Local<float, 1> values, sr::DeviceScalar<float> factor);
/// Replayable: an all_reduce, and before it, on the rank that the number names, a write to where there is nothing.
void crash_on(sr::CudaWorker& worker, sr::Comm& comm, sr::Local<float, 1> values, sr::DeviceScalar<int> rank);
/// Replayable: all elements become the one before, plus one and plus two.
void add_one(sr::CudaWorker& worker, sr::Update<sr::op::sum, float, 1> values);
void add_two(sr::CudaWorker& worker, sr::Update<sr::op::sum, float, 1> values);
sr::Sum<std::int64_t> use_scratch(sr::CudaWorker& worker, std::int64_t elements);
sr::Sum<float, 1> replayed_array(sr::CudaWorker& worker, sr::Scattered<const float, 1> x);
void waits_in_capture(sr::CudaWorker& worker);
void counts_host_runs(sr::CudaWorker& worker);
sr::Sum<std::int64_t> report_host_runs(sr::CudaWorker& worker);

/// A 2 x 2 product through cuBLAS.
sr::Sum<float, 2> product(sr::CudaWorker& worker);

}  // namespace gpu_test

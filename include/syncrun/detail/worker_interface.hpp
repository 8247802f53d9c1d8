#pragma once

// The interface on the workers' side: the library functions that the templates of the public headers call in a worker, a
// producer or a task, or in any process. master_interface.hpp has those for the master. Users never name anything in this
// header.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "syncrun/detail/export.hpp"
#include "syncrun/detail/gradient_count.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun {

class Comm;
class CpuWorker;
class CudaWorker;
class GradientReady;
class StartedCollective;
struct Slice;

namespace detail {

// Types of the library, by their folders.
namespace arrays {
class ArrayFile;
}  // namespace arrays
namespace worker::comm {
class CommCore;
struct RankWeights;
}  // namespace worker::comm
namespace worker::helper_processes {
class PipeCore;
}  // namespace worker::helper_processes
namespace worker::loop {
class CommandLoop;
}  // namespace worker::loop
using arrays::ArrayFile;
using worker::comm::CommCore;
using worker::comm::RankWeights;
using worker::helper_processes::PipeCore;
using worker::loop::CommandLoop;

enum class GradientParts : bool;
class OutputBuffer;
class ProducerCore;
class StateKeeper;
struct OutputType;
struct RawArray;
enum class StateAction : std::uint8_t;
struct RawDraft;
struct RawRows;
struct RawUpdate;
struct SliceRows;
struct UpdateWork;
enum class UpdateKind : std::uint8_t;

// ---- any process ------------------------------------------------------------------------------------------------

/// Ends this process, with a message, if it is a worker, a producer or a task that has not called run() or
/// serve_if_worker(). Called before a session or a task starts. Otherwise every worker would run the program itself and
/// start workers of its own, without end.
SYNCRUN_EXPORT void refuse_in_worker();

/// Throws Error (usage) unless an array of these extents has `count` elements.
SYNCRUN_EXPORT void check_count(std::size_t count, std::span<const std::int64_t> extents);

/// Returns the size of an array in bytes. Throws Error (usage) if an extent is negative or the size overflows.
SYNCRUN_EXPORT std::size_t checked_size(DType dtype, std::span<const std::int64_t> extents);

/// Throws Error (usage): the value at this position of an array is out of the range of the element type `to`.
[[noreturn]] SYNCRUN_EXPORT void refuse_value(DType to, std::size_t position, long double value);

/// Checks the hyperparameters of a rule, a struct of update_rules.hpp: all must be finite, rates and epsilons not
/// negative, decays from 0 to below 1, and `step` at least 1. Otherwise throws Error (usage), which names the
/// hyperparameter.
SYNCRUN_EXPORT void check_update_rule(UpdateKind kind, const void* rule);

/// Allocates ordinary memory of this process, not initialised. Throws Error (system) if there is not enough memory.
SYNCRUN_EXPORT OutputBuffer allocate_on_heap(std::size_t bytes);

/// Opens a .npy file. Throws as read_npy.
SYNCRUN_EXPORT std::shared_ptr<const ArrayFile> open_npy(const std::filesystem::path& file, DType dtype,
                                                         std::size_t dimensions);
/// The extents of the array in the file.
SYNCRUN_EXPORT std::span<const std::int64_t> extents_of(const ArrayFile& file) noexcept;
/// Reads all elements. Throws Error (system) if they cannot be read.
SYNCRUN_EXPORT void read_elements(const ArrayFile& file, void* values);

// ---- bodies on a worker -----------------------------------------------------------------------------------------

/// Allocates zero-filled shared memory for an output of the running call. Throws Error (system) if there is not enough
/// memory.
SYNCRUN_EXPORT OutputBuffer allocate_output(CpuWorker& worker, std::size_t bytes);
/// The same in device memory. The memory is cleared in stream order.
SYNCRUN_EXPORT OutputBuffer allocate_output(CudaWorker& worker, std::size_t bytes);

/// Throws Error (usage) unless the gradient and every state vector have as many elements as the parameters.
SYNCRUN_EXPORT void check_update_lengths(UpdateKind kind, std::size_t params, std::size_t gradient,
                                         std::span<const std::size_t> state, std::span<const std::string_view> names);
/// Applies an update on the worker's device; on a CUDA device in stream order. Checks the rule if it is in host memory.
/// Throws Error (usage) if a hyperparameter is not valid.
SYNCRUN_EXPORT void apply_update(CommandLoop& core, const UpdateWork& work);
/// On a CUDA device, in stream order: writes the sum of the squares of the gradient, without the frozen parts of the plan,
/// to `squares` in device memory.
SYNCRUN_EXPORT void sum_squares(CommandLoop& core, const UpdateWork& work, double* squares);
/// On a CUDA device, in stream order: replaces a number in device memory by its square root, divided by another one.
SYNCRUN_EXPORT void take_root(CommandLoop& core, double* number, const double* divisor);

/// into = weights[0] into + weights[1] value, in device memory; on a CUDA device in stream order. `dtype` is a
/// floating-point type.
SYNCRUN_EXPORT void combine_values(CommandLoop& core, DType dtype, void* into, const void* value,
                                   std::array<double, 2> weights, std::size_t elements);
/// Copies within device memory; on a CUDA device in stream order.
SYNCRUN_EXPORT void copy_values(CommandLoop& core, void* to, const void* from, std::size_t bytes);
/// Sets device memory to zero; on a CUDA device in stream order.
SYNCRUN_EXPORT void clear_values(CommandLoop& core, void* values, std::size_t bytes);

/// The rows of the current slice on this rank, as a part of those of all ranks and slices of the call.
SYNCRUN_EXPORT double share_of_rows(CommandLoop& core) noexcept;
/// The first element of the parameters that the running train step trains.
SYNCRUN_EXPORT std::int64_t first_element_of_step(CommandLoop& core) noexcept;
/// Called by a body that changes what captured graphs refer to: this worker captures all graphs again.
SYNCRUN_EXPORT void forget_graphs(CommandLoop& core) noexcept;
/// Called by a body: sets the weight of the current slice in the averages that the call returns. Otherwise, it is the
/// number of its rows. Every slice of the call must set it. With a weight of 0, the values do not count.
SYNCRUN_EXPORT void weigh_slice(CommandLoop& core, double weight) noexcept;

/// Returns at least `bytes` bytes of device memory, as AnyWorker::scratch describes. Throws Error (system) if there is
/// not enough memory.
SYNCRUN_EXPORT void* scratch_bytes(CommandLoop& core, std::size_t bytes);

/// What happens if the work of a replayable function cannot be captured: the call fails, or its host code runs in this
/// and in later calls.
enum class Capture : std::uint8_t { required, if_possible };

/// The places of a DeviceScalar's value during a call. `host` may be unaligned. `is_captured` is true while a CUDA graph
/// captures the work of the body.
struct ScalarPlaces {
  const void* device;
  const void* host;
  const bool* is_captured;
};
/// Throws Error (usage): host code reads a DeviceScalar during a capture.
[[noreturn]] SYNCRUN_EXPORT void refuse_captured_value();

/// A call, as its thunk sees it.
class SYNCRUN_EXPORT WorkerCall {
 public:
  explicit WorkerCall(CommandLoop& core) noexcept : core_(&core) {}

  /// Moves to the next slice that this rank has to compute. Returns false after the last one. Skips slices without
  /// rows, unless the function has a communicator.
  bool next_slice();

  RawRows rows(std::size_t argument);           // scattered, sliced: rows of the current slice
  RawArray whole(std::size_t argument);         // broadcast, local
  RawUpdate update(std::size_t argument);       // for the current slice
  const void* value(std::size_t argument);      // value, per_worker: the value of this rank
  std::string_view text(std::size_t argument);  // text: in host memory, valid during the call
  ScalarPlaces scalar(std::size_t argument);    // device_scalar
  void* object();                               // `this` of a method
  CpuWorker& cpu_worker();
  CudaWorker& cuda_worker();
  Comm& comm();
  GradientReady& gradient_ready();
  GradientCount& gradient_count() noexcept { return gradient_count_; }

  /// Called when all parameters of the current slice are bound, before the body runs.
  void begin_body();
  /// Takes over an output of the current slice.
  void accept(std::size_t output, const OutputType& type, std::span<const std::int64_t> extents, OutputBuffer buffer);
  void accept_scalar(std::size_t output, const OutputType& type, const void* value);
  /// The same for a number in device memory.
  void accept_device_scalar(std::size_t output, const OutputType& type, const void* place);

  // For train steps.
  SliceRows slice_rows();
  /// Adds a slice to a mean (`avg`) or a sum. `into` holds the mean over the rows of the earlier slices, and `value` that
  /// over the rows of the current slice. Afterwards `into` holds the mean over all these rows.
  void add_slice(DType dtype, void* into, const void* value, std::size_t elements, Reduction reduction);
  /// From now on, Comm::avg weights each rank by its rows of all slices.
  void average_over_slices();
  /// These two are called before and after the body of a slice, if the body has a GradientReady&. All ranks call
  /// end_gradient. It returns true if the gradient has been averaged or summed over the ranks.
  void begin_gradient(DType dtype, void* gradient, std::size_t elements, GradientParts parts, Reduction reduction);
  bool end_gradient();
  /// The step writes parameters and state from here on. The host code of a graph that is replayed does not call it.
  void begin_update() noexcept;
  CommandLoop& core() noexcept { return *core_; }

  /// Runs the current slice of a replayable function, after its arguments have been bound. `run` calls the body and
  /// hands over its outputs. If a graph for the same addresses and shapes exists, the worker launches the graph
  /// instead.
  void replay(void (*run)(void* context), void* context, Capture capture);
  /// Called before: a graph is for this value of an argument only. `bytes`: the size of a value. 0: the argument is a text.
  void note_value(std::size_t argument, std::size_t bytes);
  /// Called before the first slice: a graph is for this state of object() only. Copies it.
  void note_state(std::span<const std::uint64_t> state);

  /// For construction thunks: the bytes of the arguments, and where to store the new object.
  std::span<const std::byte> construction_arguments();
  void keep_object(void* object, void (*destroy)(void* object) noexcept);

 private:
  CommandLoop* core_;
  GradientCount gradient_count_;
};

/// User code runs during the lifetime of this object. Its destructor ends the process if it is a child that the user
/// code has forked. So only the process that serves calls continues after it.
class BodyScope {
 public:
  BodyScope() = default;
  SYNCRUN_EXPORT ~BodyScope();
  BodyScope(const BodyScope&) = delete;
  BodyScope& operator=(const BodyScope&) = delete;
};

struct NamedRange;

/// A name for a range of addresses. If a thread of a worker crashes because it uses one of them, the error of the lost
/// worker says "it used NAME". Costs nothing otherwise.
class SYNCRUN_EXPORT NamedMemory {
 public:
  /// `name` is cut after 119 characters.
  NamedMemory(const void* begin, std::size_t bytes, std::string_view name);
  ~NamedMemory();
  NamedMemory(const NamedMemory&) = delete;
  NamedMemory& operator=(const NamedMemory&) = delete;

 private:
  NamedRange* range_;
};

// ---- collectives of a body --------------------------------------------------------------------------------------
//
// The members of Comm call these functions and describe what they do. All throw Error (usage) on every rank if the
// ranks disagree.

/// The parts of a Comm: the communicator, and the weights of the ranks in an average. Both outlive the Comm.
struct RawComm {
  CommCore* core;
  const RankWeights* weights;
};
/// The values that a rank contributes.
struct CommSource {
  const void* data;
  std::size_t elements;
  std::size_t element_bytes;
};
/// Where the result of a rank goes.
struct CommTarget {
  void* data;
  std::size_t elements;
};
/// The lengths of the ranks' parts, by rank, if the caller has passed them.
struct PartLengths {
  bool are_given = false;
  std::span<const std::int64_t> by_rank{};
};

/// Reduces values in device memory, in place.
SYNCRUN_EXPORT void all_reduce_bytes(const RawComm& comm, void* values, std::size_t elements, DType dtype,
                                     Reduction reduction);
/// Reduces one number in host memory, in place.
SYNCRUN_EXPORT void all_reduce_value(const RawComm& comm, void* value, DType dtype, Reduction reduction);
/// Reduces values in device memory to rank `root`.
SYNCRUN_EXPORT void reduce_bytes(const RawComm& comm, void* values, std::size_t elements, DType dtype,
                                 Reduction reduction, int root);
/// Reduces values in device memory and writes this rank's share to `part`. Throws Error (usage) if `part` does not have
/// the length of the share.
SYNCRUN_EXPORT void reduce_scatter_bytes(const RawComm& comm, void* values, std::size_t elements, CommTarget part,
                                         DType dtype, Reduction reduction);
/// Starts what reduce_scatter_bytes does. Returns the number of the collective for StartedCollective.
SYNCRUN_EXPORT std::uint64_t start_reduce_scatter_bytes(const RawComm& comm, void* values, std::size_t elements,
                                                        CommTarget part, DType dtype, Reduction reduction);
/// The same for all_gather_bytes, without lengths.
SYNCRUN_EXPORT std::uint64_t start_all_gather_bytes(const RawComm& comm, CommSource part, CommTarget all);
/// Comm::start_all_gather to pages of memory that the caller has reserved for this. On CPU devices of one node, whole pages
/// of a shared variable are mapped there and not copied. So no rank may write to its part, or free it, until all ranks
/// have used the pages. Writes to the pages stay in this process.
[[nodiscard]] SYNCRUN_EXPORT StartedCollective start_gather_into_pages(Comm& comm, CommSource part, CommTarget pages);
/// Copies values in device memory from rank `root` to all ranks.
SYNCRUN_EXPORT void broadcast_elements(const RawComm& comm, void* values, std::size_t elements, DType dtype, int root);
/// Gives every rank all parts. Without lengths, the parts are the ranks' shares. Throws Error (usage) if a part has
/// another length.
SYNCRUN_EXPORT void all_gather_bytes(const RawComm& comm, CommSource part, CommTarget all, PartLengths lengths);
/// Gives rank `root` all parts. Without lengths, the ranks exchange them. Throws Error (usage) if a part has another
/// length.
SYNCRUN_EXPORT void gather_bytes(const RawComm& comm, CommSource part, CommTarget all, int root, PartLengths lengths);
/// Divides rank `root`'s values into parts, one for each rank. Lengths are as for gather_bytes.
SYNCRUN_EXPORT void scatter_bytes(const RawComm& comm, CommSource all, CommTarget part, int root, PartLengths lengths);

// ---- verify -----------------------------------------------------------------------------------------------------

/// Registers state that Session::verify puts back. Called by the thread that serves calls.
SYNCRUN_EXPORT void add_state_keeper(StateKeeper& keeper);
/// Ends the registration.
SYNCRUN_EXPORT void remove_state_keeper(StateKeeper& keeper) noexcept;
/// Keeps, puts back or describes the state of the worker. Returns the descriptions.
SYNCRUN_EXPORT std::string change_worker_state(CpuWorker& worker, StateAction action);
/// The same on a CUDA device.
SYNCRUN_EXPORT std::string change_worker_state(CudaWorker& worker, StateAction action);

// ---- producers --------------------------------------------------------------------------------------------------

/// Returns a batch to fill. Waits until one of this producer's batches is free. Once the queue is closed, the number of
/// the returned batch is -1. Throws Error (usage) if the function itself holds all of this producer's batches.
SYNCRUN_EXPORT RawDraft next_draft(ProducerCore& producer);
/// Which rows of a batch a producer has filled: all, or those of its node (rows_here_of).
enum class FilledRows : std::uint8_t { all, rows_here };
/// Passes a batch to the consumer. `rows` has the number of rows of each array, or one number for all arrays. If it is
/// empty, all rows count. Throws Error (usage) if an array has fewer rows, or if the batch is -1.
SYNCRUN_EXPORT void push_draft(ProducerCore& producer, int batch, std::span<const std::int64_t> rows,
                               FilledRows filled);
/// The rows of a batch of so many rows that the ranks of this node read in an even division. All rows if only the first
/// node has producers. Throws Error (usage) if the number is negative.
SYNCRUN_EXPORT Slice rows_here_of(const ProducerCore& producer, std::int64_t rows);
/// Frees the place of a batch that was not pushed.
SYNCRUN_EXPORT void drop_draft(ProducerCore& producer, int batch) noexcept;
/// The number of this producer in its queue, from 0.
SYNCRUN_EXPORT int index_of(const ProducerCore& producer) noexcept;
/// The number of producers of the queue.
SYNCRUN_EXPORT int count_of(const ProducerCore& producer) noexcept;
/// The number of the node that this producer runs on.
SYNCRUN_EXPORT int node_of(const ProducerCore& producer) noexcept;
/// The random number generator of this producer, seeded from the session's seed and the producer's index.
SYNCRUN_EXPORT std::mt19937_64& rng_of(ProducerCore& producer) noexcept;

// ---- tasks ------------------------------------------------------------------------------------------------------

/// Sends a message to the master. Blocks while the pipe is full.
SYNCRUN_EXPORT void send_message(PipeCore& pipe, std::span<const std::byte> bytes);
/// Returns the next message of the master. Returns nothing once the master sends no more. Without a timeout, it waits
/// without a limit. With one, it throws Error (timeout) when that passes.
SYNCRUN_EXPORT std::optional<std::vector<std::byte>> receive_message(PipeCore& pipe,
                                                                     std::optional<std::chrono::milliseconds> timeout);

}  // namespace detail
}  // namespace syncrun

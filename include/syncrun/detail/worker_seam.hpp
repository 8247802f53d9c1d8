#pragma once

// The seam on the workers' side: everything that the templates of the public headers call in the library while they run in
// a worker, a producer or a task, or in any process. What the master calls is in master_seam.hpp. Users never name what stands
// here.

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
#include "syncrun/dtype.hpp"

namespace syncrun {

class Comm;
class CpuWorker;
class CudaWorker;
class GradientReady;

namespace detail {

class ArrayFile;
enum class GradientAverage : bool;
class OutputBuffer;
class PipeCore;
class ProducerCore;
class WorkerCore;
struct OutputType;
struct RawArray;
struct RawDraft;
struct RawRows;
struct RawUpdate;
struct SliceRows;
struct UpdateWork;
enum class UpdateKind : std::uint8_t;

// ---- any process ------------------------------------------------------------------------------------------------

/// Ends this process, with a message, if it is a worker (or a producer, or a task) that nobody has told so. Before a session
/// or a task is started: else every worker would run the program itself, and start workers of its own, without end.
SYNCRUN_EXPORT void refuse_in_worker();

/// Throws Error (usage) unless `count` values fill an array of these extents.
SYNCRUN_EXPORT void check_count(std::size_t count, std::span<const std::int64_t> extents);

/// Bytes of an array. Throws Error (usage) if an extent is negative or the size overflows.
SYNCRUN_EXPORT std::size_t checked_size(DType dtype, std::span<const std::int64_t> extents);

/// Throws Error (usage): the value at this position of an array is none of that element type.
[[noreturn]] SYNCRUN_EXPORT void refuse_value(DType to, std::size_t position, long double value);

/// Throws Error (usage) that names the hyperparameter unless the rule makes sense: all finite, rates and epsilons not
/// negative, decays from 0 to below 1, `step` from 1. `rule` is a struct of update_rules.hpp.
SYNCRUN_EXPORT void check_update_rule(UpdateKind kind, const void* rule);

/// Ordinary memory of this process, not initialised. Throws Error (system) if there is not enough.
SYNCRUN_EXPORT OutputBuffer allocate_on_heap(std::size_t bytes);

/// Opens a .npy file. Throws as read_npy.
SYNCRUN_EXPORT std::shared_ptr<const ArrayFile> open_npy(const std::filesystem::path& file, DType dtype,
                                                         std::size_t dimensions);
/// The extents of the array in it.
SYNCRUN_EXPORT std::span<const std::int64_t> extents_of(const ArrayFile& file) noexcept;
/// Reads all elements. Throws Error (system) if it cannot.
SYNCRUN_EXPORT void read_elements(const ArrayFile& file, void* values);

// ---- bodies on a worker -----------------------------------------------------------------------------------------

/// Zero-filled memory for an output of the running call, in shared memory. Throws Error (system) when memory runs out.
SYNCRUN_EXPORT OutputBuffer allocate_output(CpuWorker& worker, std::size_t bytes);
/// The same in device memory, cleared in stream order.
SYNCRUN_EXPORT OutputBuffer allocate_output(CudaWorker& worker, std::size_t bytes);

/// Throws Error (usage) unless every vector has as many elements as there are parameters.
SYNCRUN_EXPORT void check_update_lengths(UpdateKind kind, std::size_t params, std::size_t gradient,
                                         std::span<const std::size_t> state, std::span<const std::string_view> names);
/// Updates on the worker's device, on a CUDA device in stream order. Checks the rule where it is the host's: throws Error
/// (usage) if it makes no sense.
SYNCRUN_EXPORT void apply_update(WorkerCore& core, const UpdateWork& work);

/// One call, as its thunk sees it.
class SYNCRUN_EXPORT WorkerCall {
 public:
  explicit WorkerCall(WorkerCore& core) noexcept : core_(&core) {}

  /// Moves to the next slice this rank has to compute; false after the last. Slices without rows are passed over,
  /// unless the function has a communicator.
  bool next_slice();

  RawRows rows(std::size_t argument);        // scattered, sliced: of the current slice
  RawArray whole(std::size_t argument);      // broadcast, local
  RawUpdate update(std::size_t argument);    // of the current slice
  const void* value(std::size_t argument);   // value, per_worker: this rank's
  const void* scalar(std::size_t argument);  // device_scalar: in device memory
  void* object();                            // `this` of a method
  CpuWorker& cpu_worker();
  CudaWorker& cuda_worker();
  Comm& comm();
  GradientReady& gradient_ready();

  /// All parameters of the current slice are bound.
  void begin_body();
  /// Takes over an output of the current slice.
  void accept(std::size_t output, const OutputType& type, std::span<const std::int64_t> extents, OutputBuffer buffer);
  void accept_scalar(std::size_t output, const OutputType& type, const void* value);
  /// The same of a number in device memory.
  void accept_device_scalar(std::size_t output, const OutputType& type, const void* place);

  // Train steps.
  SliceRows slice_rows();
  /// into = the mean over the rows of the slices before, which it holds, and of the current slice, which `value` holds.
  void add_slice(DType dtype, void* into, const void* value, std::size_t elements);
  /// From here on Comm::avg counts each rank by its rows of all slices.
  void average_over_slices();
  /// Around the body of a slice that has a GradientReady&. end_gradient is called by all ranks: true if the gradient is
  /// averaged over them.
  void begin_gradient(DType dtype, void* gradient, std::size_t elements, GradientAverage average);
  bool end_gradient();
  WorkerCore& core() noexcept { return *core_; }

  /// The current slice of a replayable function, once its arguments are bound: `run` calls the body and hands over its
  /// outputs. Where a graph of the same arguments is there, that is launched instead.
  void replay(void (*run)(void* context), void* context);

  /// Construction thunks: the arguments' bytes, and where the new object goes.
  std::span<const std::byte> construction_arguments();
  void keep_object(void* object, void (*destroy)(void* object) noexcept);

 private:
  WorkerCore* core_;
};

/// The user's code runs while this lives. Only the process that serves comes out of it: a child that the code forked is
/// ended where this ends.
class BodyScope {
 public:
  BodyScope() = default;
  SYNCRUN_EXPORT ~BodyScope();
  BodyScope(const BodyScope&) = delete;
  BodyScope& operator=(const BodyScope&) = delete;
};

// ---- producers --------------------------------------------------------------------------------------------------

/// A batch of this producer's to fill. Waits until one is free; none (its number is -1) once the queue is closed. Throws
/// Error (usage) if the function holds all of them itself.
SYNCRUN_EXPORT RawDraft next_draft(ProducerCore& producer);
/// Hands a batch to the consumer. `rows`: how many of each array; one number for all of them; none: all rows. Throws Error
/// (usage) if there are not so many, or if the batch is -1.
SYNCRUN_EXPORT void push_draft(ProducerCore& producer, int batch, std::span<const std::int64_t> rows);
/// Gives the place of a batch that was not pushed back to the producer.
SYNCRUN_EXPORT void drop_draft(ProducerCore& producer, int batch) noexcept;
/// Which of the queue's producers this is, from 0.
SYNCRUN_EXPORT int index_of(const ProducerCore& producer) noexcept;
/// How many producers the queue has.
SYNCRUN_EXPORT int count_of(const ProducerCore& producer) noexcept;
/// Random numbers of this producer, seeded from the session's seed and its index.
SYNCRUN_EXPORT std::mt19937_64& rng_of(ProducerCore& producer) noexcept;

// ---- tasks ------------------------------------------------------------------------------------------------------

/// Sends the master a message. Blocks while the pipe is full.
SYNCRUN_EXPORT void send_message(PipeCore& pipe, std::span<const std::byte> bytes);
/// The next message of the master; nothing once it has no more. Without a timeout it waits for as long as it takes; else
/// throws Error (timeout).
SYNCRUN_EXPORT std::optional<std::vector<std::byte>> receive_message(PipeCore& pipe,
                                                                     std::optional<std::chrono::milliseconds> timeout);

}  // namespace detail
}  // namespace syncrun

#pragma once

// The seam on the master's side: everything that the templates of the public headers call in the library while they run in
// the master. What workers and their like call is in worker_seam.hpp. Users never name what stands here.
//
// Unless it says otherwise, a function throws Error (usage) if the session is closed, and blocks no longer than a lock.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun {

class AnyShared;
class Assignment;
enum class StepForm : std::uint8_t;
struct CallOptions;
struct CallProfile;
struct CollectiveOptions;
struct QueueOptions;
struct ScatterOptions;
struct SessionOptions;
struct Slice;
struct TaskOptions;

namespace detail {

class QueueCore;
class SessionCore;
class TaskCore;
struct ArrayPlace;
struct BatchArrayType;
struct Body;
struct CallResult;
struct DataRecord;
struct Delivery;
struct FunctionRecord;
struct HelperBody;
struct ObjectRecord;
struct OutputChoice;
struct RawArray;
struct SavedCheckpoint;
struct SignatureInfo;
struct VariableRecord;

using VariableList = std::span<const std::shared_ptr<VariableRecord>>;

/// Throws Error (usage): this handle was moved from. `type` is its type, such as "Data".
[[noreturn]] SYNCRUN_EXPORT void throw_moved_from(const char* type);

// ---- the program and its session --------------------------------------------------------------------------------

/// A program as run() hands it over: called with its context and the arguments of main, returns the exit code.
struct Program {
  int (*function)(const void* context, int argc, char** argv);
  const void* context;
};
/// Runs the program and turns what it throws into a message and an exit code. Throws nothing.
SYNCRUN_EXPORT int run_master(int argc, char** argv, const Program& program);

/// Starts the workers and waits until all are ready. Throws as Session's constructor.
SYNCRUN_EXPORT std::shared_ptr<SessionCore> open_session(const SessionOptions& options);
/// Waits for calls in flight, lets the workers end and reaps them. Throws what failed; the workers are gone in any case.
SYNCRUN_EXPORT void close_session(SessionCore& session);
/// Ends the workers at once, unless the session is closed already.
SYNCRUN_EXPORT void abandon_session(SessionCore& session) noexcept;
/// Waits for every call in flight. Throws the first failure among those whose future was dropped.
SYNCRUN_EXPORT void wait_all(SessionCore& session);
/// Waits for calls in flight. Throws Error (usage) where no profile is kept.
SYNCRUN_EXPORT std::vector<CallProfile> profile_of(SessionCore& session);
/// The names of the devices, by rank.
SYNCRUN_EXPORT const std::vector<std::string>& devices_of(const SessionCore& session) noexcept;
/// The process ids of the workers, by rank.
SYNCRUN_EXPORT std::vector<int> worker_pids_of(const SessionCore& session);

// ---- functions, objects and calls -------------------------------------------------------------------------------

/// Makes a function known to the workers. `name`: for messages; empty: that of its first body. `object`: of methods.
SYNCRUN_EXPORT std::shared_ptr<FunctionRecord> define_function(const std::shared_ptr<SessionCore>& session,
                                                               const SignatureInfo& signature,
                                                               std::span<const Body> bodies, std::string_view name,
                                                               std::shared_ptr<ObjectRecord> object);
/// For messages.
SYNCRUN_EXPORT const std::string& name_of(const FunctionRecord& function) noexcept;
/// As Function::describe.
SYNCRUN_EXPORT std::string describe(const FunctionRecord& function);

/// Builds an object on every worker: `arguments` are the bytes that the construction thunk decodes. Blocks. Throws what
/// failed.
SYNCRUN_EXPORT std::shared_ptr<ObjectRecord> replicate_object(const std::shared_ptr<SessionCore>& session,
                                                              std::span<const Body> bodies,
                                                              std::span<const std::byte> arguments,
                                                              std::string_view name);

/// What rows a scattered Data has: those that `batch` selects from, or the batch itself.
enum class DataRows : std::uint8_t { of_the_call, of_the_batch };

/// Checks one call, argument by argument, and publishes it. Nothing reaches a worker before publish().
class CallBuilder {
 public:
  /// `target`: a rank, or -1 for all. `choice`: the outputs that are wanted; null: all. Throws Error (usage) if the
  /// session is closed or used from two threads.
  SYNCRUN_EXPORT CallBuilder(const std::shared_ptr<FunctionRecord>& function, int target, const CallOptions& options,
                             const OutputChoice* choice = nullptr);
  SYNCRUN_EXPORT ~CallBuilder();
  CallBuilder(const CallBuilder&) = delete;
  CallBuilder& operator=(const CallBuilder&) = delete;

  // In the order of SignatureInfo::arguments.
  SYNCRUN_EXPORT void add_data(const std::shared_ptr<DataRecord>& data, DataRows rows = DataRows::of_the_call);
  SYNCRUN_EXPORT void add_value(const void* value, std::size_t bytes);
  SYNCRUN_EXPORT void add_per_worker(const void* values, std::size_t count, std::size_t bytes_each);
  SYNCRUN_EXPORT void add_variable(const std::shared_ptr<VariableRecord>& variable);

  /// Publishes and waits. Throws what failed.
  SYNCRUN_EXPORT void run(CallResult& result);
  /// Publishes; the result arrives when the session waits.
  SYNCRUN_EXPORT std::shared_ptr<CallResult> launch();

 private:
  struct State;
  State& state() noexcept;
  void check_assigned(const VariableRecord& variable, std::size_t argument);
  void put_bytes(const void* bytes, std::size_t count, std::size_t bytes_each);
  void publish();
  SessionCore* session_;
  FunctionRecord* function_;
  const CallOptions* options_;
  std::size_t arguments_ = 0;
  alignas(std::max_align_t) std::array<std::byte, 416> state_;  // a State; here, so that a call allocates nothing
};

/// Waits for a call launched earlier. Throws what failed.
SYNCRUN_EXPORT void wait_for(SessionCore& session, CallResult& result);
/// Whether wait_for would return, or throw, at once.
SYNCRUN_EXPORT bool is_ready(SessionCore& session, CallResult& result);

// ---- Data -------------------------------------------------------------------------------------------------------

/// A new array in shared memory, with these values; without any it is zero-filled. Throws Error: usage (negative extents, a
/// size that overflows), system (not enough memory).
SYNCRUN_EXPORT std::shared_ptr<DataRecord> make_data(const std::shared_ptr<SessionCore>& session, DType dtype,
                                                     std::span<const std::int64_t> extents, const void* values,
                                                     std::string_view name);
/// An array with the elements of a .npy file. Throws as Session::load.
SYNCRUN_EXPORT std::shared_ptr<DataRecord> load_data(const std::shared_ptr<SessionCore>& session,
                                                     const std::filesystem::path& file, DType dtype,
                                                     std::size_t dimensions, std::string_view name);
/// A .npy file itself, to be read. Throws as Session::map_npy.
SYNCRUN_EXPORT std::shared_ptr<DataRecord> map_data(const std::shared_ptr<SessionCore>& session,
                                                    const std::filesystem::path& file, DType dtype,
                                                    std::size_t dimensions, std::string_view name);
/// Gives an array these extents and values. Here and below, what changes an array waits for calls in flight that read it.
/// Throws Error: usage (it is a file, or open for writing), system (not enough memory).
SYNCRUN_EXPORT void set_data(DataRecord& record, std::span<const std::int64_t> extents, const void* values,
                             double oversize);
/// New values for whole rows, from `first_row` on. Throws Error (usage) if these are not rows, or are not there.
SYNCRUN_EXPORT void set_rows_of_data(DataRecord& record, std::int64_t first_row, std::size_t elements,
                                     const void* values);
/// Changes the extents; elements keep their place in row-major order, new ones are zero. Throws as set_data.
SYNCRUN_EXPORT void resize_data(DataRecord& record, std::span<const std::int64_t> extents, double oversize);
/// Gives the memory back. The array is left with zero rows.
SYNCRUN_EXPORT void free_data(DataRecord& record);
/// Where the elements are, and the extents.
SYNCRUN_EXPORT RawArray array_of(const DataRecord& record);
/// For messages; may be empty.
SYNCRUN_EXPORT const std::string& name_of(const DataRecord& record) noexcept;
/// Bytes of memory that it has, in use or not.
SYNCRUN_EXPORT std::size_t capacity_bytes_of(const DataRecord& record);
/// Throws Error (usage) unless there are such rows.
SYNCRUN_EXPORT void check_rows(const DataRecord& record, Slice rows);
/// Throws Error (usage) unless there is such an element. `is_beyond`: an unsigned index that is more than an int64 can be;
/// only its message needs it.
SYNCRUN_EXPORT void check_element(const DataRecord& record, std::span<const std::int64_t> index,
                                  std::span<const bool> is_beyond);
/// Opens an array for writing: until end_write, a call on it throws Error (usage). Throws as set_data.
SYNCRUN_EXPORT RawArray begin_write(DataRecord& record);
/// Ends what begin_write has opened.
SYNCRUN_EXPORT void end_write(DataRecord& record) noexcept;

// ---- shared variables -------------------------------------------------------------------------------------------

/// A new variable, without rows. Throws Error (usage) if a living one has this name.
SYNCRUN_EXPORT std::shared_ptr<VariableRecord> make_variable(const std::shared_ptr<SessionCore>& session, DType dtype,
                                                             std::size_t dimensions, std::string_view name);
/// The variable of that name. Throws Error (usage) if there is none, or if it has another type or number of dimensions.
SYNCRUN_EXPORT std::shared_ptr<VariableRecord> find_variable(const SessionCore& session, std::string_view name,
                                                             DType dtype, std::size_t dimensions);
/// The variables of a list, each once and of this session; else throws Error (usage). `what` asks for them.
SYNCRUN_EXPORT std::vector<std::shared_ptr<VariableRecord>> resolve(const SessionCore& session,
                                                                    std::span<const AnyShared> variables,
                                                                    const char* what);
/// The same for variables and what they are given.
SYNCRUN_EXPORT std::vector<Delivery> resolve(const SessionCore& session, std::span<const Assignment> assignments,
                                             const char* what);

// All that moves values blocks until it is done, and throws what failed. Every variable is checked before a worker moves.

/// Gives every rank the same values.
SYNCRUN_EXPORT void broadcast_values(std::span<const Delivery> deliveries);
/// Splits rows among the ranks, as evenly as possible, in rank order.
SYNCRUN_EXPORT void scatter_values(std::span<const Delivery> deliveries, const ScatterOptions& options);
/// Gives one rank values of these extents.
SYNCRUN_EXPORT void set_on_rank(VariableRecord& variable, int rank, std::span<const std::int64_t> extents,
                                const void* values);
/// Copies one rank's values, all of them, to `values`.
SYNCRUN_EXPORT void get_from_rank(VariableRecord& variable, int rank, void* values);
/// All ranks' values, one after the other. `values`: one array per variable, of the extents that gathered_extents says.
SYNCRUN_EXPORT void gather_to(VariableList variables, std::span<void* const> values);

/// Gives every rank the values, and the extents, of rank `root`.
SYNCRUN_EXPORT void broadcast_copies(VariableList variables, int root, const CollectiveOptions& options);
/// Reduces the copies; every rank gets the result.
SYNCRUN_EXPORT void all_reduce_copies(VariableList variables, Reduction reduction, const CollectiveOptions& options);
/// Reduces the copies to rank `root`. The other copies are undefined afterwards.
SYNCRUN_EXPORT void reduce_copies(VariableList variables, Reduction reduction, int root,
                                  const CollectiveOptions& options);
/// Reduces the copies, which stay. `values`: one array per variable, of the extents that common_extents says.
SYNCRUN_EXPORT void reduce_to_master(VariableList variables, Reduction reduction, const CollectiveOptions& options,
                                     std::span<void* const> values);
/// Reduces the copies; each rank gets its share of the rows of the result.
SYNCRUN_EXPORT void reduce_scatter_copies(VariableList variables, Reduction reduction,
                                          const CollectiveOptions& options);
/// Gives every rank all copies, one after the other.
SYNCRUN_EXPORT void all_gather_copies(VariableList variables, const CollectiveOptions& options);

/// The extents of one rank's copy. Throws Error (usage) if there is no such rank.
SYNCRUN_EXPORT Extents extents_of(const VariableRecord& variable, int rank);
/// The extents of all copies, by rank.
SYNCRUN_EXPORT const std::vector<Extents>& all_extents(const VariableRecord& variable);
/// The extents of all copies, one after the other. Throws Error (usage) if they differ behind the first.
SYNCRUN_EXPORT Extents gathered_extents(const VariableRecord& variable);
/// The extents of every copy. Throws Error (usage) if they differ; `what` asks for them.
SYNCRUN_EXPORT Extents common_extents(const VariableRecord& variable, const char* what);
/// For messages, and to find it by; may be empty.
SYNCRUN_EXPORT const std::string& name_of(const VariableRecord& variable) noexcept;

// ---- train steps ------------------------------------------------------------------------------------------------

/// How many elements each rank's copy is given: as many as its copy of another variable has, or its share of those.
enum class Zeros : bool { like_all, like_its_share };
/// Gives every rank's copy of `variable` zeros, as many as `like` and `zeros` say. Blocks. Throws what failed.
SYNCRUN_EXPORT void zero_like(VariableRecord& variable, const VariableRecord& like, Zeros zeros);
/// The name, or where a living variable has it, that with "#2", "#3", ...
SYNCRUN_EXPORT std::string unused_name(SessionCore& session, const std::string& name);
/// Throws Error (usage), with the variable's name, unless parameters and gradient are equally long on all ranks, and the
/// state as long as the form wants it.
SYNCRUN_EXPORT void check_step_variables(const VariableRecord& params, const VariableRecord& gradient,
                                         std::span<const VariableRecord* const> state, StepForm form);
/// The same of parameters that a step is to be made for.
SYNCRUN_EXPORT void check_step_params(const VariableRecord& params);
/// Whether every rank's copy has as many elements as its copy of the parameters.
SYNCRUN_EXPORT bool is_as_long_as(const VariableRecord& variable, const VariableRecord& params) noexcept;
/// Whether a rank has no copy of it while it has parameters: its worker is new.
SYNCRUN_EXPORT bool is_gone_somewhere(const VariableRecord& variable, const VariableRecord& params) noexcept;

// ---- files and checkpoints --------------------------------------------------------------------------------------

/// Writes one array to a .npy file. Throws as save.
SYNCRUN_EXPORT void save_array(const std::filesystem::path& file, const ArrayPlace& array);
/// Reads a .npy file into an array. Throws as load.
SYNCRUN_EXPORT void load_array(const std::filesystem::path& file, const ArrayPlace& array);

/// What was saved last in a folder. Throws as Checkpoint's constructor.
SYNCRUN_EXPORT std::shared_ptr<const SavedCheckpoint> open_checkpoint(const std::filesystem::path& folder);
/// The text of a value; null if there is none of that name.
SYNCRUN_EXPORT const std::string* find_value(const SavedCheckpoint& checkpoint, std::string_view name) noexcept;
/// The text of a value. Throws Error (usage) if there is none of that name, with those there are.
SYNCRUN_EXPORT const std::string& value_of(const SavedCheckpoint& checkpoint, std::string_view name);
/// Throws Error (usage): the text of a value is no number of the type that was asked for.
[[noreturn]] SYNCRUN_EXPORT void refuse_value(const SavedCheckpoint& checkpoint, std::string_view name);
/// The extents of an array. Throws Error (usage) unless there is one of that name, type and number of dimensions.
SYNCRUN_EXPORT Extents saved_extents(const SavedCheckpoint& checkpoint, std::string_view name, DType dtype,
                                     std::size_t dimensions);
/// Reads all elements of an array. Throws Error (system) if it cannot.
SYNCRUN_EXPORT void read_saved(const SavedCheckpoint& checkpoint, std::string_view name, void* values);
/// Loads arrays into Data and variables. Throws as Checkpoint::load.
SYNCRUN_EXPORT void load_arrays(const SavedCheckpoint& checkpoint, const std::vector<ArrayPlace>& arrays);

// ---- queues -----------------------------------------------------------------------------------------------------

/// Makes a queue and starts its producers. `types` and `shapes`: of a batch's arrays. Throws as Session::producers.
SYNCRUN_EXPORT std::shared_ptr<QueueCore> open_queue(const std::shared_ptr<SessionCore>& session,
                                                     const HelperBody& body, std::span<const std::byte> arguments,
                                                     int producers, std::span<const BatchArrayType> types,
                                                     std::span<const std::span<const std::int64_t>> shapes,
                                                     const QueueOptions& options);
/// Ends the producers at once, unless the queue is closed already.
SYNCRUN_EXPORT void abandon_queue(QueueCore& queue) noexcept;
/// Lets the producers end and reaps them. Throws as BatchQueue::close.
SYNCRUN_EXPORT void close_queue(QueueCore& queue);
/// The next batch, one record for each array; none at the end. Blocks. Throws as BatchQueue::next.
SYNCRUN_EXPORT std::vector<std::shared_ptr<DataRecord>> next_batch(QueueCore& queue);
/// For messages.
SYNCRUN_EXPORT const std::string& name_of(const QueueCore& queue) noexcept;
/// Batches that the producers may have in the queue.
SYNCRUN_EXPORT int capacity_of(const QueueCore& queue) noexcept;
/// The process ids of the producers, by index.
SYNCRUN_EXPORT std::vector<int> producer_pids_of(const QueueCore& queue);

// ---- tasks ------------------------------------------------------------------------------------------------------

/// Starts a task. Throws as task().
SYNCRUN_EXPORT std::shared_ptr<TaskCore> start_task(const HelperBody& body, const TaskOptions& options,
                                                    std::span<const std::byte> arguments);
/// Kills the process, with all that it has started, unless its result was taken.
SYNCRUN_EXPORT void abandon_task(TaskCore& task) noexcept;
/// Sends a message. Blocks while the pipe is full. Here and below, `timeout` is the deadline of this wait; 0: none; left
/// out: TaskOptions::timeout. Throws as Task::send.
SYNCRUN_EXPORT void send_to_task(TaskCore& task, std::span<const std::byte> bytes,
                                 std::optional<std::chrono::milliseconds> timeout);
/// The next message; nothing once the function has returned and all were received. Throws as Task::receive.
SYNCRUN_EXPORT std::optional<std::vector<std::byte>> receive_from_task(
    TaskCore& task, std::optional<std::chrono::milliseconds> timeout);
/// Whether receive_from_task would return at once.
SYNCRUN_EXPORT bool is_ready(TaskCore& task);
/// The task receives nothing more.
SYNCRUN_EXPORT void end_sending(TaskCore& task);
/// Waits for the function to return and for its process to end; the bytes of what it returned. Throws as Task::get.
SYNCRUN_EXPORT std::vector<std::byte> result_of(TaskCore& task, std::optional<std::chrono::milliseconds> timeout);
/// For messages.
SYNCRUN_EXPORT const std::string& name_of(const TaskCore& task) noexcept;
/// The process id.
SYNCRUN_EXPORT int pid_of(const TaskCore& task) noexcept;

}  // namespace detail
}  // namespace syncrun

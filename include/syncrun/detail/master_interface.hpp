#pragma once

// The interface on the master's side: the library functions that the templates of the public headers call in the master.
// worker_interface.hpp has those for workers, producers and tasks. Users never name anything in this header.
//
// Unless its comment says otherwise, a function throws Error (usage) if the session is closed, and blocks no longer
// than a lock requires.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun {

class AnyShared;
class Assignment;
class Device;
struct DeviceMemory;
enum class StepForm : std::uint8_t;
struct ParameterRange;
struct CallOptions;
struct CallProfile;
struct CollectiveOptions;
struct QueueOptions;
struct RankMetrics;
struct ScatterOptions;
struct SessionOptions;
struct Slice;
struct TaskOptions;
struct Verification;
struct VerifyOptions;

namespace detail {

// Types of the library, by their folders.
namespace master::records {
struct DataRecord;
struct FunctionRecord;
struct ObjectRecord;
struct VariableRecord;
}  // namespace master::records
namespace master::session {
class SessionCore;
}  // namespace master::session
namespace protocol {
class RankSet;
}  // namespace protocol
using master::records::DataRecord;
using master::records::FunctionRecord;
using master::records::ObjectRecord;
using master::records::VariableRecord;
using master::session::SessionCore;
using protocol::RankSet;

class KeptParts;
class QueueCore;
class TaskCore;
class VerifiedCall;
struct ArrayPlace;
struct BatchArrayType;
struct Body;
struct CallResult;
struct Delivery;
struct HelperBody;
struct OutputChoice;
struct RawArray;
struct SavedCheckpoint;
struct SignatureInfo;
struct StepLayout;
struct StepVectors;

using VariableList = std::span<const std::shared_ptr<VariableRecord>>;

/// Throws Error (usage): this handle was moved from. `type` is its type, such as "Data".
[[noreturn]] SYNCRUN_EXPORT void throw_moved_from(const char* type);

// ---- the program and its session --------------------------------------------------------------------------------

/// A program, as run() passes it on. `function` gets the context and the arguments of main, and returns the exit code.
struct Program {
  int (*function)(const void* context, int argc, char** argv);
  const void* context;
};
/// Runs the program. Converts an exception into a message and an exit code. Throws nothing.
SYNCRUN_EXPORT int run_master(int argc, char** argv, const Program& program);

/// The code behind on_stop(). Returns true if `call(callable, signal)` is called once, in a thread of its own. `call` then
/// owns the callable. Returns false in a worker.
SYNCRUN_EXPORT bool call_at_stop(void (*call)(void* callable, int signal), void* callable);

/// Starts the workers and waits until all are ready. Throws as Session's constructor.
SYNCRUN_EXPORT std::shared_ptr<SessionCore> open_session(const SessionOptions& options);
/// Waits for calls in flight, lets the workers end and reaps them. Throws as Session::close. The workers have ended in
/// any case.
SYNCRUN_EXPORT void close_session(SessionCore& session);
/// Ends the workers at once, unless the session is already closed.
SYNCRUN_EXPORT void abandon_session(SessionCore& session) noexcept;
/// Waits for all calls in flight. If calls failed whose futures were dropped, throws the first of these failures.
SYNCRUN_EXPORT void wait_all(SessionCore& session);
/// Returns the profile; see Session::profile. Waits for calls in flight. Throws Error (usage) if no profile is kept.
SYNCRUN_EXPORT std::vector<CallProfile> profile_of(SessionCore& session);
/// Returns the metrics; see Session::metrics. Waits for calls in flight. Throws Error (usage) if metrics are off.
SYNCRUN_EXPORT std::vector<RankMetrics> metrics_of(SessionCore& session);
/// The names of the devices, by rank.
SYNCRUN_EXPORT const std::vector<std::string>& devices_of(const SessionCore& session) noexcept;
/// The names of the machines, in the order of their ranks.
SYNCRUN_EXPORT const std::vector<std::string>& nodes_of(const SessionCore& session) noexcept;
/// The device with this name; see Session::device. The session may be closed.
SYNCRUN_EXPORT Device device_of(const SessionCore& session, std::string_view name);
/// The device of this rank; see Session::device. The session may be closed.
SYNCRUN_EXPORT Device device_of(const SessionCore& session, int rank);
/// See Session::set_weights.
SYNCRUN_EXPORT void set_weights(SessionCore& session, std::span<const double> weights);
/// See Session::weights.
SYNCRUN_EXPORT std::vector<double> weights_of(SessionCore& session);
/// How many calls Session::balance makes. Libraries load and caches fill in the first ones, which do not count.
inline constexpr std::size_t kBalanceWarmUpCalls = 2;
inline constexpr std::size_t kBalanceCalls = 5;
/// Sets the weights from what CallBuilder::measure has returned for each of kBalanceCalls calls, and returns them.
SYNCRUN_EXPORT std::vector<double> set_measured_weights(SessionCore& session,
                                                        std::span<const std::vector<double>> times_by_call);
/// The process ids of the workers, by rank.
SYNCRUN_EXPORT std::vector<int> worker_pids_of(const SessionCore& session);

// ---- functions, objects and calls -------------------------------------------------------------------------------

/// Registers a function with the workers. Messages use `name`; if it is empty, the name of the first body. `object` is
/// the object of a method, else null.
SYNCRUN_EXPORT std::shared_ptr<FunctionRecord> define_function(const std::shared_ptr<SessionCore>& session,
                                                               const SignatureInfo& signature,
                                                               std::span<const Body> bodies, std::string_view name,
                                                               std::shared_ptr<ObjectRecord> object);
/// The name that messages use.
SYNCRUN_EXPORT const std::string& name_of(const FunctionRecord& function) noexcept;
/// See Function::describe.
SYNCRUN_EXPORT std::string describe(const FunctionRecord& function);

/// Starts to construct an object on every worker. `arguments` are bytes that the construction thunk decodes. Calls of its
/// methods, and wait_all, throw the failure of the construction.
SYNCRUN_EXPORT std::shared_ptr<ObjectRecord> replicate_object(const std::shared_ptr<SessionCore>& session,
                                                              std::span<const Body> bodies,
                                                              std::span<const std::byte> arguments,
                                                              std::string_view name);

/// What an object needs after its construction on a worker that replaces a lost one. `advice` says what a program does.
struct ObjectHistory {
  explicit ObjectHistory(std::string text) : advice(std::move(text)) {}
  virtual ~ObjectHistory() = default;
  ObjectHistory(const ObjectHistory&) = delete;
  ObjectHistory& operator=(const ObjectHistory&) = delete;
  std::string advice;
};
/// Null at first. Otherwise, calls of the object's methods throw Error (usage) with the advice, from the replacement of a
/// worker until take_renewed().
SYNCRUN_EXPORT std::shared_ptr<ObjectHistory>& history_of(ObjectRecord& object) noexcept;
/// The ranks that have a new object since the last call. The caller repeats the history there.
SYNCRUN_EXPORT std::vector<int> take_renewed(ObjectRecord& object);
/// The history could not be repeated on these ranks.
SYNCRUN_EXPORT void put_back_renewed(ObjectRecord& object, const std::vector<int>& ranks);

/// Which rows a scattered Data holds: the rows that `batch` selects from, or those of the batch itself.
enum class DataRows : std::uint8_t { of_the_call, of_the_batch };

/// Checks one call, argument by argument, and publishes it. No worker sees anything of the call before publish().
class CallBuilder {
 public:
  /// `ranks` are the ranks that run the call; none means all. `choice` is the outputs that the caller wants; null means
  /// all. Throws Error (usage) if the session is closed or if two threads use it.
  SYNCRUN_EXPORT CallBuilder(const std::shared_ptr<FunctionRecord>& function, std::span<const int> ranks,
                             const CallOptions& options, const OutputChoice* choice = nullptr);
  SYNCRUN_EXPORT ~CallBuilder();
  CallBuilder(const CallBuilder&) = delete;
  CallBuilder& operator=(const CallBuilder&) = delete;

  // These functions add the arguments, in the order of SignatureInfo::arguments.
  SYNCRUN_EXPORT void add_data(const std::shared_ptr<DataRecord>& data, DataRows rows = DataRows::of_the_call);
  SYNCRUN_EXPORT void add_value(const void* value, std::size_t bytes);
  /// Empty: the caller has passed a null pointer.
  SYNCRUN_EXPORT void add_text(std::optional<std::string_view> text);
  SYNCRUN_EXPORT void add_per_worker(const void* values, std::size_t count, std::size_t bytes_each);
  SYNCRUN_EXPORT void add_variable(const std::shared_ptr<VariableRecord>& variable);

  /// Publishes the call and waits for its result. Throws if the call failed.
  SYNCRUN_EXPORT void run(CallResult& result);
  /// Publishes the call. Its result arrives during a later wait of the session.
  SYNCRUN_EXPORT std::shared_ptr<CallResult> launch();
  /// Runs the call with equal shares of the rows, and drops its result. Returns how long each rank has worked, in ns
  /// per row. Throws as run(), and Error (usage) if the time of a rank cannot be measured; see Session::balance.
  SYNCRUN_EXPORT std::vector<double> measure();

 private:
  struct State;
  State& state() noexcept;
  void check_assigned(const VariableRecord& variable, std::size_t argument);
  bool check_again();
  void find_rows();
  void put_bytes(const void* bytes, std::size_t count, std::size_t bytes_each);
  RankSet set_of(std::span<const int> ranks) const;
  void settle(VariableRecord& value);
  std::exception_ptr publish(CallResult& result);
  void check_rows_there();
  void check_measurable();
  std::exception_ptr take_dependencies();
  SessionCore* session_;
  FunctionRecord* function_;
  const CallOptions* options_;
  std::size_t arguments_ = 0;
  alignas(std::max_align_t) std::array<std::byte, 448> state_;  // contains a State, so that a call allocates no memory
};

/// Waits for a call that was launched earlier, and takes its result out of the future. Throws if the call failed. If
/// another thread is inside the session, throws Error (usage), and the future keeps the result.
SYNCRUN_EXPORT std::shared_ptr<CallResult> take_result(SessionCore& session, std::shared_ptr<CallResult>& future);
/// Whether take_result would return or throw at once.
SYNCRUN_EXPORT bool is_ready(SessionCore& session, CallResult& result);
/// Waits until one of the calls is over, and returns its position: the first one if several are over. A null stands for
/// a future whose result was fetched. Throws Error (usage) if all are null.
SYNCRUN_EXPORT std::size_t wait_any(SessionCore& session, std::span<CallResult* const> results);
/// Waits until all of the calls are over. Their errors stay with them.
SYNCRUN_EXPORT void wait_all(SessionCore& session, std::span<CallResult* const> results);
/// Waits for the calls in flight on this rank. Throws the first failure that only dropped futures have received.
SYNCRUN_EXPORT void synchronize(SessionCore& session, int rank);
/// The ranks of these devices, each once. Throws Error (usage) if there is none, or if a name occurs twice.
SYNCRUN_EXPORT std::vector<int> ranks_of(std::span<const Device> devices);

// ---- Data -------------------------------------------------------------------------------------------------------

/// Makes an array in shared memory with these values; without values, it is zero-filled. Throws Error: usage (an extent
/// is negative or the size overflows), system (not enough memory).
SYNCRUN_EXPORT std::shared_ptr<DataRecord> make_data(const std::shared_ptr<SessionCore>& session, DType dtype,
                                                     std::span<const std::int64_t> extents, const void* values,
                                                     std::string_view name);
/// Makes an array with the elements of a .npy file. Throws as Session::load.
SYNCRUN_EXPORT std::shared_ptr<DataRecord> load_data(const std::shared_ptr<SessionCore>& session,
                                                     const std::filesystem::path& file, DType dtype,
                                                     std::size_t dimensions, std::string_view name);
/// Maps a .npy file as a read-only array. Throws as Session::map_npy.
SYNCRUN_EXPORT std::shared_ptr<DataRecord> map_data(const std::shared_ptr<SessionCore>& session,
                                                    const std::filesystem::path& file, DType dtype,
                                                    std::size_t dimensions, std::string_view name);
/// Maps a file without a header as a read-only array. Throws as Session::map_raw.
SYNCRUN_EXPORT std::shared_ptr<DataRecord> map_raw_data(const std::shared_ptr<SessionCore>& session,
                                                        const std::filesystem::path& file, DType dtype,
                                                        std::span<const std::int64_t> extents,
                                                        std::int64_t offset_bytes, std::string_view name);
/// Gives an array these extents and values. This and the following functions that change an array wait for calls in
/// flight that read it. Throws Error: usage (the array is a mapped file, or is open for writing), system (not enough
/// memory).
SYNCRUN_EXPORT void set_data(DataRecord& record, std::span<const std::int64_t> extents, const void* values,
                             double oversize);
/// Stores new values in whole rows, from row `first_row` on. Throws Error (usage) if the values do not fill whole rows,
/// or if the array does not have these rows.
SYNCRUN_EXPORT void set_rows_of_data(DataRecord& record, std::int64_t first_row, std::size_t elements,
                                     const void* values);
/// Changes the extents. Elements keep their place in row-major order, and new elements are zero. Throws as set_data.
SYNCRUN_EXPORT void resize_data(DataRecord& record, std::span<const std::int64_t> extents, double oversize);
/// Frees the memory. The array then has zero rows.
SYNCRUN_EXPORT void free_data(DataRecord& record);
/// The address of the elements, and the extents.
SYNCRUN_EXPORT RawArray array_of(const DataRecord& record);
/// The extents of the whole array.
SYNCRUN_EXPORT const Extents& extents_of(const DataRecord& record);
/// The rows that the ranks of a node can read. Throws Error (usage) if there is no such node.
SYNCRUN_EXPORT Slice rows_of_node(const DataRecord& record, int node);
/// The name that messages use. Can be empty.
SYNCRUN_EXPORT const std::string& name_of(const DataRecord& record) noexcept;
/// The size of its memory in bytes, including the part that is not in use.
SYNCRUN_EXPORT std::size_t capacity_bytes_of(const DataRecord& record);
/// Throws Error (usage) if the array does not have these rows.
SYNCRUN_EXPORT void check_rows(const DataRecord& record, Slice rows);
/// Throws Error (usage) if the array does not have this element. `is_beyond` marks the unsigned indices that are too
/// large for an int64. Only the message uses it.
SYNCRUN_EXPORT void check_element(const DataRecord& record, std::span<const std::int64_t> index,
                                  std::span<const bool> is_beyond);
/// Opens an array for writing. Until end_write, a call with it throws Error (usage). Throws as set_data.
SYNCRUN_EXPORT RawArray begin_write(DataRecord& record);
/// Closes an array that begin_write has opened.
SYNCRUN_EXPORT void end_write(DataRecord& record) noexcept;

// ---- Values -----------------------------------------------------------------------------------------------------

/// Makes a Value with these values. It lies on the device, or in the memory of the host if `device` is null. Does not
/// wait for the copy to the device. Throws Error: usage (a bad extent, or a device of another session), system (not
/// enough memory).
SYNCRUN_EXPORT std::shared_ptr<VariableRecord> make_value(const std::shared_ptr<SessionCore>& session, DType dtype,
                                                          std::span<const std::int64_t> extents, const void* values,
                                                          const Device* device, std::string_view name);
/// The same with the values of a Data.
SYNCRUN_EXPORT std::shared_ptr<VariableRecord> make_value(const std::shared_ptr<SessionCore>& session,
                                                          const std::shared_ptr<DataRecord>& data, const Device* device,
                                                          std::string_view name);
// The functions below throw the failure of the call that was to make the value, or of the last call that wrote it if
// the program has not seen that failure.

/// Brings a copy to the device, unless it has one. Does not wait for it. Throws Error (usage) if the value is pinned to
/// another device.
SYNCRUN_EXPORT void bring_value(const std::shared_ptr<VariableRecord>& variable, const Device& device);
/// Brings a copy to the memory of the host. Waits only for the call that makes the value.
SYNCRUN_EXPORT void bring_value_to_host(const std::shared_ptr<VariableRecord>& variable);
/// The extents. Waits for the call that makes the value.
SYNCRUN_EXPORT std::array<std::int64_t, kMaxDimensions> extents_of_value(VariableRecord& variable);
/// Gives the value these values and extents. Does not wait for calls that use the value. Throws Error (system).
SYNCRUN_EXPORT void set_value(const std::shared_ptr<VariableRecord>& variable, std::span<const std::int64_t> extents,
                              const void* values);
/// Copies the values to `values`. Waits for the calls that write them.
SYNCRUN_EXPORT void get_value(const std::shared_ptr<VariableRecord>& variable, void* values);
/// The devices that have a valid copy, in the order of the ranks.
SYNCRUN_EXPORT std::vector<Device> devices_with(const VariableRecord& variable);
/// Whether the memory of the host has a valid copy.
SYNCRUN_EXPORT bool is_on_host(const VariableRecord& variable);
/// Names a value in messages.
SYNCRUN_EXPORT void set_name(VariableRecord& value, std::string_view name);
/// The value stays on this device. Brings a copy there. Throws as bring_value.
SYNCRUN_EXPORT void pin_value(const std::shared_ptr<VariableRecord>& variable, const Device& device);
/// The value moves back and forth on purpose, so no warning names it.
SYNCRUN_EXPORT void expect_moves(VariableRecord& variable);
/// Calls may move the value again.
SYNCRUN_EXPORT void unpin_value(VariableRecord& variable);
/// See Session::memory.
SYNCRUN_EXPORT DeviceMemory memory_of(SessionCore& session, const Device& device);
/// Throws the failure of a call if it is known already.
SYNCRUN_EXPORT void check_launched(SessionCore& session, const CallResult& result);

/// Whether the session replaces lost workers (OnWorkerLost::respawn).
SYNCRUN_EXPORT bool replaces_lost_workers(const SessionCore& session) noexcept;
/// If the value was lost with its worker, gives it these values again, as many as it had. They lie in the memory of the
/// host. Does nothing if the session is over, or if there is no memory for them.
SYNCRUN_EXPORT void restore_value(const std::shared_ptr<VariableRecord>& variable, const void* values) noexcept;

/// Checks the devices of easgd or downpour. Throws Error (usage) for a bad list of devices, or for rounds that are
/// negative. `what` names the rule.
SYNCRUN_EXPORT void check_rounds(const char* what, std::span<const Device> devices, std::int64_t rounds);
/// Checks the moving rate of easgd. Throws Error (usage) unless it is above 0 and at most 1.
SYNCRUN_EXPORT void check_moving_rate(double rate);

// ---- shared variables -------------------------------------------------------------------------------------------

/// Makes a variable without rows. Throws Error (usage) if a live variable has this name.
SYNCRUN_EXPORT std::shared_ptr<VariableRecord> make_variable(const std::shared_ptr<SessionCore>& session, DType dtype,
                                                             std::size_t dimensions, std::string_view name);
/// Returns the variable of that name. Throws Error (usage) if there is none, or if it has another element type or
/// number of dimensions.
SYNCRUN_EXPORT std::shared_ptr<VariableRecord> find_variable(const SessionCore& session, std::string_view name,
                                                             DType dtype, std::size_t dimensions);
/// Returns the variables of a list. Throws Error (usage) if the list is empty, or if a variable is unknown, occurs
/// twice or belongs to another session. `what` is the operation, for messages.
SYNCRUN_EXPORT std::vector<std::shared_ptr<VariableRecord>> resolve(const SessionCore& session,
                                                                    std::span<const AnyShared> variables,
                                                                    const char* what);
/// The same for variables and the values that they get. Throws Error (usage) also if element types or numbers of
/// dimensions differ.
SYNCRUN_EXPORT std::vector<Delivery> resolve(const SessionCore& session, std::span<const Assignment> assignments,
                                             const char* what);

// The functions that move values block until they are done, and throw if the operation failed. The master checks every
// variable before any worker does anything.

/// Gives every rank the same values.
SYNCRUN_EXPORT void broadcast_values(std::span<const Delivery> deliveries);
/// Divides rows among the ranks, as evenly as possible, in rank order.
SYNCRUN_EXPORT void scatter_values(std::span<const Delivery> deliveries, const ScatterOptions& options);
/// Gives one rank the selected rows.
SYNCRUN_EXPORT void set_on_rank(const Delivery& delivery, int rank, const ScatterOptions& options);
/// Makes an array for values whose extents are known only when they have come: a worker may be replaced meanwhile.
struct ArrayMaker {
  void* context = nullptr;
  void* (*function)(void* context, const Extents& extents) = nullptr;
  /// Makes the array, and returns where its elements go. May throw std::bad_alloc.
  void* make(const Extents& extents) const { return function(context, extents); }
};
template <Element T, std::size_t N>
ArrayMaker maker_of(Array<T, N>& array) noexcept {
  return {&array, [](void* context, const Extents& extents) -> void* {
            auto& made = *static_cast<Array<T, N>*>(context);
            made = Array<T, N>(to_shape<N>(extents));
            return made.data();
          }};
}
/// Copies all values of one rank to an array.
SYNCRUN_EXPORT void get_from_rank(VariableRecord& variable, int rank, const ArrayMaker& maker);
/// A fetch in flight. The result is an array.
struct Fetched {
  std::shared_ptr<SessionCore> session;
  std::shared_ptr<CallResult> result;
};
/// Starts to fetch all values of one rank.
SYNCRUN_EXPORT Fetched launch_get(const std::shared_ptr<VariableRecord>& variable, int rank);
/// Starts to fetch all values of a Value. Waits for the call that makes it.
SYNCRUN_EXPORT Fetched launch_get_value(const std::shared_ptr<VariableRecord>& variable);
/// Starts to copy the values of a rank to another rank. Throws Error (usage) if there are none.
SYNCRUN_EXPORT void copy_between_ranks(const std::shared_ptr<VariableRecord>& variable, int from, int to);
/// How the values of all ranks form one array: their rows one after the other, or with the ranks as the first dimension.
enum class Gathered : std::uint8_t { rows, stacked };
/// Copies all ranks' values to one array per variable.
SYNCRUN_EXPORT void gather_to(VariableList variables, Gathered form, std::span<const ArrayMaker> makers);

/// Gives every rank the values and the extents of rank `root`.
SYNCRUN_EXPORT void broadcast_copies(VariableList variables, int root, const CollectiveOptions& options);
/// Reduces the copies. Every rank gets the result.
SYNCRUN_EXPORT void all_reduce_copies(VariableList variables, Reduction reduction, const CollectiveOptions& options);
/// Reduces the copies to rank `root`. The other copies are undefined afterwards.
SYNCRUN_EXPORT void reduce_copies(VariableList variables, Reduction reduction, int root,
                                  const CollectiveOptions& options);
/// Reduces the copies to the master, without changing them, to one array per variable.
SYNCRUN_EXPORT void reduce_to_master(VariableList variables, Reduction reduction, const CollectiveOptions& options,
                                     std::span<const ArrayMaker> makers);
/// Reduces the copies. Each rank gets its share of the rows of the result.
SYNCRUN_EXPORT void reduce_scatter_copies(VariableList variables, Reduction reduction,
                                          const CollectiveOptions& options);
/// Gives every rank all copies, one after the other.
SYNCRUN_EXPORT void all_gather_copies(VariableList variables, const CollectiveOptions& options);

/// The extents of one rank's copy. Throws Error (usage) if the rank does not exist.
SYNCRUN_EXPORT Extents extents_of(const VariableRecord& variable, int rank);
/// The extents of all copies, by rank.
SYNCRUN_EXPORT std::vector<Extents> all_extents(const VariableRecord& variable);
/// The name, which messages and find_variable use. Can be empty.
SYNCRUN_EXPORT const std::string& name_of(const VariableRecord& variable) noexcept;

// ---- verify -----------------------------------------------------------------------------------------------------

/// Makes the call on one rank, on all ranks, with another division of the rows and with slices, and compares. Variables
/// and the state of workers are as before, also after an error. Throws as the verifier of Session::verify.
SYNCRUN_EXPORT Verification verify_call(SessionCore& session, const VerifiedCall& call, const VerifyOptions& options);

// ---- train steps ------------------------------------------------------------------------------------------------

/// How many elements each rank's copy gets: as many as its copy of another variable has, or its share of them.
enum class Zeros : bool { like_all, like_its_share };
/// Fills every rank's copy of `variable` with zeros. `like` and `zeros` determine how many. If `elements` is not negative,
/// it replaces the number of elements of `like`. Blocks. Throws if the operation failed.
SYNCRUN_EXPORT void zero_like(VariableRecord& variable, const VariableRecord& like, Zeros zeros,
                              std::int64_t elements = -1);
/// Fills the copy of each rank that has none, because its worker was replaced, with so many zeros. The copies of the others
/// stay as they are. Blocks. Throws if the operation failed.
SYNCRUN_EXPORT void zero_where_gone(VariableRecord& variable, std::int64_t elements);
/// Returns the name, or if a live variable has it, the name with "#2", "#3", ... appended.
SYNCRUN_EXPORT std::string unused_name(SessionCore& session, const std::string& name);
/// Throws Error (usage) with the variable's name unless parameters have equal lengths on all ranks, the gradient has those
/// of the range, or without one, of all parameters, and each state vector has the length that `form` requires.
SYNCRUN_EXPORT void check_step_variables(const VariableRecord& params, const VariableRecord& gradient,
                                         std::span<const VariableRecord* const> state, StepForm form,
                                         const std::optional<ParameterRange>& range);
/// The same check for the parameters of a new train step, and that the range is within them.
SYNCRUN_EXPORT void check_step_params(const VariableRecord& params, const std::optional<ParameterRange>& range);
/// The vectors of a step for a new layout of its parameters. `before.kept` has what the step keeps of parameters that it
/// does not train at present; null at first. Parameters that come back have what they had. New ones have the state zero
/// and no groups. `steps` is the number of steps so far. A parameter does not count the steps in which it was not trained.
/// Throws Error (usage) if the vectors do not have the length of their range.
SYNCRUN_EXPORT StepVectors move_parts(const StepVectors& before, const StepLayout& layout, std::int64_t steps);
/// The number of the layout of a variable of parameters. A step remembers it.
SYNCRUN_EXPORT std::int64_t layout_of(const VariableRecord& params);
/// Throws Error (usage) if the variable has another layout than the step `name`.
SYNCRUN_EXPORT void check_layout(const VariableRecord& params, std::int64_t layout, const std::string& name);
/// The layout has changed: from now on, steps that have not moved with it are errors.
SYNCRUN_EXPORT void raise_layout(VariableRecord& params);
/// Whether every rank's copy has as many elements as that rank's copy of another variable.
SYNCRUN_EXPORT bool is_as_long_as(const VariableRecord& variable, const VariableRecord& other);
/// Whether a rank has a copy of the parameters, but none of the variable. This happens after its worker was replaced.
SYNCRUN_EXPORT bool is_gone_somewhere(const VariableRecord& variable, const VariableRecord& params);

// ---- files and checkpoints --------------------------------------------------------------------------------------

/// Writes one array to a .npy file. Throws as save.
SYNCRUN_EXPORT void save_array(const std::filesystem::path& file, const ArrayPlace& array);
/// Reads a .npy file into an array. Throws as load.
SYNCRUN_EXPORT void load_array(const std::filesystem::path& file, const ArrayPlace& array);

/// Opens the last checkpoint of a folder. Throws as Checkpoint's constructor.
SYNCRUN_EXPORT std::shared_ptr<const SavedCheckpoint> open_checkpoint(const std::filesystem::path& folder);
/// Returns the text of a value; null if no value has that name.
SYNCRUN_EXPORT const std::string* find_value(const SavedCheckpoint& checkpoint, std::string_view name) noexcept;
/// Returns the text of a value. Throws Error (usage) if no value has that name; the message lists the names that exist.
SYNCRUN_EXPORT const std::string& value_of(const SavedCheckpoint& checkpoint, std::string_view name);
/// Throws Error (usage): the text of a value is not a number of the requested type.
[[noreturn]] SYNCRUN_EXPORT void refuse_value(const SavedCheckpoint& checkpoint, std::string_view name);
/// Returns the extents of an array. Throws Error (usage) if no array has that name, element type and number of
/// dimensions.
SYNCRUN_EXPORT Extents saved_extents(const SavedCheckpoint& checkpoint, std::string_view name, DType dtype,
                                     std::size_t dimensions);
/// Reads all elements of an array. Throws Error (system) if they cannot be read.
SYNCRUN_EXPORT void read_saved(const SavedCheckpoint& checkpoint, std::string_view name, void* values);
/// Loads arrays into Data and variables. Throws as Checkpoint::load.
SYNCRUN_EXPORT void load_arrays(const SavedCheckpoint& checkpoint, const std::vector<ArrayPlace>& arrays);

// ---- queues -----------------------------------------------------------------------------------------------------

/// Makes a queue and starts its producers. `types` and `shapes` describe the arrays of a batch. Throws as
/// Session::producers.
SYNCRUN_EXPORT std::shared_ptr<QueueCore> open_queue(const std::shared_ptr<SessionCore>& session,
                                                     const HelperBody& body, std::span<const std::byte> arguments,
                                                     int producers, std::span<const BatchArrayType> types,
                                                     std::span<const std::span<const std::int64_t>> shapes,
                                                     const QueueOptions& options);
/// Ends the producers at once, unless the queue is already closed.
SYNCRUN_EXPORT void abandon_queue(QueueCore& queue) noexcept;
/// Lets the producers end and reaps them. Throws as BatchQueue::close.
SYNCRUN_EXPORT void close_queue(QueueCore& queue);
/// Returns the next batch, as one record per array. Returns none at the end of the queue. Blocks. Throws as
/// BatchQueue::next.
SYNCRUN_EXPORT std::vector<std::shared_ptr<DataRecord>> next_batch(QueueCore& queue);
/// The name that messages use.
SYNCRUN_EXPORT const std::string& name_of(const QueueCore& queue) noexcept;
/// The number of batches that can exist at once.
SYNCRUN_EXPORT int capacity_of(const QueueCore& queue) noexcept;
/// The process ids of the producers, by index.
SYNCRUN_EXPORT std::vector<int> producer_pids_of(const QueueCore& queue);

// ---- tasks ------------------------------------------------------------------------------------------------------

/// Starts a task. Throws as task().
SYNCRUN_EXPORT std::shared_ptr<TaskCore> start_task(const HelperBody& body, const TaskOptions& options,
                                                    std::span<const std::byte> arguments);
/// Kills the process and all processes that it started, unless its result has been taken.
SYNCRUN_EXPORT void abandon_task(TaskCore& task) noexcept;
/// Sends a message. Blocks while the pipe is full. In this and the following functions, `timeout` is the deadline of
/// the wait. 0 means no deadline. Left out: TaskOptions::timeout. Throws as Task::send.
SYNCRUN_EXPORT void send_to_task(TaskCore& task, std::span<const std::byte> bytes,
                                 std::optional<std::chrono::milliseconds> timeout);
/// Returns the next message. Returns nothing once the function has returned and all its messages have been received.
/// Throws as Task::receive.
SYNCRUN_EXPORT std::optional<std::vector<std::byte>> receive_from_task(
    TaskCore& task, std::optional<std::chrono::milliseconds> timeout);
/// Whether receive_from_task would return or throw at once.
SYNCRUN_EXPORT bool is_ready(TaskCore& task);
/// Ends the messages to the task.
SYNCRUN_EXPORT void end_sending(TaskCore& task);
/// Waits until the function has returned and its process has ended. Returns the bytes of its result. Throws as
/// Task::get.
SYNCRUN_EXPORT std::vector<std::byte> result_of(TaskCore& task, std::optional<std::chrono::milliseconds> timeout);
/// The name that messages use.
SYNCRUN_EXPORT const std::string& name_of(const TaskCore& task) noexcept;
/// The process id.
SYNCRUN_EXPORT int pid_of(const TaskCore& task) noexcept;

}  // namespace detail
}  // namespace syncrun

#pragma once

// The untyped seam between the typed API (templates, compiled into the user's program) and the library: descriptions of
// signatures, the master's CallBuilder and the worker's WorkerCall. Users never name what stands here.

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/cuda_worker.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/gradient_ready.hpp"
#include "syncrun/options.hpp"
#include "syncrun/output.hpp"
#include "syncrun/worker.hpp"

namespace syncrun::detail {

class SessionCore;
struct DataRecord;
struct VariableRecord;
struct FunctionRecord;
struct ObjectRecord;

inline constexpr std::size_t kMaxArguments = 16;
inline constexpr std::size_t kMaxOutputs = 12;

enum class DeviceKind : std::uint8_t { cpu, cuda };

enum class ArgumentKind : std::uint8_t {
  scattered,
  broadcast,
  value,
  per_worker,
  local,
  sliced,
  update,
  device_scalar
};

/// One parameter the caller passes.
struct ArgumentType {
  ArgumentKind kind;
  DType dtype;
  Reduction reduction;
  std::uint8_t dimensions;
  std::uint32_t bytes;  // of a by-value parameter
};

struct OutputType {
  DType dtype;
  Reduction reduction;
  std::uint8_t dimensions;
};

/// A function or member function pointer as bytes (member pointers: Itanium C++ ABI 2.3).
struct BodyPointer {
  std::array<std::uintptr_t, 2> words{};
  bool is_member = false;
};

/// A slice, among this rank's rows of a call; a call without rows counts as one row.
struct SliceRows {
  std::int64_t before;
  std::int64_t count;
  bool is_last;
};

/// When a gradient is averaged: after the body, or in buckets as they are ready.
enum class GradientAverage : bool { whole, in_buckets };

class WorkerCall;
using Thunk = void (*)(WorkerCall& call, const BodyPointer& body);

/// Devices a body runs on. One that sees no array and asks for no worker does not mind.
enum class BodyDevice : std::uint8_t { cpu, cuda, any };
constexpr bool runs_on(BodyDevice body, DeviceKind device) noexcept {
  return body == BodyDevice::any || (body == BodyDevice::cuda) == (device == DeviceKind::cuda);
}

/// What a worker runs: the typed thunk of a signature and the user's function behind it.
struct Body {
  BodyDevice device = BodyDevice::cpu;
  Thunk thunk = nullptr;
  BodyPointer pointer{};
  bool is_replayable = false;
  std::size_t bucket_bytes = 0;  // of a train step
};

/// A signature at run time; the spans are static.
struct SignatureInfo {
  std::span<const ArgumentType> arguments;
  std::span<const OutputType> outputs;
  bool has_comm = false;
  std::span<const std::string_view> value_types;   // by argument: the type of a by-value one
  std::span<const std::string_view> output_names;  // fields of the result struct; empty where there is no name
};

inline constexpr std::uint32_t kAllOutputs = ~std::uint32_t{0};

/// Some of a function's outputs.
struct OutputChoice {
  std::uint32_t mask = kAllOutputs;               // a bit for each that is wanted
  std::array<std::uint8_t, kMaxOutputs> order{};  // as the caller named them
};

/// An array of unknown type: where, and how long in each dimension.
struct RawArray {
  void* data = nullptr;
  std::array<std::int64_t, kMaxDimensions> extents{};
  template <class T, std::size_t N>
  ArrayView<T, N> view() const noexcept {
    Shape<N> shape;
    for (std::size_t i = 0; i < N; ++i) shape[i] = extents[i];
    return {static_cast<T*>(data), shape};
  }
};

struct RawRows {
  RawArray rows;
  std::int64_t first_row = 0;
};

struct RawUpdate {
  RawArray original;
  RawArray value;
};

/// A reduced output on its way to the caller.
struct RawOutput {
  std::array<std::int64_t, kMaxDimensions> extents{};
  alignas(8) std::array<std::byte, 8> scalar{};  // dimensions == 0
  OutputBuffer buffer;                           // otherwise
};

/// Where the results of one call arrive.
struct CallResult {
  bool finished = false;
  std::exception_ptr error;
  std::vector<RawOutput> outputs;
};

/// What rows a scattered Data has: those that `batch` selects from, or the batch itself.
enum class DataRows : std::uint8_t { of_the_call, of_the_batch };

/// Master: checks one call, argument by argument, and publishes it. Nothing reaches a worker before publish().
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
SYNCRUN_EXPORT bool is_ready(SessionCore& session, CallResult& result);

SYNCRUN_EXPORT std::shared_ptr<FunctionRecord> define_function(const std::shared_ptr<SessionCore>& session,
                                                               const SignatureInfo& signature,
                                                               std::span<const Body> bodies, std::string_view name,
                                                               std::shared_ptr<ObjectRecord> object);
SYNCRUN_EXPORT const std::string& name_of(const FunctionRecord& function) noexcept;
SYNCRUN_EXPORT std::string describe(const FunctionRecord& function);

/// Builds an object on every worker: `arguments` are the bytes that the construction thunk decodes.
SYNCRUN_EXPORT std::shared_ptr<ObjectRecord> replicate_object(const std::shared_ptr<SessionCore>& session,
                                                              std::span<const Body> bodies,
                                                              std::span<const std::byte> arguments,
                                                              std::string_view name);

/// Worker: one call, as its thunk sees it.
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

/// Worker: the user's code runs while this lives. Only the process that serves comes out of it: a child that the code
/// forked is ended where this ends.
class SYNCRUN_EXPORT BodyScope {
 public:
  BodyScope() = default;
  ~BodyScope();
  BodyScope(const BodyScope&) = delete;
  BodyScope& operator=(const BodyScope&) = delete;
};

}  // namespace syncrun::detail

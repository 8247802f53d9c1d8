#pragma once

// Types that cross the untyped interface between the typed API (templates that are compiled into the user's program)
// and the library: descriptions of signatures, arrays of unknown type, results. master_interface.hpp and
// worker_interface.hpp have the functions of the interface. Users never name anything in this header.

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "syncrun/array.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"

namespace syncrun::detail {

// Types of the library, by their folders.
namespace master::records {
struct DataRecord;
struct VariableRecord;
}  // namespace master::records
using master::records::DataRecord;
using master::records::VariableRecord;

inline constexpr std::size_t kMaxArguments = 16;
inline constexpr std::size_t kMaxOutputs = 12;

enum class DeviceKind : std::uint8_t { cpu, cuda };
/// The last kind counts. Arrays by kind have this size.
inline constexpr std::size_t kDeviceKinds = static_cast<std::size_t>(DeviceKind::cuda) + 1;

enum class ArgumentKind : std::uint8_t {
  scattered,
  broadcast,
  value,
  per_worker,
  local,
  local_read,
  sliced,
  update,
  device_scalar,
  text
};

/// A parameter for which the caller passes an argument.
struct ArgumentType {
  ArgumentKind kind;
  DType dtype;
  Reduction reduction;
  std::uint8_t dimensions;
  std::uint32_t bytes;  // size of a by-value parameter, else 0
};

struct OutputType {
  DType dtype;
  Reduction reduction;
  std::uint8_t dimensions;
  bool is_kept = false;  // it stays on the device, and the caller gets a Value
};

/// True for a method that is const.
template <class Pointer>
inline constexpr bool kIsConstMethod = false;
template <class R, class C, class... P>
inline constexpr bool kIsConstMethod<R (C::*)(P...) const> = true;
template <class R, class C, class... P>
inline constexpr bool kIsConstMethod<R (C::*)(P...) const noexcept> = true;

/// A function pointer or member function pointer, as bytes (member function pointers: Itanium C++ ABI 2.3).
struct BodyPointer {
  std::array<std::uintptr_t, 2> words{};
  bool is_member = false;
  bool is_const = false;  // a method that does not change its object
};

/// The position of a slice among this rank's rows of a call. A call without rows counts as one row.
struct SliceRows {
  std::int64_t before;
  std::int64_t count;
  bool is_last;
  bool is_first;
};

/// When a gradient is averaged: as a whole after the body, or in buckets as soon as they are final.
enum class GradientParts : bool { whole, in_buckets };

class WorkerCall;
using Thunk = void (*)(WorkerCall& call, const BodyPointer& body);

/// The kind of device that a body runs on. A body without arrays and without a worker parameter runs on any.
enum class BodyDevice : std::uint8_t { cpu, cuda, any };
constexpr bool runs_on(BodyDevice body, DeviceKind device) noexcept {
  return body == BodyDevice::any || (body == BodyDevice::cuda) == (device == DeviceKind::cuda);
}

/// The code that a worker runs: the typed thunk of a signature, and the user's function that the thunk calls.
struct Body {
  BodyDevice device = BodyDevice::cpu;
  Thunk thunk = nullptr;
  BodyPointer pointer{};
  bool is_replayable = false;
  std::size_t bucket_bytes = 0;  // for train steps only
  bool is_step = false;          // a train step
  std::int64_t first = 0;        // for train steps only: the first element of the parameters that it trains
  /// For train steps: one bit for each argument of type Local that the body does not write, only the update after it.
  std::uint32_t written_by_update = 0;
};

/// A signature at run time. The spans refer to static memory.
struct SignatureInfo {
  std::span<const ArgumentType> arguments;
  std::span<const OutputType> outputs;
  bool has_comm = false;
  std::span<const std::string_view> value_types;   // by argument: the type name if it is passed by value
  std::span<const std::string_view> output_names;  // fields of the result struct; a name can be empty
};

inline constexpr std::uint32_t kAllOutputs = ~std::uint32_t{0};

/// A choice among a function's outputs.
struct OutputChoice {
  std::uint32_t mask = kAllOutputs;               // one bit for each chosen output
  std::array<std::uint8_t, kMaxOutputs> order{};  // the outputs, in the caller's order
};

/// An array of unknown type: its address and its extents.
struct RawArray {
  void* data = nullptr;
  Extents extents{};
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

/// Untyped memory with one owner, and the function that frees it.
class OutputBuffer {
 public:
  using Release = void (*)(void* data, void* context) noexcept;

  OutputBuffer() = default;
  OutputBuffer(void* data, std::size_t bytes, Release release, void* context) noexcept
      : data_(data), bytes_(bytes), release_(release), context_(context) {}
  OutputBuffer(OutputBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        release_(other.release_),
        context_(other.context_) {}
  OutputBuffer& operator=(OutputBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
    std::swap(context_, other.context_);
    return *this;
  }
  ~OutputBuffer() {
    if (data_ != nullptr) release_(data_, context_);
  }

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  const void* context() const noexcept { return context_; }
  /// Gives up the memory. The caller becomes its owner and must know how to free it.
  void* detach() noexcept { return std::exchange(data_, nullptr); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Release release_ = nullptr;
  void* context_ = nullptr;
};

/// A variable and the values that it gets: a Data, or else as many values as the extents say.
struct Delivery {
  std::shared_ptr<VariableRecord> variable;
  std::shared_ptr<DataRecord> data{};
  const void* values = nullptr;
  Extents extents{};
};

/// A reduced output on its way to the caller.
struct RawOutput {
  Extents extents{};
  alignas(8) std::array<std::byte, 8> scalar{};  // for dimensions == 0
  OutputBuffer buffer;                           // for arrays
};

/// The place where the result of one call arrives.
struct CallResult {
  /// The call has failed. It no longer counts.
  void fail(const std::exception_ptr& cause) noexcept {
    error = cause;
    if (const auto count = std::exchange(counted, nullptr)) --*count;
  }

  bool finished = false;
  std::exception_ptr error;
  std::vector<RawOutput> outputs;
  std::vector<std::shared_ptr<VariableRecord>> kept;  // by output: the Values that stay on the device
  std::shared_ptr<std::int64_t> counted;              // reduced by 1 if the call fails; may be null
};

}  // namespace syncrun::detail

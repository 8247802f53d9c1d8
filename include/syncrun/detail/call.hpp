#pragma once

// What crosses the untyped seam between the typed API (templates, compiled into the user's program) and the library:
// descriptions of signatures, arrays of unknown type, results. The functions of the seam are in master_seam.hpp and
// worker_seam.hpp. Users never name what stands here.

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

struct DataRecord;
struct VariableRecord;

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

/// Untyped memory with its one owner and the way to give it back.
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
  /// Gives the memory to a new owner, who knows how to free it.
  void* detach() noexcept { return std::exchange(data_, nullptr); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Release release_ = nullptr;
  void* context_ = nullptr;
};

/// A variable and what it is given: a Data, or else values of that many elements.
struct Delivery {
  std::shared_ptr<VariableRecord> variable;
  std::shared_ptr<DataRecord> data{};
  const void* values = nullptr;
  Extents extents{};
};

/// A reduced output on its way to the caller.
struct RawOutput {
  Extents extents{};
  alignas(8) std::array<std::byte, 8> scalar{};  // dimensions == 0
  OutputBuffer buffer;                           // otherwise
};

/// Where the results of one call arrive.
struct CallResult {
  bool finished = false;
  std::exception_ptr error;
  std::vector<RawOutput> outputs;
};

}  // namespace syncrun::detail

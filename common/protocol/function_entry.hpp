#pragma once

// Descriptions of replicated functions, which the workers read.

#include <array>
#include <cstdint>

#include "common/text/fixed_text.hpp"
#include "syncrun/detail/call.hpp"

namespace syncrun::detail::protocol {

/// An address in a loaded image, in a form from which every process with the same image can find the address. See
/// common/protocol/function_address.hpp.
struct ImageAddress {
  std::uint64_t offset;
  std::uint32_t build_id_bytes;
  std::array<std::uint8_t, 32> build_id;
  std::array<char, 512> path;
};

struct BodyEntry {
  bool is_member;
  bool is_relocated;  // `pointer` replaces the first of the words; otherwise the words are used as they are
  ImageAddress thunk;
  ImageAddress pointer;
  std::array<std::uint64_t, 2> words;
  std::uint64_t bucket_bytes;  // of a train step
  bool is_step;                // the body is a train step
  std::int64_t first;          // of a train step: the first element that it trains
};

/// A replicated function, as the master describes it for the workers. In the master's heap.
struct FunctionEntry {
  std::uint64_t id;
  std::array<char, 96> name;                   // may be cut; for `syncrun top`
  std::array<BodyEntry, kDeviceKinds> bodies;  // by DeviceKind
};

}  // namespace syncrun::detail::protocol

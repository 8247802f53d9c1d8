#pragma once

// Replicated functions as the workers find them.

#include <array>
#include <cstdint>

namespace syncrun::detail {

/// An address in a loaded image, as any process running the same image can find it again.
struct ImageAddress {
  std::uint64_t offset;
  std::uint32_t build_id_bytes;
  std::array<std::uint8_t, 32> build_id;
  std::array<char, 512> path;
};

struct BodyEntry {
  bool is_member;
  bool is_relocated;  // `pointer` is an address in an image; else words are taken as they are
  ImageAddress thunk;
  ImageAddress pointer;
  std::array<std::uint64_t, 2> words;
  std::uint64_t bucket_bytes;  // of a train step
};

/// A replicated function as the workers find it; in the master's heap.
struct FunctionEntry {
  std::uint64_t id;
  std::array<BodyEntry, 2> bodies;  // by DeviceKind
};

}  // namespace syncrun::detail

#pragma once

// The kinds of MPI messages of the transport.
//
// A transfer of bulk of less than kPieceBytes is one MPI message. MPI counts bytes with an int, so a longer transfer
// travels in pieces. Before them, its size travels in a message of its own kind. So the receiver always notices if the
// sender's transfer has another size, before it receives anything into the wrong memory.

#include <cstddef>

namespace syncrun::detail {

enum MpiTag : int {
  kMessageTag = 1,
  kBulkTag = 2,      // a transfer of bulk, or a piece of one
  kBulkSizeTag = 3,  // the size of a transfer in pieces: std::uint64_t
};

inline constexpr std::size_t kPieceBytes = std::size_t{64} << 20;

}  // namespace syncrun::detail

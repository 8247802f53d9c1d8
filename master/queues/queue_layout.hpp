#pragma once

// The memory of a queue: where its batches lie, and what its block contains at the start. The master and the agents of
// other nodes use it.

#include <cstdint>
#include <span>
#include <string>

#include "common/os/segment.hpp"
#include "common/protocol/queue_block.hpp"

namespace syncrun::detail::master::queues {

/// The layout of a queue with batches of such arrays. The caller fills in where the memory is. `name` is that of the
/// queue, for errors. Throws Error (usage) if the sizes overflow.
protocol::QueueLayout lay_out_batches(std::span<const BatchArrayType> types,
                                      std::span<const std::span<const std::int64_t>> shapes, int producers,
                                      int capacity, const std::string& name);

/// The bytes to allocate for the block of a queue.
std::size_t block_bytes_of(const protocol::QueueLayout& layout) noexcept;
/// The place of the block in that memory, which begins at this offset.
std::uint64_t block_offset_in(std::uint64_t memory) noexcept;
/// Writes the block of a new queue at `base`. All batches are free, in order. Each producer is starting.
protocol::QueueBlock prepare_block(std::byte* base, const protocol::QueueLayout& layout);

}  // namespace syncrun::detail::master::queues

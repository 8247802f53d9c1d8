#include "master/queues/queue_layout.hpp"

#include <algorithm>
#include <cstring>

#include "common/arrays/extents.hpp"
#include "common/os/sign_of_life.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::master::queues {

namespace {

constexpr std::size_t kArrayAlignment = 64;

constexpr std::size_t round_up_to(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

}  // namespace

protocol::QueueLayout lay_out_batches(std::span<const BatchArrayType> types,
                                      std::span<const std::span<const std::int64_t>> shapes, int producers,
                                      int capacity, const std::string& name) {
  protocol::QueueLayout layout{};
  layout.producers = producers;
  layout.capacity = capacity;
  layout.arrays_count = static_cast<std::uint32_t>(types.size());
  std::size_t batch_bytes = 0;
  for (std::size_t i = 0; i < types.size(); ++i) {
    protocol::BatchArray& array = layout.arrays[i];
    array.type = types[i];
    array.bytes = arrays::checked_bytes(types[i].dtype, shapes[i]);
    array.offset = batch_bytes;
    std::copy(shapes[i].begin(), shapes[i].end(), array.extents.begin());
    if (__builtin_add_overflow(batch_bytes, round_up_to(array.bytes, kArrayAlignment), &batch_bytes)) {
      text::throw_usage("the size of a batch of '" + name + "' overflows");
    }
  }
  layout.batch_bytes = batch_bytes;
  std::size_t memory_bytes = 0;
  if (__builtin_mul_overflow(batch_bytes, static_cast<std::size_t>(capacity), &memory_bytes)) {
    text::throw_usage("the size of the queue of '" + name + "' overflows");
  }
  return layout;
}

std::size_t block_bytes_of(const protocol::QueueLayout& layout) noexcept {
  return protocol::QueueBlock::bytes(layout.producers, layout.capacity) + protocol::QueueBlock::kAlignment;
}

std::uint64_t block_offset_in(std::uint64_t memory) noexcept {
  return round_up_to(memory, protocol::QueueBlock::kAlignment);
}

protocol::QueueBlock prepare_block(std::byte* base, const protocol::QueueLayout& layout) {
  std::memset(base, 0, protocol::QueueBlock::bytes(layout.producers, layout.capacity));
  const protocol::QueueBlock block(base);
  static_cast<protocol::QueueLayout&>(block.header()) = layout;
  for (int producer = 0; producer < layout.producers; ++producer) os::initialise_life(block.producer(producer).life);
  for (int batch = 0; batch < layout.capacity; ++batch) block.note_freed(batch);
  return block;
}

}  // namespace syncrun::detail::master::queues

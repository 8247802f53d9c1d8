#include "worker/devices/host_comm.hpp"

#include <algorithm>
#include <utility>

#include "common/os/segment.hpp"

namespace syncrun::detail::worker::devices {

HostComm::~HostComm() {
  if (room_ != 0) arena_.free(room_, os::SharedHeap::Giveback::later);
}

// ---- the room -------------------------------------------------------------------------------------------------

/// Returns memory of the arena, where the peers read this rank's values and may write the result. The same memory is
/// used for all collectives. Waits for peers that may still use it for an earlier command.
std::byte* HostComm::room_for(std::size_t bytes) {
  node_.reclaim_buffers();
  if (bytes > room_bytes_ || room_ == 0) {
    memory_.finish();  // the device may still copy from the old memory
    if (room_ != 0) arena_.free(std::exchange(room_, 0), os::SharedHeap::Giveback::later);
    room_bytes_ = 0;
    const std::size_t larger = std::max(bytes, comm::CpuComm::kSmallBytes);
    room_ = arena_.allocate(larger, os::SharedHeap::Contents::any, "a collective through shared memory");
    room_bytes_ = larger;
  }
  return segment_.at(room_);
}

/// Copies values to the room. When it returns, the values are there, and no earlier copy from the room is left.
void HostComm::copy_out(std::byte* to, const void* values, std::size_t bytes) {
  memory_.copy_out(to, values, bytes);
  memory_.finish();
}

/// Copies values to the beginning of the room, and returns it.
std::byte* HostComm::bring(const void* values, std::size_t bytes) {
  std::byte* const room = room_for(bytes);
  copy_out(room, values, bytes);
  return room;
}

// ---- reductions -----------------------------------------------------------------------------------------------

void HostComm::all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                          const comm::RankWeights& weights) {
  const std::size_t bytes = elements * size_of(dtype);
  std::byte* const room = bring(values, bytes);
  host_.all_reduce(room, elements, dtype, reduction, weights);
  memory_.copy_in(values, room, bytes);
}

void HostComm::reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                      const comm::RankWeights& weights, int root) {
  const std::size_t bytes = elements * size_of(dtype);
  std::byte* const room = bring(values, bytes);
  host_.reduce(room, elements, dtype, reduction, weights, root);
  if (rank() == root) memory_.copy_in(values, room, bytes);
}

void HostComm::reduce_scatter(void* values, void* part, const comm::Division& division, DType dtype,
                              Reduction reduction, const comm::RankWeights& weights) {
  std::byte* const room = bring(values, division.all_bytes());
  std::byte* const own = room + division.begin_bytes(rank());
  host_.reduce_scatter(room, own, division, dtype, reduction, weights);
  memory_.copy_in(part, own, division.bytes(rank()));
}

// ---- moves ----------------------------------------------------------------------------------------------------

void HostComm::broadcast(void* values, std::size_t elements, DType dtype, int root) {
  const bool is_root = rank() == root;
  const std::size_t bytes = elements * size_of(dtype);
  std::byte* const room = room_for(bytes);
  copy_out(room, values, is_root ? bytes : 0);
  host_.broadcast(room, elements, dtype, root);
  if (!is_root) memory_.copy_in(values, room, bytes);
}

void HostComm::all_gather(const void* part, void* all, const comm::Division& division) {
  std::byte* const room = room_for(division.all_bytes());
  std::byte* const own = room + division.begin_bytes(rank());
  copy_out(own, part, division.bytes(rank()));
  host_.all_gather(own, room, division);
  memory_.copy_in(all, room, division.all_bytes());
}

/// Only the root has room for all parts.
void HostComm::gather(const void* part, void* all, const comm::Division& division, int root) {
  const bool is_root = rank() == root;
  std::byte* const room = room_for(is_root ? division.all_bytes() : division.bytes(rank()));
  std::byte* const own = is_root ? room + division.begin_bytes(rank()) : room;
  copy_out(own, part, division.bytes(rank()));
  host_.gather(own, room, division, root);
  if (is_root) memory_.copy_in(all, room, division.all_bytes());
}

void HostComm::scatter(const void* all, void* part, const comm::Division& division, int root) {
  const bool is_root = rank() == root;
  std::byte* const room = room_for(is_root ? division.all_bytes() : division.bytes(rank()));
  std::byte* const own = is_root ? room + division.begin_bytes(rank()) : room;
  copy_out(room, all, is_root ? division.all_bytes() : 0);
  host_.scatter(room, own, division, root);
  memory_.copy_in(part, own, division.bytes(rank()));
}

std::int64_t HostComm::agree(std::int64_t own) {
  host_.all_reduce_value(&own, DType::int64, Reduction::min, {});
  return own;
}

}  // namespace syncrun::detail::worker::devices

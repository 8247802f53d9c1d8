#include "worker/call/call_updates.hpp"

#include <utility>

#include "common/arrays/extents.hpp"

namespace syncrun::detail::worker::call {

RawUpdate CallUpdates::update(std::size_t argument) {
  const protocol::ArgumentSlot& slot = slices_.command().arguments[argument];
  const protocol::VariableCopy& copy = attachment_.own_copy(slot.offset);
  Pending& pending = pending_[argument];
  pending.bytes = arrays::elements_in({copy.extents.data(), slot.dimensions}) * size_of(slot.dtype);
  if (pending.value == nullptr) {
    pending.value = memory_.allocate(pending.bytes, os::SharedHeap::Contents::zero, "an update");
  } else {
    memory_.clear(pending.value, pending.bytes);
  }
  pending.is_written = true;
  recordings_.note_argument(memory_.at(copy.place), copy.extents);
  recordings_.note_argument(pending.value, {});
  arguments_ |= 1U << argument;
  return {{memory_.at(copy.place), copy.extents}, {pending.value, copy.extents}};
}

void CallUpdates::add_slice() {
  for (std::size_t i = 0; i < slices_.call().arguments_count; ++i) {
    Pending& update = pending_[i];
    if ((arguments_ >> i & 1U) == 0 || !update.is_written) continue;
    update.is_written = false;
    const protocol::ArgumentSlot& slot = slices_.command().arguments[i];
    const std::size_t elements = update.bytes / size_of(slot.dtype);
    if (slices_.rows() == 0) continue;  // a rank without rows does not count
    const arrays::ElementTypes types{slot.dtype, slices_.type_over_slices(slot.dtype)};
    if (update.rows == 0 && types.from == types.to) {
      std::swap(update.total, update.value);
    } else if (update.rows == 0) {
      const std::size_t bytes = elements * size_of(types.to);
      update.total = memory_.allocate(bytes, os::SharedHeap::Contents::any, "an update over slices");
      arithmetic_.convert(types, update.value, update.total, elements);
    } else {
      arithmetic_.accumulate(slot.dtype, slot.reduction, update.total, update.value,
                             weights_of(update.rows, slices_.rows()), elements);
    }
    update.rows += slices_.rows();
  }
}

void CallUpdates::commit() {
  if (arguments_ == 0) return;
  for (std::size_t i = 0; i < slices_.call().arguments_count; ++i) {
    Pending& update = pending_[i];
    if (update.rows == 0 || update.total == nullptr) continue;
    const protocol::ArgumentSlot& slot = slices_.command().arguments[i];
    void* const to = memory_.at(attachment_.own_copy(slot.offset).place);
    const arrays::ElementTypes types{slices_.type_over_slices(slot.dtype), slot.dtype};
    if (types.from == types.to) memory_.copy_within(to, update.total, update.bytes);
    else arithmetic_.convert(types, update.total, to, update.bytes / size_of(slot.dtype));
  }
  memory_.finish();
}

void CallUpdates::discard() noexcept {
  for (auto& update : pending_) {
    if (update.total != nullptr) memory_.release(update.total);
    if (update.value != nullptr) memory_.release(update.value);
    update = Pending{};
  }
}

}  // namespace syncrun::detail::worker::call

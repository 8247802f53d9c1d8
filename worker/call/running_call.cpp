#include "worker/call/running_call.hpp"

namespace syncrun::detail::worker::call {

RunningCall::RunningCall(const process::Attachment& attachment, const devices::DeviceParts& device,
                         devices::Communicators& comms, MappedFiles& files, comm::OutgoingMemory& outgoing,
                         VariableCopies& variables) noexcept
    : attachment_(attachment),
      comms_(comms),
      slices_(attachment),
      outputs_(attachment, device, outgoing, variables, slices_),
      recordings_(attachment, device, slices_, outputs_, gradient_),
      inputs_(attachment, device, files, slices_, recordings_),
      updates_(attachment, device, slices_, recordings_),
      is_gpu_(device.is_gpu()) {}

void RunningCall::begin(const protocol::Command& command, std::uint64_t id) {
  may_have_updated_ = is_gpu_;  // a graph does not tell the host when it updates
  inputs_.begin(id);
  recordings_.begin();
  updates_.begin();
  slices_.begin(command, id);
  if (attachment_.totals != nullptr) [[unlikely]]
    attachment_.totals->note_call(slices_.share_rows(), body_entry().is_step);
  comm_ = &comms_.of(command);
  // In a body's first run, libraries may load code and thereby wait for the device. During this time, the device must
  // not wait for a peer.
  gradient_.start_buckets(slices_.call().is_first ? BucketStart::after_body : BucketStart::when_ready);
  user_comm_.emplace(*comm_, slices_.weights());
}

const protocol::BodyEntry& RunningCall::body_entry() const noexcept {
  return attachment_.body_of(*attachment_.segment.at<const protocol::FunctionEntry>(slices_.call().function));
}

bool RunningCall::next_slice() {
  updates_.finish_slice();
  if (!slices_.next()) return false;
  recordings_.begin_slice();
  // Arguments are bound within the phase `function`. Profiles and metrics record another phase for this, until the body
  // begins.
  attachment_.slot().progress.store(protocol::progress_word(slices_.id(), protocol::Phase::function),
                                    std::memory_order_release);
  attachment_.note(slices_.id(), binds_arguments() ? protocol::Phase::inputs : protocol::Phase::function);
  attachment_.fault_point(slices_.id(), protocol::Phase::function);
  return true;
}

void RunningCall::end(std::uint64_t command) {
  outputs_.end(command);
  updates_.end();
}

void RunningCall::discard() noexcept {
  outputs_.discard();
  updates_.discard();
}

void RunningCall::average_over_slices() {
  inputs_.check_files();  // the average changes the parameters of every rank
  slices_.weigh_by_call();
}

/// The gradient is reduced in buckets only if all ranks have one slice. With more slices, the gradient is incomplete
/// until the last one is added.
void RunningCall::begin_gradient(const GradientPlace& place, GradientParts parts, Reduction reduction) {
  std::size_t bucket_bytes = 0;
  if (parts == GradientParts::in_buckets && slices_.is_one_slice() && comm_->has_background()) {
    slices_.weigh_by_rank();
    bucket_bytes = body_entry().bucket_bytes;  // with which the body of the train step was made
  }
  gradient_.begin(*comm_, reduction == Reduction::sum ? slices_.equal_weights() : slices_.weights(), place,
                  bucket_bytes);
}

}  // namespace syncrun::detail::worker::call

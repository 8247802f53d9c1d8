#include "worker/attachment.hpp"

#include <cstdlib>
#include <utility>

#include "common/environment.hpp"
#include "common/errors.hpp"
#include "worker/parent_link.hpp"

namespace syncrun::detail {

namespace {

/// Its tie to the master, and whether it fits. What goes wrong from here on the master can read.
void join(const Attachment& attachment, FileDescriptor socket) {
  const auto& header = attachment.control.header();
  WorkerSlot& slot = attachment.slot();
  slot.progress.store(progress_word(0, Phase::attach));
  try {
    attachment.fault_point(0, Phase::attach);
    live_while_open(std::move(socket), &slot.life);
    check_image(header.build_id_bytes, header.build_id);
  } catch (...) {
    put_text(slot.reason, describe_current_exception());
    slot.start.store(StartState::failed, std::memory_order_seq_cst);
    throw;
  }
}

}  // namespace

std::optional<Attachment> attach_if_worker() {
  if (std::getenv(environment::kWorkerRank) == nullptr) return std::nullopt;
  die_with(std::stoi(take_variable(environment::kMasterPid)));

  Attachment attachment;
  attachment.rank = std::stoi(take_variable(environment::kWorkerRank));
  attachment.phase_hook = phase_hook_of(attachment.rank);
  attachment.fault_point(0, Phase::spawn);
  attachment.device = take_variable(environment::kDevice);
  attachment.segment =
      Segment::attach(take_descriptor(environment::kSegmentFd), std::stoull(take_variable(environment::kSegmentBytes)));
  FileDescriptor socket = take_descriptor(environment::kSocketFd);

  const auto& header = *attachment.segment.at<ControlHeader>(0);
  if (header.magic != kMagic) throw Error(ErrorKind::system, "the session's shared memory speaks another protocol");
  attachment.world_size = static_cast<int>(header.world_size);
  attachment.control = ControlBlock(attachment.segment.base(), attachment.world_size);
  if (header.timelines_offset != 0) {
    attachment.timeline = attachment.segment.at<Timeline>(header.timelines_offset) + attachment.rank;
  }
  join(attachment, std::move(socket));
  return attachment;
}

}  // namespace syncrun::detail

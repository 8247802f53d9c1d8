#include "worker/attachment.hpp"

#include <cstdlib>

#include "common/environment.hpp"
#include "common/errors.hpp"
#include "worker/parent_link.hpp"

namespace syncrun::detail {

std::optional<Attachment> attach_if_worker() {
  if (std::getenv(environment::kWorkerRank) == nullptr) return std::nullopt;
  die_with(std::stoi(take_variable(environment::kMasterPid)));

  Attachment attachment;
  attachment.rank = std::stoi(take_variable(environment::kWorkerRank));
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

  WorkerSlot& slot = attachment.slot();
  slot.progress.store(progress_word(0, Phase::start));
  live_while_open(std::move(socket), &slot.life);
  check_image(header.build_id_bytes, header.build_id);
  return attachment;
}

}  // namespace syncrun::detail

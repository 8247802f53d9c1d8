#include "worker/place/attachment.hpp"

#include <string>
#include <utility>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"
#include "worker/place/parent_link.hpp"
#include "worker/place/parentage.hpp"

namespace syncrun::detail {

namespace {

/// Starts to watch the master, and checks that this process runs the master's image. The master can read errors from
/// here on.
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
  if (!is_called_worker()) return std::nullopt;
  Parentage parentage = take_parentage();
  die_with(parentage.master);

  Attachment attachment;
  attachment.rank = static_cast<int>(take_number(environment::kWorkerRank, kMaxWorldSize - 1));
  attachment.phase_hook = phase_hook_of(attachment.rank);
  attachment.fault_point(0, Phase::spawn);
  attachment.device = take_variable(environment::kDevice);
  attachment.segment = take_segment();

  const auto& header = *attachment.segment.at<ControlHeader>(0);
  attachment.world_size = static_cast<int>(header.world_size);
  attachment.place = header.place;
  if (attachment.rank >= attachment.world_size) {
    environment::throw_bad_value(environment::kWorkerRank, std::to_string(attachment.rank),
                                 "a rank of the master's session, which has " + std::to_string(attachment.world_size));
  }
  attachment.control = ControlBlock(attachment.segment.base(), attachment.world_size);
  if (header.timelines_offset != 0) {
    attachment.timeline = attachment.segment.at<Timeline>(header.timelines_offset) + attachment.rank;
  }
  join(attachment, std::move(parentage.socket));
  return attachment;
}

}  // namespace syncrun::detail

#include "worker/process/attachment.hpp"

#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"
#include "worker/process/parent_link.hpp"
#include "worker/process/parentage.hpp"

namespace syncrun::detail::worker::process {

namespace {

std::int64_t now_ns() noexcept { return std::chrono::steady_clock::now().time_since_epoch().count(); }

/// The master knows the pid of the wrapper only. Throws Error (usage) if the wrapper has run the program before, because a
/// rank has one worker.
void note_pid(const Attachment& attachment) {
  std::int32_t nobody = 0;
  if (attachment.slot().pid.compare_exchange_strong(nobody, ::getpid())) return;
  text::throw_usage("--wrap: expected a command that runs the program once, but it has started the worker of rank " +
                    std::to_string(attachment.rank) + " again, while or after process " + std::to_string(nobody) +
                    " was this worker");
}

/// Starts to watch the master, and checks that this process runs the master's image. The master can read errors from
/// here on.
void join(const Attachment& attachment, os::FileDescriptor socket) {
  const auto& header = attachment.control.header();
  protocol::WorkerSlot& slot = attachment.slot();
  slot.progress.store(protocol::progress_word(0, protocol::Phase::attach));
  try {
    attachment.fault_point(0, protocol::Phase::attach);
    live_while_open(std::move(socket), &slot.life);
    check_image(header.build_id_bytes, header.build_id);
  } catch (...) {
    text::put_text(slot.reason, text::describe_current_exception());
    slot.start.store(protocol::StartState::failed, std::memory_order_seq_cst);
    throw;
  }
}

}  // namespace

void Attachment::record(std::uint64_t command, protocol::Phase phase) const noexcept {
  const std::int64_t now = now_ns();
  if (timeline != nullptr) timeline->add(protocol::progress_word(command, phase), now);
  if (totals != nullptr) totals->enter(phase, now);
}

std::optional<Attachment> attach_if_worker() {
  if (!is_called_worker()) return std::nullopt;
  Parentage parentage = take_parentage();
  die_with(parentage.parent, parentage.parent == parentage.master ? ParentIs::master : ParentIs::wrapper);

  Attachment attachment;
  attachment.rank = static_cast<int>(take_number(environment::kWorkerRank, protocol::kMaxWorldSize - 1));
  attachment.phase_hook = protocol::phase_hook_of(attachment.rank);
  attachment.fault_point(0, protocol::Phase::spawn);
  attachment.device = take_variable(environment::kDevice);
  attachment.segment = take_segment();

  const auto& header = *attachment.segment.at<protocol::ControlHeader>(0);
  attachment.world_size = static_cast<int>(header.world_size);
  attachment.place = header.place;
  if (attachment.rank >= attachment.world_size) {
    environment::throw_bad_value(environment::kWorkerRank, std::to_string(attachment.rank),
                                 "a rank of the master's session, which has " + std::to_string(attachment.world_size));
  }
  attachment.control = protocol::ControlBlock(attachment.segment.base(), attachment.world_size);
  if (header.timelines_offset != 0) {
    attachment.timeline = attachment.segment.at<protocol::Timeline>(header.timelines_offset) + attachment.rank;
  }
  if (parentage.is_wrapped) note_pid(attachment);
  if (header.totals_offset != 0) {
    attachment.totals = attachment.segment.at<protocol::RankTotals>(header.totals_offset) + attachment.rank;
    attachment.totals->begin(now_ns());
  }
  attachment.is_recorded = attachment.timeline != nullptr || attachment.totals != nullptr;
  join(attachment, std::move(parentage.socket));
  return attachment;
}

}  // namespace syncrun::detail::worker::process

#pragma once

// Collectives among the GPUs of a session, in the order of the worker's stream: through NCCL, and small all_reduces through
// the peers' memory.
//
// A communicator is made when it is first needed, and again after a call that failed while it could have been in use:
//
//   none --ensure()--> made --a call with collectives fails on any rank (header.failed_comm)--> none
//
// Every rank sees the same failures before its next collective, since calls with collectives end with a vote.

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include "worker/collectives.hpp"
#include "worker/cuda/background_stream.hpp"
#include "worker/cuda/collective_plan.hpp"
#include "worker/cuda/owners.hpp"
#include "worker/cuda/peer_memory.hpp"
#include "worker/rendezvous.hpp"

namespace syncrun::detail {

/// Throws Error (usage) if the stream is being captured: what the host does would be done only once. `advice`: instead.
void refuse_in_capture(cudaStream_t stream, const char* what, const char* advice);
/// Of all_reduce of a number.
void refuse_number_in_capture(cudaStream_t stream);
/// Of exchange.
void refuse_exchange_in_capture(cudaStream_t stream);

class NcclComm final : public CommCore {
 public:
  /// `host`: for what the host needs to know at once (numbers, barriers). `rendezvous`: where peers meet to set up what they
  /// share.
  NcclComm(const Attachment& attachment, CpuComm& host, Rendezvous& rendezvous, const Interruption& interruption);
  ~NcclComm() override { abort(); }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// `before_abort`: ends the graphs that hold collectives of this communicator, which it would wait for.
  /// `make_room`: gives memory back to the device that is only kept.
  void use(cudaStream_t stream, std::function<void()> before_abort, std::function<void()> make_room) {
    stream_ = stream;
    before_abort_ = std::move(before_abort);
    peers_.use(std::move(make_room));
  }

  int rank() const noexcept override { return host_.rank(); }
  int world_size() const noexcept override { return host_.world_size(); }
  void begin(const Command& command) override {
    host_.begin(command);
    host_command_ = command.id;
  }
  void prepare() override {
    drop_stale();  // what a body needs of it was made when it ran for the first time, before it was captured
    plan_.enter_command();
    is_pending_ = true;  // a graph's collectives are not noted one by one
  }
  /// What follows belongs to the reduction of outputs: all ranks have come through the body, and voted.
  void begin_after_vote() noexcept { plan_.begin_after_vote(); }
  /// Makes sure that NCCL's next operation needs no set-up. Called by all ranks.
  void ensure();
  std::int64_t agree(std::int64_t own) override;
  std::uint64_t generation() const noexcept override { return generation_; }
  void barrier() override { host_.barrier(); }
  void all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                  const RankWeights& weights) override;
  void reduce(void* values, std::size_t elements, DType dtype, Reduction reduction, const RankWeights& weights,
              int root) override;
  void reduce_scatter(void* values, void* part, const Division& division, DType dtype, Reduction reduction,
                      const RankWeights& weights) override;
  void broadcast(void* values, std::size_t bytes, int root) override;
  void all_gather(const void* part, void* all, const Division& division) override;
  void gather(const void* part, void* all, const Division& division, int root) override;
  void scatter(const void* all, void* part, const Division& division, int root) override;
  void exchange(std::span<const std::int64_t> own, std::span<std::int64_t> all) override;
  void all_reduce_value(void* value, DType dtype, Reduction reduction, const RankWeights& weights) override;
  bool has_background() const noexcept override { return true; }
  void start_average(void* values, std::size_t elements, DType dtype, const RankWeights& weights,
                     std::size_t first) override;
  void join_started() override { background_.join(stream_); }
  void begin_group() override;
  void end_group() override;
  void drop_group() noexcept override;
  void enter() override { host_.enter(); }
  void leave() noexcept override { host_.leave(); }

  /// Collectives of this command have been put on the stream and not been waited for.
  bool is_pending() const noexcept { return is_pending_; }
  using Wait = CollectivePlan::Wait;
  /// Tells the peers, and whoever looks at this worker, what it is about to wait for.
  void note_waiting(Wait wait) noexcept;
  /// While it waits: throws Error (usage) if the ranks have come to different collectives, Error (nccl) if NCCL failed.
  void check_progress();
  void note_finished() noexcept { is_pending_ = false; }
  /// Ends collectives that peers do not come to any more.
  void abort() noexcept;
  /// After that: returns when nothing is left beside the worker's stream.
  void abandon_background() noexcept {
    background_.abandon();
    peers_.end_release();
  }
  /// Whether there has been anything beside the worker's stream.
  bool has_used_background() const noexcept { return background_.is_made(); }

 private:
  /// While this rank waits for its peers on the host, to set something up.
  class SettingUp {
   public:
    explicit SettingUp(CollectivePlan& plan) noexcept : plan_(plan) { plan_.publish_setting_up(); }
    ~SettingUp() { plan_.end_setting_up(); }
    SettingUp(const SettingUp&) = delete;
    SettingUp& operator=(const SettingUp&) = delete;

   private:
    CollectivePlan& plan_;
  };
  class InBackground;

  void meet_to_set_up(MeetingPurpose purpose);
  void drop_stale() noexcept;
  bool goes_through_peers(std::size_t bytes);
  ncclUniqueId agreed_id();
  bool average_by_copies(void* values, std::size_t elements, DType dtype, const RankWeights& weights,
                         std::uint64_t division);
  void average(void* values, std::size_t elements, DType dtype, const RankWeights& weights);
  ncclRedOp_t begin_average(void* values, std::size_t elements, DType dtype, const RankWeights& weights);
  /// With what the collective that used the operation returned.
  void end_average(ncclRedOp_t op, ncclResult_t code, const char* what);
  void check(ncclResult_t code, const char* what);
  void note(CollectiveKind kind, std::size_t elements, DType dtype, Reduction reduction, int root,
            std::uint64_t division = 0);
  void note_moves(CollectiveKind kind, const Division& division, int root);
  /// An all_reduce, on as many multiprocessors as it wants, or on few. `division`: what else ranks agree on.
  void all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction, const RankWeights& weights,
                  kernels::Breadth breadth, std::uint64_t division);
  void copy_own(void* to, const void* from, std::size_t bytes);
  void meet_before_first(CollectiveKind kind, const Division& division, int root);

  const Attachment& attachment_;
  CpuComm& host_;
  Rendezvous& rendezvous_;
  const WaitLimits limits_;  // of a rendezvous
  std::function<void()> before_abort_;
  StreamView stream_;  // that collectives go to: the worker's, or the background's
  BackgroundStream background_;
  PeerMemory peers_;
  std::uint64_t replacements_;  // of workers, that peers_ knows of
  Communicator comm_;
  std::uint64_t made_at_ = 0;  // the command that comm_ or peers_ was made in, whichever came last
  std::set<std::pair<CollectiveKind, int>>
      connected_;  // gathers and scatters, by root, that all ranks have taken part in
  std::uint64_t generation_ = 0;
  std::uint64_t host_command_ = 0;  // the last that has collectives of its own
  CollectivePlan plan_;             // what has been put on the streams
  bool is_in_group_ = false;
  bool is_pending_ = false;
};

}  // namespace syncrun::detail

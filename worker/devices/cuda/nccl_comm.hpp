#pragma once

// Collectives among a set of GPUs, in the order of the worker's stream. NCCL runs most of them. Among all GPUs of a
// session on one node, small all_reduces go through the memory of peers. Among nodes with several GPUs each, all_reduces
// have three steps (reduction_by_node.hpp).
//
// A communicator is made when it is first needed. It is made anew after a call failed that could have used it:
//
//   none --ensure()--> made --a call with collectives of this set fails on any rank (header.failed_comms)--> none
//
// Calls with collectives end with a vote. So every rank of the set sees the same failures before its next collective.

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker/comm/collectives.hpp"
#include "worker/comm/end_if_stuck.hpp"
#include "worker/devices/cuda/background_stream.hpp"
#include "worker/devices/cuda/collective_plan.hpp"
#include "worker/devices/cuda/node_facts.hpp"
#include "worker/devices/cuda/owners.hpp"
#include "worker/devices/cuda/peer_memory.hpp"
#include "worker/devices/cuda/reduction_by_node.hpp"
#include "worker/devices/device.hpp"

namespace syncrun::detail::worker::devices::cuda {

/// Throws Error (usage) if the stream is being captured, because the host's part of `what` would run only once.
/// `advice` says what to do instead.
void refuse_in_capture(cudaStream_t stream, const char* what, const char* advice);
/// The same for all_reduce of a number on the host.
void refuse_number_in_capture(cudaStream_t stream);
/// The same for exchange.
void refuse_exchange_in_capture(cudaStream_t stream);

/// What the communicators of one GPU have in common.
struct GpuCommParts {
  const DeviceContext& device;  // its host_comm is for values that the host needs at once (numbers, barriers)
  CollectivePlan& plan;         // what has been put on the streams
  StreamView stream;            // the worker's
  MemoryPool& pool;             // returns unused memory to the device
  /// Destroys all graphs, because the abort of a communicator would wait for those that contain its collectives.
  std::function<void()> before_abort;
  /// Memory of the device for work on the worker's stream. It may be released once this work is on the stream.
  std::function<OutputBuffer(std::size_t bytes)> allocate;
};

class NcclComm final : public comm::CommCore {
 public:
  /// The communicator of these ranks, which all have GPUs. This rank must be one of them. `choice` is that of commands
  /// that use the communicator.
  NcclComm(GpuCommParts parts, const protocol::RankSet& ranks, protocol::CommChoice choice);
  ~NcclComm() override { abort(); }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  /// Here, a rank, a peer and a root are positions among the ranks of the communicator.
  int rank() const noexcept override { return rank_; }
  int world_size() const noexcept override { return ranks_.count(); }
  /// The position of a rank of the session.
  int position_of(int session_rank) const noexcept { return ranks_.position_of(session_rank); }
  void begin(const protocol::Command& command) override;
  void prepare() override {
    drop_stale();  // the body's first run, which was not captured, has set up what it needs
    plan_.enter_command();
    is_pending_ = true;  // the collectives in a graph are not noted one by one
  }
  /// From here on, collectives belong to the reduction of outputs. All ranks have completed the body and voted.
  void begin_after_vote() noexcept { plan_.begin_after_vote(); }
  /// Makes sure that NCCL's next operation needs no setup. Called by all ranks.
  void ensure();
  void forget_captured() noexcept override { plan_.restart(); }
  std::int64_t agree(std::int64_t own) override;
  void barrier() override { host_.barrier(); }
  void all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                  const comm::RankWeights& weights) override;
  void reduce(void* values, std::size_t elements, DType dtype, Reduction reduction, const comm::RankWeights& weights,
              int root) override;
  void reduce_scatter(void* values, void* part, const comm::Division& division, DType dtype, Reduction reduction,
                      const comm::RankWeights& weights) override;
  void broadcast(void* values, std::size_t elements, DType dtype, int root) override;
  void all_gather(const void* part, void* all, const comm::Division& division) override;
  void gather(const void* part, void* all, const comm::Division& division, int root) override;
  void scatter(const void* all, void* part, const comm::Division& division, int root) override;
  void exchange(std::span<const std::int64_t> own, std::span<std::int64_t> all) override;
  void all_reduce_value(void* value, DType dtype, Reduction reduction, const comm::RankWeights& weights) override;
  bool has_background() const noexcept override { return true; }
  void start_average(void* values, std::size_t elements, DType dtype, const comm::RankWeights& weights,
                     std::size_t first) override;
  void join_started() override { background_.join(stream_); }
  std::uint64_t start_all_gather(const void* part, void* all, const comm::Division& division) override;
  std::uint64_t start_reduce_scatter(void* values, void* part, const comm::Division& division, DType dtype,
                                     Reduction reduction, const comm::RankWeights& weights) override;
  void join(std::uint64_t started) override;
  void begin_group() override;
  void end_group() override;
  void drop_group() noexcept override;
  void enter() override { host_.enter(); }
  void count(std::size_t bytes) noexcept override { host_.count(bytes); }
  void set_label(std::string_view text) noexcept override { host_.set_label(text); }
  void leave() noexcept override { host_.leave(); }

  /// Whether collectives of this command are on the stream and finish() has not waited for them yet.
  bool is_pending() const noexcept { return is_pending_; }
  using Wait = CollectivePlan::Wait;
  /// Publishes what this worker is about to wait for, for its peers and for reports on this worker.
  void note_waiting(Wait wait) noexcept;
  /// Called while the worker waits. Throws Error (usage) if the ranks have reached different collectives, and Error
  /// (nccl) if NCCL failed.
  void check_progress();
  void note_finished() noexcept { is_pending_ = false; }
  /// Ends what a failed call, or a lost worker, has made unusable. Called before each collective, and may be called between
  /// commands.
  void drop_stale() noexcept;
  /// Ends collectives that a peer will not join any more.
  void abort() noexcept;
  /// Called after abort(). Returns when no work is left on the background stream.
  void abandon_background() noexcept {
    background_.abandon();
    peers_.end_release();
  }
  /// Whether the background stream has ever been used.
  bool has_used_background() const noexcept { return background_.is_made(); }

 private:
  /// Exists while this rank waits for its peers on the host to set something up.
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
  /// What NCCL reduces: the values of the caller or, in their place, keys.
  struct Operand {
    void* values;
    DType dtype;
    OutputBuffer memory;  // of keys that have more bytes than the values
  };
  /// Keys that become the caller's values.
  struct KeysOfResult {
    Operand operand;
    const void* from;
    void* to;
    DType dtype;
    std::size_t elements;
  };

  void meet_to_set_up(protocol::MeetingPurpose purpose);
  bool goes_through_peers(std::size_t bytes);
  ncclUniqueId agreed_id();
  void exchange_facts();
  void make_steps_by_node();
  void check_connecting(ncclResult_t code, const char* what) const;
  bool average_by_copies(void* values, std::size_t elements, DType dtype, const comm::RankWeights& weights,
                         std::uint64_t bucket);
  void reduce_by_nccl(void* values, std::size_t elements, DType dtype, Reduction reduction,
                      const comm::RankWeights& weights);
  Operand operand_for(void* values, std::size_t elements, DType dtype, Reduction reduction);
  void give_result(KeysOfResult result);
  ncclRedOp_t begin_average(void* values, std::size_t elements, DType dtype, const comm::RankWeights& weights,
                            const Communicator& comm);
  /// Ends an average. `code` is what the collective that used `op` returned.
  void end_average(ncclRedOp_t op, const Communicator& comm, ncclResult_t code, const char* what);
  std::string describe(ncclResult_t code, const char* what) const;
  void check(ncclResult_t code, const char* what) const;
  /// `division` is Division::fingerprint, or 0 if nothing is divided. If a vector is averaged in buckets, `bucket` is 1 +
  /// the element at which the bucket begins. Otherwise it is 0.
  void note(protocol::CollectiveKind kind, std::size_t elements, DType dtype, Reduction reduction, int root,
            std::uint64_t division = 0, std::uint64_t bucket = 0);
  void note_moves(protocol::CollectiveKind kind, const comm::Division& division, int root);
  /// An all_reduce on as many multiprocessors as `breadth` says. `bucket` is as for note().
  void all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                  const comm::RankWeights& weights, kernels::Breadth breadth, std::uint64_t bucket);
  void copy_own(void* to, const void* from, std::size_t bytes);
  std::unique_ptr<comm::EndIfStuck> meet_before_first(protocol::CollectiveKind kind, const comm::Division& division,
                                                      int root);

  const GpuCommParts parts_;
  const process::Attachment& attachment_;
  const protocol::CommChoice choice_;
  comm::CommCore& host_;
  comm::Rendezvous& rendezvous_;
  const process::WaitLimits limits_;  // for rendezvous_
  const protocol::RankSet ranks_;
  const int rank_;
  StreamView stream_;  // where collectives are put: the worker's stream or the background stream
  BackgroundStream background_;
  PeerMemory peers_;            // used only by the communicator of all GPUs of a session on one node
  std::uint64_t replacements_;  // replacements of workers that peers_ has taken into account
  Communicator comm_;
  ReductionByNode by_node_;       // made from comm_
  std::vector<NodeFacts> facts_;  // of all ranks, when comm_ was made; empty on one node
  std::uint64_t made_at_ = 0;     // the command in which comm_ or peers_ was made, the later of both
  std::set<std::pair<protocol::CollectiveKind, int>>
      connected_;                   // gathers and scatters, by root, that all ranks have taken part in
  std::uint64_t host_command_ = 0;  // the last command that was passed to begin()
  CollectivePlan& plan_;
  bool is_in_group_ = false;
  std::unique_ptr<comm::EndIfStuck>
      connecting_;                              // while a group connects ranks that have not sent to each other before
  std::vector<KeysOfResult> results_of_group_;  // NCCL puts the operations of a group on the stream at its end
  bool is_pending_ = false;
};

}  // namespace syncrun::detail::worker::devices::cuda

#include "launcher/pool/worker_watcher.hpp"

#include <unistd.h>

#include <span>
#include <utility>

#include "common/os/environment.hpp"
#include "common/text/log.hpp"
#include "launcher/devices/placement.hpp"

namespace syncrun::detail {

void note_loss(const ControlBlock& control, int rank) noexcept {
  ControlHeader& header = control.header();
  control.worker(rank).is_lost.store(1, std::memory_order_seq_cst);
  std::uint64_t none = 0;
  header.lost.compare_exchange_strong(none, static_cast<std::uint64_t>(rank) + 1, std::memory_order_seq_cst);
  header.to_master.wake();
  header.to_peers.wake();
  header.to_workers.wake();
}

SpawnRequest WorkerWatcher::request_for(int local_rank, const Ends& ends) const {
  const int rank = place().rank(local_rank);
  const std::span devices =
      std::span(settings_.devices)
          .subspan(static_cast<std::size_t>(place().first_rank), static_cast<std::size_t>(place().local_size));
  const DeviceId& device = devices[static_cast<std::size_t>(local_rank)];
  WorkerPlacement placement = placement_of(devices, local_rank);
  SpawnRequest request;
  request.program = own_image();
  request.arguments = own_arguments();
  request.environment = {
      {environment::kWorkerRank, std::to_string(rank)},
      {environment::kSegmentFd, std::to_string(segment_.fd())},
      {environment::kSegmentBytes, std::to_string(segment_.bytes())},
      {environment::kSocketFd, std::to_string(ends.socket)},
      {environment::kDevice, to_string(device)},
      {environment::kMasterPid, std::to_string(::getpid())},
      {environment::kJob, job_mark()},
      {environment::kRank, std::to_string(rank)},
      {environment::kLocalRank, std::to_string(local_rank)},
      {environment::kWorldSize, std::to_string(control_.world_size())},
      {environment::kLocalWorldSize, std::to_string(place().local_size)},
      {environment::kLogLevel, std::string(to_string(settings_.log_level))},
  };
  for (const auto& variable : thread_variables(placement.threads)) request.environment.push_back(variable);
  request.unset = {environment::kSupervisorFd};
  request.inherited = {segment_.fd(), ends.socket};
  request.standard_output = ends.output;
  request.standard_error = ends.error;
  request.leads_group = true;
  request.dies_earlier_by = dies_earlier_by();
  // On several nodes, the master and the agents carry what ranks exchange. If they have no core of their own, a worker that
  // wakes could take the core of a carrier that still serves others.
  request.waits_for_turn = place().nodes > 1 && !control_.header().spins;
  request.cores = std::move(placement.cores);
  if (device.kind == DeviceKind::cuda) {
    for (const auto& variable : nccl_variables(place().nodes)) request.environment.push_back(variable);
  }
  return request;
}

std::string WorkerWatcher::tag_of(int local_rank) const {
  const std::string rank = "rank " + std::to_string(place().rank(local_rank));
  if (settings_.nodes.empty()) return "[" + rank + "] ";
  return "[" + settings_.node_names[static_cast<std::size_t>(place().node)] + ", " + rank + "] ";
}

std::string WorkerWatcher::log_of(int local_rank) const {
  if (settings_.log_dir.empty()) return {};
  return settings_.log_dir + "/rank" + std::to_string(place().rank(local_rank)) + ".log";
}

void WorkerWatcher::forget_losses(const std::vector<Successor>& successors) noexcept {
  for (const Successor& one : successors) control_.worker(one.rank).is_lost.store(0, std::memory_order_seq_cst);
  control_.header().lost.store(0, std::memory_order_seq_cst);
  // A worker that was lost in the meantime could not note its loss in the header, because the first loss was still
  // there.
  for (int rank = 0; rank < control_.world_size(); ++rank) {
    if (control_.worker(rank).is_lost.load(std::memory_order_seq_cst) != 0) note_loss(control_, rank);
  }
}

}  // namespace syncrun::detail

#include "master/pool/worker_watcher.hpp"

#include <unistd.h>

#include <exception>
#include <span>
#include <utility>

#include "common/os/core_set.hpp"
#include "common/os/environment.hpp"
#include "common/text/log.hpp"
#include "master/devices/placement.hpp"

namespace syncrun::detail::master::pool {

void note_loss(const protocol::ControlBlock& control, int rank) noexcept {
  protocol::ControlHeader& header = control.header();
  control.worker(rank).is_lost.store(1, std::memory_order_seq_cst);
  std::uint64_t none = 0;
  header.lost.compare_exchange_strong(none, static_cast<std::uint64_t>(rank) + 1, std::memory_order_seq_cst);
  header.to_master.wake();
  header.to_peers.wake();
  header.to_workers.wake();
}

std::span<const devices::DeviceId> WorkerWatcher::devices_here() const noexcept {
  return std::span(settings_.devices)
      .subspan(static_cast<std::size_t>(place().first_rank), static_cast<std::size_t>(place().local_size));
}

process::SpawnRequest WorkerWatcher::request_for(int local_rank, const Ends& ends) const {
  const int rank = place().rank(local_rank);
  const devices::DeviceId& device = devices_here()[static_cast<std::size_t>(local_rank)];
  devices::WorkerPlacement placement = binding_.place(devices_here(), local_rank);
  process::SpawnRequest request;
  request.program = process::own_image();
  request.arguments = process::own_arguments();
  request.environment = {
      {environment::kWorkerRank, std::to_string(rank)},
      {environment::kSegmentFd, std::to_string(segment_.fd())},
      {environment::kSegmentBytes, std::to_string(segment_.bytes())},
      {environment::kSocketFd, std::to_string(ends.socket)},
      {environment::kDevice, devices::to_string(device)},
      {environment::kMasterPid, std::to_string(::getpid())},
      {environment::kJob, process::job_mark()},
      {environment::kRank, std::to_string(rank)},
      {environment::kLocalRank, std::to_string(local_rank)},
      {environment::kWorldSize, std::to_string(control_.world_size())},
      {environment::kLocalWorldSize, std::to_string(place().local_size)},
      {environment::kLogLevel, std::string(text::to_string(settings_.log_level))},
  };
  // For tools that expect them, such as torch.distributed. What the user has set stays.
  for (const auto& [name, value] : {std::pair(environment::kMasterAddress, settings_.master_host),
                                    {environment::kMasterPort, std::to_string(settings_.master_port)},
                                    {environment::kNodeRank, std::to_string(place().node)}}) {
    if (environment::get(name) == nullptr) request.environment.emplace_back(name, value);
  }
  for (const auto& variable : devices::thread_variables(placement.threads)) request.environment.push_back(variable);
  request.unset = {environment::kSupervisorFd};
  request.inherited = {segment_.fd(), ends.socket};
  request.standard_output = ends.output;
  request.standard_error = ends.error;
  request.leads_group = true;
  request.dies_earlier_by = dies_earlier_by();
  // On several nodes, the master and the agents carry what ranks exchange. If they have no core of their own, a worker that
  // wakes could take the core of a carrier that still serves others.
  request.waits_for_turn = place().has_others() && !control_.header().spins;
  request.cores = std::move(placement.cores);
  request.memory_node = placement.memory_node;
  if (device.kind == DeviceKind::cuda) {
    for (const auto& variable : devices::nccl_variables(place())) request.environment.push_back(variable);
  }
  // A wrapper, such as a debugger, may need the signals itself.
  request.holds_stop_signals = settings_.wrappers.of(rank) == nullptr;
  settings_.wrappers.apply(request, rank);
  return request;
}

/// If there is a wrapper, the worker itself notes its pid.
void WorkerWatcher::on_start(int local_rank, pid_t pid) noexcept {
  if (settings_.wrappers.of(place().rank(local_rank)) == nullptr) slot(local_rank).pid.store(pid);
}

std::string WorkerWatcher::news_of_start(int local_rank, pid_t pid) const {
  try {
    return devices::reports_bindings() ? describe_cores(local_rank, pid) : std::string();
  } catch (const std::exception& error) {
    return std::string("cannot report the cores of a rank: ") + error.what();
  }
}

/// Describes what the kernel says about the process, not what was intended.
std::string WorkerWatcher::describe_cores(int local_rank, pid_t pid) const {
  const auto cores = os::CoreSet::allowed(::sched_getaffinity, pid);
  const auto usable = os::CoreSet::allowed();
  if (!cores || !usable) return {};
  const int rank = place().rank(local_rank);
  return devices::describe_binding("rank " + std::to_string(rank) + " on " + settings::device_name(settings_, rank),
                                   cores->cores(), binding_.place(devices_here(), local_rank).cores, usable->cores(),
                                   devices::numa_nodes_in());
}

std::string WorkerWatcher::tag_of(int local_rank) const {
  const std::string rank = "rank " + std::to_string(place().rank(local_rank));
  if (!place().has_others()) return "[" + rank + "] ";
  return "[" + settings_.node_names[static_cast<std::size_t>(place().node)] + ", " + rank + "] ";
}

std::string WorkerWatcher::log_of(int local_rank) const {
  const int rank = place().rank(local_rank);
  if (settings_.log_dir.empty() || !settings_.output.logs(rank)) return {};
  return settings_.log_dir + "/rank" + std::to_string(rank) + ".log";
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

}  // namespace syncrun::detail::master::pool

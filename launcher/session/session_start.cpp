#include "launcher/session/session_start.hpp"

#include <unistd.h>

#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/os/environment.hpp"
#include "common/os/wait.hpp"
#include "common/protocol/supervisor_link.hpp"
#include "common/text/fixed_text.hpp"
#include "common/text/visible_text.hpp"
#include "launcher/nodes/engine.hpp"

namespace syncrun::detail {

void await_ready(WorkerPool& pool, LossReport& report, Milliseconds limit) {
  const ControlBlock& control = pool.control();
  auto& header = control.header();
  Patience patience(limit);
  int failed = -1;
  const auto ready = [&] {
    bool all = true;
    for (int rank = 0; rank < pool.world_size(); ++rank) {
      const StartState state = control.worker(rank).start.load(std::memory_order_seq_cst);
      if (state == StartState::failed) failed = rank;
      all = all && state == StartState::ready;
    }
    return all || failed >= 0;
  };
  // This wait never spins. Starting takes milliseconds, and the workers need the cores.
  WaitPolicy policy = WaitPolicy::yielding();
  const auto lost = [&] { return header.lost.load(std::memory_order_seq_cst) != 0; };
  const auto look = [&](Clock::time_point now) { report.look(now); };
  const Woken woken = wait_until(header.to_master, policy, patience, ready, lost, look);
  if (woken == Woken::interrupted) failed = static_cast<int>(header.lost.load()) - 1;
  if (failed >= 0) {
    if (const auto watch_failure = pool.watch_failure()) throw *watch_failure;
    throw report.failed_start(failed, pool.await_end(failed));
  }
  if (woken == Woken::expired) throw report.late_start(limit);
}

namespace {

/// A warning if an engine has started several of these programs without `syncrun`. Then each of them is a job of its own,
/// which the user may not have meant. Empty if not.
std::string describe_copies(const Settings& settings) {
  // Programs that a master starts inherit the variables of the engine, and kInJob.
  if (!settings.nodes.empty() || supervisor_link().is_connected() || environment::get(environment::kInJob) != nullptr)
    return {};
  const Engine engine = find_engine(environment::get);
  if (!engine.has_others() || !engine.tasks) return {};
  return std::string(to_string(engine.kind)) + " has started " + std::to_string(*engine.tasks) +
         " copies of this program, and each of them runs alone. To run the program once, on all nodes, put syncrun "
         "before it";
}

}  // namespace

void announce(const Settings& settings, const ControlBlock& control, Logger& logger) {
  for (const std::string& warning : {settings.overruled, settings.too_few_cores, describe_copies(settings)}) {
    if (!warning.empty()) logger.warn(warning);
  }
  std::vector<std::string> lines;
  if (settings.nodes.empty()) {
    lines.push_back(describe_mapping(settings.devices));
    if (auto crowd = describe_crowd(settings.devices, usable_cores()); !crowd.empty())
      lines.push_back(std::move(crowd));
  }
  for (const NodePlace& node : settings.nodes) {
    const auto devices =
        std::span(settings.devices)
            .subspan(static_cast<std::size_t>(node.first_rank), static_cast<std::size_t>(node.local_size));
    lines.push_back("node " + std::to_string(node.node) + " (" +
                    settings.node_names[static_cast<std::size_t>(node.node)] +
                    "): " + describe_mapping(devices, node.first_rank));
  }
  for (const auto& [name, rank] : settings.device_names) {
    const auto& device = settings.devices[static_cast<std::size_t>(rank)];
    lines.push_back(name + " is " + to_string(device) + ": " + std::string(get_text(control.worker(rank).hardware)));
  }
  const bool is_printed = supervisor_link().is_connected() && environment::get(environment::kQuiet) == nullptr;
  for (const auto& line : lines) {
    if (is_printed) std::fprintf(stderr, "syncrun: %s\n", text_for(STDERR_FILENO, line).c_str());
    else logger.info(line);
  }
}

std::unique_ptr<Profiler> begin_profile(const Settings& settings, ControlHeader& header, SegmentHeap memory) {
  if (settings.profile.empty() && settings.trace.empty()) return nullptr;
  const auto bytes = sizeof(Timeline) * settings.devices.size();
  header.timelines_offset = memory.heap.allocate(bytes, SharedHeap::Contents::zero, "the timelines of a profile");
  return std::make_unique<Profiler>(settings, memory.segment.at<const Timeline>(header.timelines_offset));
}

}  // namespace syncrun::detail

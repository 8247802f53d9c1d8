#include "master/session/session_start.hpp"

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
#include "common/text/log.hpp"
#include "common/text/visible_text.hpp"
#include "master/metrics/rank_metrics.hpp"
#include "master/nodes/engine.hpp"

namespace syncrun::detail::master::session {

void await_ready(pool::WorkerPool& pool, failures::FailureReport& report, os::Milliseconds limit) {
  const protocol::ControlBlock& control = pool.control();
  auto& header = control.header();
  int failed = -1;
  const auto ready = [&] {
    bool all = true;
    for (int rank = 0; rank < pool.world_size(); ++rank) {
      const protocol::StartState state = control.worker(rank).start.load(std::memory_order_seq_cst);
      if (state == protocol::StartState::failed) failed = rank;
      all = all && state == protocol::StartState::ready;
    }
    return all || failed >= 0;
  };
  // This wait never spins. Starting takes milliseconds, and the workers need the cores.
  os::WaitPolicy policy = os::WaitPolicy::yielding();
  const auto lost = [&] { return header.lost.load(std::memory_order_seq_cst) != 0; };
  const auto look = [&](os::Clock::time_point now) { report.look(now); };
  os::Woken woken{};
  do {
    os::Patience patience(limit);
    woken = os::wait_until(header.to_master, policy, patience, ready, lost, look);
  } while (woken == os::Woken::expired && pool.is_debugged());
  if (woken == os::Woken::interrupted) failed = static_cast<int>(header.lost.load()) - 1;
  if (failed >= 0) {
    if (const auto watch_failure = pool.watch_failure()) throw *watch_failure;
    throw report.failed_start(failed, pool.await_end(failed));
  }
  if (woken == os::Woken::expired) throw report.late_start(limit);
}

namespace {

/// A warning if an engine has started several of these programs without `syncrun`. Then each of them is a job of its own,
/// which the user may not have meant. Empty if not.
std::string describe_copies(const protocol::NodePlace& place) {
  // Programs that a master starts inherit the variables of the engine, and kInJob.
  if (place.has_others() || protocol::supervisor_link().is_connected() ||
      environment::get(environment::kInJob) != nullptr)
    return {};
  const nodes::Engine engine = nodes::find_engine(environment::get);
  if (!engine.has_others() || !engine.tasks) return {};
  return std::string(nodes::to_string(engine.kind)) + " has started " + std::to_string(*engine.tasks) +
         " copies of this program, and each of them runs alone. To run the program once, on all nodes, put syncrun "
         "before it";
}

}  // namespace

void announce(const settings::Settings& settings, const protocol::ControlBlock& control, text::Logger& logger) {
  for (const std::string& warning : {settings.overruled, settings.too_few_cores, describe_copies(control.place())}) {
    if (!warning.empty()) logger.warn(warning);
  }
  std::vector<std::string> lines;
  for (const protocol::NodePlace& node : settings.nodes) {
    const auto devices =
        std::span(settings.devices)
            .subspan(static_cast<std::size_t>(node.first_rank), static_cast<std::size_t>(node.local_size));
    const std::string name = node.has_others() ? "node " + std::to_string(node.node) + " (" +
                                                     settings.node_names[static_cast<std::size_t>(node.node)] + "): "
                                               : "";
    lines.push_back(name + devices::describe_mapping(devices, node.first_rank));
  }
  // A session on several nodes counts the cores of each of them (Settings::too_few_cores).
  if (!control.place().has_others()) {
    if (auto crowd = devices::describe_crowd(settings.devices, os::usable_cores()); !crowd.empty())
      lines.push_back(std::move(crowd));
  }
  for (const auto& [name, rank] : settings.device_names) {
    const auto& device = settings.devices[static_cast<std::size_t>(rank)];
    lines.push_back(name + " is " + devices::to_string(device) + ": " +
                    std::string(text::get_text(control.worker(rank).hardware)));
  }
  const bool is_printed =
      protocol::supervisor_link().is_connected() && !environment::switch_in(environment::kQuiet).value_or(false);
  for (const auto& line : lines) {
    if (is_printed) std::fputs(text::own_line(LogLevel::info, line).c_str(), stderr);
    else logger.info(line);
  }
}

std::unique_ptr<profile::Profiler> begin_profile(const settings::Settings& settings, protocol::ControlHeader& header,
                                                 pool::SegmentHeap memory) {
  if (settings.profile.empty() && settings.trace.empty()) return nullptr;
  const auto bytes = sizeof(protocol::Timeline) * settings.devices.size();
  header.timelines_offset = memory.heap.allocate(bytes, os::SharedHeap::Contents::zero, "the timelines of a profile");
  return std::make_unique<profile::Profiler>(settings,
                                             memory.segment.at<const protocol::Timeline>(header.timelines_offset));
}

std::unique_ptr<metrics::Exporter> begin_metrics(const settings::Settings& settings, protocol::ControlHeader& header,
                                                 pool::SegmentHeap memory) {
  if (!settings.metrics) return nullptr;
  const auto bytes = sizeof(protocol::RankTotals) * settings.devices.size();
  header.totals_offset = memory.heap.allocate(bytes, os::SharedHeap::Contents::zero, "the totals of metrics");
  const auto* const totals = memory.segment.at<const protocol::RankTotals>(header.totals_offset);
  return metrics::open_exporter(*settings.metrics,
                                [&settings, totals] { return to_string(metrics::read_metrics(settings, totals)); });
}

}  // namespace syncrun::detail::master::session

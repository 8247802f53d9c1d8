// The functions behind the class Session, and the function that runs a program as the master.

#include "syncrun/session.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "common/protocol/supervisor_link.hpp"
#include "common/text/errors.hpp"
#include "launcher/devices/device_lookup.hpp"
#include "launcher/nodes/job.hpp"
#include "launcher/nodes/nodes_pool.hpp"
#include "launcher/pool/local_pool.hpp"
#include "launcher/session/session_core.hpp"
#include "launcher/settings/verdict.hpp"
#include "syncrun/run.hpp"

namespace syncrun::detail {

namespace {

std::unique_ptr<WorkerPool> make_pool(const SessionOptions& options, Settings& settings) {
  NodeGroup* const group = job_nodes(settings.start_timeout);
  if (group == nullptr) return std::make_unique<LocalPool>(settings);
  gather_devices(*group, options, settings);
  return std::make_unique<NodesPool>(*group, settings);
}

}  // namespace

std::shared_ptr<SessionCore> open_session(const SessionOptions& options) {
  return std::make_shared<SessionCore>(options, [&](Settings& settings) { return make_pool(options, settings); });
}
void close_session(SessionCore& session) { session.close(); }
void abandon_session(SessionCore& session) noexcept { session.abandon(); }

void wait_all(SessionCore& session) {
  const SessionCore::Entry entry(session);
  session.commands().drain_all();
  if (const auto failure = session.calls().failures().take_dropped()) std::rethrow_exception(failure);
}

std::vector<CallProfile> profile_of(SessionCore& session) {
  const SessionCore::Entry entry(session);
  if (session.profiler() == nullptr) {
    throw_usage(
        "no profile is kept: ask for it with SessionOptions::profile or SessionOptions::trace (syncrun --profile FILE, "
        "--trace FILE)");
  }
  session.commands().drain_all();
  return session.profiler()->calls();
}

const std::vector<std::string>& devices_of(const SessionCore& session) noexcept { return session.devices(); }
const std::vector<std::string>& nodes_of(const SessionCore& session) noexcept { return session.settings().node_names; }

Device device_of(const SessionCore& session, std::string_view name) {
  const Settings& settings = session.settings();
  return find_device(session.devices(), settings.device_names, name);
}

Device device_of(const SessionCore& session, int rank) {
  const Settings& settings = session.settings();
  return device_of_rank(session.devices(), settings.device_names, rank);
}

std::vector<int> worker_pids_of(const SessionCore& session) {
  session.check_open();
  std::vector<int> pids;
  for (int rank = 0; rank < session.world_size(); ++rank) {
    pids.push_back(session.control().worker(rank).pid.load(std::memory_order_relaxed));
  }
  return pids;
}

void set_weights(SessionCore& session, std::span<const double> weights) {
  const SessionCore::Entry entry(session);
  session.set_weights(RowWeights(weights, session.world_size()));
}

std::vector<double> weights_of(SessionCore& session) {
  const SessionCore::Entry entry(session);
  return session.weights().by_rank();
}

int run_master(int argc, char** argv, const Program& program) {
  static_cast<void>(supervisor_link());  // the first use takes it from the environment
  std::string verdict;
  try {
    return program.function(program.context, argc, argv);
  } catch (...) {
    verdict = describe_current_exception("the program threw ");
  }
  std::fflush(stdout);
  report_verdict(verdict);
  tell_nodes(verdict);
  return 1;
}

}  // namespace syncrun::detail

// The functions behind the class Session, and the function that runs a program as the master.

#include "syncrun/session.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "common/protocol/supervisor_link.hpp"
#include "common/text/errors.hpp"
#include "master/devices/device_lookup.hpp"
#include "master/metrics/rank_metrics.hpp"
#include "master/nodes/job.hpp"
#include "master/nodes/nodes_pool.hpp"
#include "master/pool/local_pool.hpp"
#include "master/session/session_core.hpp"
#include "master/settings/last_line.hpp"
#include "syncrun/run.hpp"

namespace syncrun::detail {

namespace {

std::unique_ptr<master::pool::WorkerPool> make_pool(const SessionOptions& options,
                                                    master::settings::Settings& settings) {
  master::nodes::NodeGroup* const group = master::nodes::job_nodes(settings.start_timeout);
  if (group == nullptr) return std::make_unique<master::pool::LocalPool>(settings);
  master::nodes::gather_devices(*group, options, settings);
  return std::make_unique<master::nodes::NodesPool>(*group, settings);
}

}  // namespace

std::shared_ptr<master::session::SessionCore> open_session(const SessionOptions& options) {
  return std::make_shared<master::session::SessionCore>(
      options, [&](master::settings::Settings& settings) { return make_pool(options, settings); });
}
void close_session(master::session::SessionCore& session) { session.close(); }
void abandon_session(master::session::SessionCore& session) noexcept { session.abandon(); }

void wait_all(master::session::SessionCore& session) {
  const master::session::SessionCore::Entry entry(session);
  session.commands().drain_all();
  if (const auto failure = session.calls().failures().take_dropped()) std::rethrow_exception(failure);
}

std::vector<CallProfile> profile_of(master::session::SessionCore& session) {
  const master::session::SessionCore::Entry entry(session);
  if (session.profiler() == nullptr) {
    text::throw_usage(
        "no profile is kept: ask for it with SessionOptions::profile or SessionOptions::trace (syncrun --profile FILE, "
        "--trace FILE)");
  }
  session.commands().drain_all();
  return session.profiler()->calls();
}

std::vector<RankMetrics> metrics_of(master::session::SessionCore& session) {
  const master::session::SessionCore::Entry entry(session);
  if (session.totals() == nullptr)
    text::throw_usage("there are no metrics: ask for them with SessionOptions::metrics (syncrun --metrics FILE)");
  session.commands().drain_all();
  return master::metrics::read_metrics(session.settings(), session.totals());
}

const std::vector<std::string>& devices_of(const master::session::SessionCore& session) noexcept {
  return session.devices();
}
const std::vector<std::string>& nodes_of(const master::session::SessionCore& session) noexcept {
  return session.settings().node_names;
}

Device device_of(const master::session::SessionCore& session, std::string_view name) {
  const master::settings::Settings& settings = session.settings();
  return master::devices::find_device(session.devices(), settings.device_names, name);
}

Device device_of(const master::session::SessionCore& session, int rank) {
  const master::settings::Settings& settings = session.settings();
  return master::devices::device_of_rank(session.devices(), settings.device_names, rank);
}

std::vector<int> worker_pids_of(const master::session::SessionCore& session) {
  session.check_open();
  std::vector<int> pids;
  for (int rank = 0; rank < session.world_size(); ++rank) {
    pids.push_back(session.control().worker(rank).pid.load(std::memory_order_relaxed));
  }
  return pids;
}

void set_weights(master::session::SessionCore& session, std::span<const double> weights) {
  const master::session::SessionCore::Entry entry(session);
  session.set_weights(master::calls::RowWeights(weights, session.world_size()));
}

std::vector<double> weights_of(master::session::SessionCore& session) {
  const master::session::SessionCore::Entry entry(session);
  return session.weights().by_rank();
}

int run_master(int argc, char** argv, const Program& program) {
  static_cast<void>(protocol::supervisor_link());  // the first use takes it from the environment
  std::string verdict;
  try {
    return program.function(program.context, argc, argv);
  } catch (const std::exception& error) {
    verdict = text::describe_current_exception("the program threw ");
    master::settings::report_details(error);
  } catch (...) {
    verdict = text::describe_current_exception("the program threw ");
  }
  std::fflush(stdout);
  master::settings::report_last_line(verdict);
  master::nodes::tell_nodes(verdict);
  return 1;
}

}  // namespace syncrun::detail

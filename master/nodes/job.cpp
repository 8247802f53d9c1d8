#include "master/nodes/job.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/os/environment.hpp"
#include "common/os/fork_guard.hpp"
#include "common/os/stop_signals.hpp"
#include "common/os/stoppable_thread.hpp"
#include "common/protocol/process_role.hpp"
#include "common/protocol/supervisor_link.hpp"
#include "common/text/errors.hpp"
#include "master/nodes/agent_role.hpp"
#include "master/nodes/mpi_library.hpp"
#include "master/nodes/roll_call.hpp"
#include "master/settings/last_line.hpp"
#include "master/settings/settings.hpp"
#include "syncrun/version.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// How long the other nodes may take to leave at the end of the process. After a failure, nobody should wait for the message
/// about it, and an end without order is good enough.
constexpr os::Milliseconds leave_limit(int exit_code) noexcept { return os::Milliseconds(exit_code == 0 ? 3000 : 200); }

/// MPI may wait without end for a node that is dead.
constexpr os::Milliseconds kStuckInMpi{100};

/// Ends the process if something takes too long that cannot be interrupted: if the result still exists after the limit.
/// Before the end, calls `say_why`.
os::StoppableThread start_watchdog(os::Milliseconds limit, int exit_code, std::function<void()> say_why) {
  return os::StoppableThread([limit, exit_code, say_why = std::move(say_why)](os::StoppableThread& self) {
    if (limit.count() == 0 || self.nap(limit)) return;
    say_why();
    ::_exit(exit_code);
  });
}

/// Says which nodes have not come within the limit, as far as the engine knows it.
void report_late_nodes(const JobPlace& place, Transport& transport, os::Milliseconds limit) noexcept {
  try {
    const int nodes = place.engine.tasks.value_or(0);
    auto attendance = nodes == 0 ? std::nullopt : transport.attendance(place.node, nodes);
    if (attendance) attendance->add_hosts(place.engine.hosts);
    settings::report_last_line("node " + std::to_string(place.node) + ": " +
                               describe_late_nodes(nodes, limit, attendance));
  } catch (const std::exception& error) {
    settings::report_last_line(error.what());
  }
}

std::unique_ptr<Transport> open_transport(const JobPlace& place, os::Milliseconds limit) {
  auto transport = load_mpi_transport(*place.engine.mpi);
  {
    const auto watchdog = start_watchdog(limit, 1, [&] { report_late_nodes(place, *transport, limit); });
    transport->open();
  }
  check_nodes(place.engine, *transport);
  if (transport->node() == place.node) return transport;
  text::throw_usage(std::string(to_string(place.engine.kind)) + " says that this is task " +
                    std::to_string(place.node) + ", but " + transport->description() + " says that it is task " +
                    std::to_string(transport->node()));
}

NodeGroup::Limits limits() {
  NodeGroup::Limits limits;
  limits.silence = settings::node_timeout_from_environment().value_or(limits.silence);
  return limits;
}

/// The group of the master. It stays until the process ends, because sessions come and go.
struct MastersGroup {
  explicit MastersGroup(std::unique_ptr<Transport> transport) : group(std::move(transport), limits()) {}
  NodeGroup group;
  RollCall roll_call{group};
  os::ForkGuard fork_guard;
};
MastersGroup* masters_group = nullptr;
/// Why the nodes cannot be joined. MPI cannot be started a second time.
const Error* join_failure = nullptr;

void join_others(const JobPlace& place, os::Milliseconds limit) {
  if (join_failure != nullptr) throw Error(*join_failure);
  try {
    masters_group = new MastersGroup(open_transport(place, limit));
  } catch (const Error& error) {
    join_failure = std::make_unique<const Error>(error).release();
    throw;
  }
}

/// Takes leave of the other nodes. Returns false if this did not end in order.
bool leave(NodeGroup& group, int code) {
  const os::Milliseconds limit = leave_limit(code);
  const auto watchdog = start_watchdog(limit + kStuckInMpi, code, [] {});
  return group.leave(code, limit);
}

/// A program may end without a session. The agents wait for it then, so it joins them to take leave.
bool take_leave(int code) {
  try {
    if (masters_group == nullptr) join_others(*take_job_place(), settings::resolve_start_timeout(std::nullopt, ""));
    return leave(masters_group->group, code);
  } catch (const std::exception&) {
    return false;
  }
}

void leave_at_exit(int code, void* fork_guard) {
  if (!static_cast<const os::ForkGuard*>(fork_guard)->is_here()) return;
  std::fflush(nullptr);  // nobody does if the process ends with _exit()
  if (!take_leave(code)) ::_exit(code);
}

}  // namespace

std::optional<JobPlace> take_job_place() {
  static const auto place = []() -> std::optional<JobPlace> {
    const char* const node = environment::get(environment::kNode);
    if (node == nullptr) return std::nullopt;
    const std::string text = node;
    ::unsetenv(environment::kNode);
    JobPlace job{.engine = find_engine(environment::get)};
    if (!job.engine.has_others() || text != std::to_string(job.engine.task)) {
      environment::throw_bad_value(environment::kNode, text,
                                   "the number of a task that an engine has started, which syncrun sets");
    }
    job.node = job.engine.task;
    return job;
  }();
  return place;
}

NodeGroup* job_nodes(os::Milliseconds limit) {
  const auto place = take_job_place();
  if (!place) return nullptr;
  if (masters_group == nullptr || !masters_group->fork_guard.is_here()) join_others(*place, limit);
  masters_group->roll_call.require(limit);
  return &masters_group->group;
}

void tell_nodes(const std::string& verdict) {
  if (masters_group != nullptr && masters_group->fork_guard.is_here())
    masters_group->group.set_verdict(verdict.substr(0, verdict.find('\n')));
}

std::unique_ptr<NodeGroup> join_job(const JobPlace& place) {
  return std::make_unique<NodeGroup>(open_transport(place, settings::resolve_start_timeout(std::nullopt, "")),
                                     limits());
}

// ---- the agent ------------------------------------------------------------------------------------------------

namespace {

/// Tells the master why this node cannot continue, if the master is there.
void report_fault(NodeGroup& group) noexcept {
  try {
    MessageWriter message(MessageKind::fault, ErrorKind::system);
    message.put_text(text::describe_current_exception());
    group.send(kMasterNode, std::move(message));
    for (int i = 0; i < 10; ++i) {  // gives the message time to leave
      group.progress();
      std::this_thread::sleep_for(os::Milliseconds(1));
    }
  } catch (const std::exception&) {
    // The master notices that nothing comes from this node any more.
  }
}

int serve_as_agent(const JobPlace& place) {
  os::outlive_stop_signals();  // the program on the first node decides what they mean
  std::unique_ptr<NodeGroup> group;
  try {
    group = join_job(place);
    protocol::supervisor_link().send({protocol::SupervisorMessage::Kind::stops, 0, ""});
    const auto [code, why] = AgentRole(*group).serve();
    if (code != 0) {
      settings::report_last_line("node " + std::to_string(place.node) +
                                 ": the master has ended the job with exit code " + std::to_string(code) +
                                 (why.empty() ? "" : ": " + why));
    }
    std::fflush(nullptr);
    if (!leave(*group, code)) ::_exit(code);
    return code;
  } catch (...) {
    if (group) report_fault(*group);
    settings::report_last_line("node " + std::to_string(place.node) + ": " + text::describe_current_exception());
  }
  std::fflush(nullptr);
  ::_exit(1);  // MPI may wait for nodes that are lost
}

std::optional<int> serve_if_this_is_an_agent() {
  const auto place = take_job_place();
  if (!place) return std::nullopt;
  if (place->node == kMasterNode) {
    static const os::ForkGuard fork_guard;
    // Once: a program may call serve_if_worker and then run, and both come here.
    static const int is_registered = ::on_exit(leave_at_exit, const_cast<os::ForkGuard*>(&fork_guard));
    static_cast<void>(is_registered);
    return std::nullopt;
  }
  protocol::supervisor_link().send({protocol::SupervisorMessage::Kind::hello, 0, version()});
  return serve_as_agent(*place);
}

/// worker/ asks for the role when the program begins, before there is any session.
[[maybe_unused]] const bool has_role = [] {
  protocol::set_agent_role(serve_if_this_is_an_agent);
  return true;
}();

}  // namespace

}  // namespace syncrun::detail::master::nodes

#include "launcher/nodes/job.hpp"

#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/os/environment.hpp"
#include "common/os/fork_guard.hpp"
#include "common/protocol/process_role.hpp"
#include "common/protocol/supervisor_link.hpp"
#include "common/text/errors.hpp"
#include "launcher/nodes/agent_role.hpp"
#include "launcher/nodes/mpi_library.hpp"
#include "launcher/nodes/roll_call.hpp"
#include "launcher/settings/settings.hpp"
#include "launcher/settings/verdict.hpp"
#include "syncrun/version.hpp"

namespace syncrun::detail {

namespace {

/// How long the other nodes may take to leave at the end of the process. After a failure, nobody should wait for the message
/// about it, and an end without order is good enough.
constexpr Milliseconds leave_limit(int exit_code) noexcept { return Milliseconds(exit_code == 0 ? 3000 : 200); }

/// MPI may wait without end for a node that is dead.
constexpr Milliseconds kStuckInMpi{100};

/// Ends the process if something takes too long that cannot be interrupted.
class Watchdog {
 public:
  /// Before the end, the watchdog calls `say_why`.
  Watchdog(Milliseconds limit, int exit_code, std::function<void()> say_why)
      : thread_([this, limit, exit_code, say_why = std::move(say_why)] {
          std::unique_lock lock(mutex_);
          if (limit.count() == 0 || ended_.wait_for(lock, limit, [this] { return is_over_; })) return;
          say_why();
          ::_exit(exit_code);
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    ended_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
  std::thread thread_;  // last, so that the others exist when it begins
};

/// Says which nodes have not come within the limit, as far as the engine knows it.
void report_late_nodes(const JobPlace& place, Transport& transport, Milliseconds limit) noexcept {
  try {
    const int nodes = place.engine.tasks.value_or(0);
    auto attendance = nodes == 0 ? std::nullopt : transport.attendance(place.node, nodes);
    if (attendance) attendance->add_hosts(place.engine.hosts);
    report_verdict("node " + std::to_string(place.node) + ": " + describe_late_nodes(nodes, limit, attendance));
  } catch (const std::exception& error) {
    report_verdict(error.what());
  }
}

std::unique_ptr<Transport> open_transport(const JobPlace& place, Milliseconds limit) {
  auto transport = load_mpi_transport(*place.engine.mpi);
  {
    const Watchdog watchdog(limit, 1, [&] { report_late_nodes(place, *transport, limit); });
    transport->open();
  }
  check_nodes(place.engine, *transport);
  if (transport->node() == place.node) return transport;
  throw_usage(std::string(to_string(place.engine.kind)) + " says that this is task " + std::to_string(place.node) +
              ", but " + transport->description() + " says that it is task " + std::to_string(transport->node()));
}

NodeGroup::Limits limits() {
  NodeGroup::Limits limits;
  limits.silence = node_timeout_from_environment().value_or(limits.silence);
  return limits;
}

/// The group of the master. It stays until the process ends, because sessions come and go.
struct MastersGroup {
  explicit MastersGroup(std::unique_ptr<Transport> transport) : group(std::move(transport), limits()) {}
  NodeGroup group;
  RollCall roll_call{group};
  ForkGuard fork_guard;
};
MastersGroup* masters_group = nullptr;
/// Why the nodes cannot be joined. MPI cannot be started a second time.
const Error* join_failure = nullptr;

void join_others(const JobPlace& place, Milliseconds limit) {
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
  const Milliseconds limit = leave_limit(code);
  const Watchdog watchdog(limit + kStuckInMpi, code, [] {});
  return group.leave(code, limit);
}

/// A program may end without a session. The agents wait for it then, so it joins them to take leave.
bool take_leave(int code) {
  try {
    if (masters_group == nullptr) join_others(*take_job_place(), resolve_start_timeout(std::nullopt, ""));
    return leave(masters_group->group, code);
  } catch (const std::exception&) {
    return false;
  }
}

void leave_at_exit(int code, void* fork_guard) {
  if (!static_cast<const ForkGuard*>(fork_guard)->is_here()) return;
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

NodeGroup* job_nodes(Milliseconds limit) {
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
  return std::make_unique<NodeGroup>(open_transport(place, resolve_start_timeout(std::nullopt, "")), limits());
}

// ---- the agent ------------------------------------------------------------------------------------------------

namespace {

/// Tells the master why this node cannot continue, if the master is there.
void report_fault(NodeGroup& group) noexcept {
  try {
    MessageWriter message(MessageKind::fault);
    message.put(ErrorKind::system);
    message.put_text(describe_current_exception());
    group.send(NodeGroup::kMaster, std::move(message));
    for (int i = 0; i < 10; ++i) {  // gives the message time to leave
      group.progress();
      std::this_thread::sleep_for(Milliseconds(1));
    }
  } catch (const std::exception&) {
    // The master notices that nothing comes from this node any more.
  }
}

int serve_as_agent(const JobPlace& place) {
  std::unique_ptr<NodeGroup> group;
  try {
    group = join_job(place);
    const auto [code, why] = AgentRole(*group).serve();
    if (code != 0) {
      report_verdict("node " + std::to_string(place.node) + ": the master has ended the job with exit code " +
                     std::to_string(code) + (why.empty() ? "" : ": " + why));
    }
    std::fflush(nullptr);
    if (!leave(*group, code)) ::_exit(code);
    return code;
  } catch (...) {
    if (group) report_fault(*group);
    report_verdict("node " + std::to_string(place.node) + ": " + describe_current_exception());
  }
  std::fflush(nullptr);
  ::_exit(1);  // MPI may wait for nodes that are lost
}

std::optional<int> serve_if_this_is_an_agent() {
  const auto place = take_job_place();
  if (!place) return std::nullopt;
  if (place->node == NodeGroup::kMaster) {
    static const ForkGuard fork_guard;
    // Once: a program may call serve_if_worker and then run, and both come here.
    static const int is_registered = ::on_exit(leave_at_exit, const_cast<ForkGuard*>(&fork_guard));
    static_cast<void>(is_registered);
    return std::nullopt;
  }
  supervisor_link().send({SupervisorMessage::Kind::hello, 0, version()});
  return serve_as_agent(*place);
}

/// worker/ asks for the role when the program begins, before there is any session.
[[maybe_unused]] const bool has_role = [] {
  set_agent_role(serve_if_this_is_an_agent);
  return true;
}();

}  // namespace

}  // namespace syncrun::detail

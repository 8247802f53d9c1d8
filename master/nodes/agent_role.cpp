#include "master/nodes/agent_role.hpp"

#include <thread>
#include <utility>

#include "master/nodes/node_cores.hpp"
#include "master/nodes/start_messages.hpp"
#include "master/pool/local_pool.hpp"
#include "syncrun/options.hpp"

namespace syncrun::detail::master::nodes {

Farewell AgentRole::serve() {
  MessageWriter hello(MessageKind::hello);
  put_identity(hello, own_identity(group_.transport_name()));
  group_.send(kMasterNode, std::move(hello));
  group_.listen(this);
  auto active_at = os::Clock::now();
  while (!failure_ && !group_.is_lost(kMasterNode)) {
    failure_ = group_.broken_link();
    const bool has_received = group_.progress();
    const bool has_reported = is_ending_ ? finish_end() : session_ && session_->report();
    const auto now = os::Clock::now();
    if (has_received || has_reported) active_at = now;
    if (now - active_at < awake_for_) {
      os::yield_core();  // workers may need the core, also for what has just come
    } else if (session_) {
      session_->sleep();
    } else {
      std::this_thread::sleep_for(group_.nap());
    }
  }
  give_up_session();
  group_.listen(nullptr);
  if (auto farewell = group_.farewell()) return *std::move(farewell);
  throw Error(failure_ ? *failure_ : *group_.loss_of(kMasterNode));
}

/// An error here is one of this node. The master is not lost: it has to hear of the error.
void AgentRole::on_message(int node, MessageReader& message) {
  if (failure_) return;
  try {
    take(node, message);
  } catch (const Error& error) {
    failure_ = error;
  }
}

bool AgentRole::look() { return session_ && !is_ending_ && session_->look(); }

void AgentRole::take(int node, MessageReader& message) {
  switch (message.kind()) {
    case MessageKind::open: return name_devices(message);
    case MessageKind::start: return start(message);
    case MessageKind::end: return end();
    default:
      if (session_ && !is_ending_)
        session_->take(node, message);  // else its start has failed, and the master does not know it yet
  }
}

void AgentRole::report_failure(std::uint64_t question, const Error& error) {
  MessageWriter message(MessageKind::start_failed, question, error.kind());
  message.put_text(error.what());
  // A relay may not have got the question yet, and then it does not know the tree.
  if (question != 0) group_.send_directly(kMasterNode, std::move(message));
  else group_.send(kMasterNode, std::move(message));
}

void AgentRole::name_devices(MessageReader& message) {
  const auto question = message.get<std::uint64_t>();
  group_.use_tree(message.get<std::int32_t>());
  SessionOptions options;
  options.devices = message.get_text();
  options.processes = message.get_text();
  try {
    const settings::Settings settings = settings::resolve_settings(options);
    MessageWriter answer(MessageKind::devices, question, own_cores());
    answer.put_list(std::span(settings.devices));
    answer.put(settings.device_names.size());
    for (const devices::DeviceName& name : settings.device_names) {
      answer.put(static_cast<std::int32_t>(name.rank));
      answer.put_text(name.name);
    }
    group_.send(kMasterNode, std::move(answer));
  } catch (const Error& error) {
    report_failure(question, error);
  }
}

void AgentRole::start(MessageReader& message) {
  session_.reset();
  if (group_.tree().relay() != nullptr) group_.tree().relay()->begin_session();
  start_ = get_session_start(message);
  group_.set_names(start_->settings.node_names);
  try {
    settings::make_log_folder(start_->settings);
    auto pool = std::make_unique<pool::LocalPool>(start_->settings, start_->place, start_->segment_bytes);
    awake_for_ = os::WaitPolicy::for_nodes(start_->place.local_size + 1, os::usable_cores()).awake_for;
    group_.note_full(!pool->control().header().spins);
    session_ = std::make_unique<NodeSession>(group_, *start_, std::move(pool));
  } catch (const Error& error) {
    report_failure(0, error);
  }
}

void AgentRole::end() {
  if (session_) session_->stop();
  is_ending_ = true;
  finish_end();
}

/// Says that the session is over, as soon as no rows are under way to its memory. The program waits for this, but not until
/// the kernel has taken the memory of the workers, which were killed. The next session on this node does.
bool AgentRole::finish_end() {
  if (session_ && !session_->has_all_rows()) return false;
  is_ending_ = false;
  group_.send(kMasterNode, MessageWriter(MessageKind::ended));
  session_.reset();
  return true;
}

/// This process ends now. The transport may still write rows to the memory of the session, so it stays until then.
void AgentRole::give_up_session() {
  if (!session_) return;
  session_->end();
  if (session_->awaits_rows()) static_cast<void>(session_.release());
  session_.reset();
}

}  // namespace syncrun::detail::master::nodes

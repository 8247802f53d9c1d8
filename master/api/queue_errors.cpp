// The errors about the producers of a queue.

#include "master/api/queue_core.hpp"
#include "master/failures/lost_child.hpp"

namespace syncrun::detail {

int QueueCore::pid_of(int producer, int node) const {
  return node == kOwnNode ? processes_->watcher().pid(producer) : processes_->remote().pid(node, producer);
}

std::string QueueCore::describe(int producer, int node) const {
  const std::string host = host_of(node);
  return "producer " + std::to_string(producer) + " (" + host + (host.empty() ? "" : ", ") + "pid " +
         std::to_string(pid_of(producer, node)) + ") of '" + name_ + "'";
}

Failure QueueCore::blame(int producer, int node) const {
  Failure failure;
  failure.producer = producer;
  failure.pid = pid_of(producer, node);
  failure.call = name_;
  failure.phase = "producer";
  failure.node = host_of(node);
  return failure;
}

Error QueueCore::lost_error(int producer, const std::string& where, std::optional<std::string> known_cause) {
  return master::failures::lost_helper(processes_->nursery(), producer,
                                       {.who = describe(producer),
                                        .tag = "producer " + std::to_string(producer),
                                        .where = where,
                                        .failure = blame(producer)},
                                       std::move(known_cause));
}

Error QueueCore::lost_error(const master::nodes::RemoteQueue::Loss& loss, const std::string& where) const {
  const auto& [node, lost] = loss;
  master::failures::LostChild child{.who = describe(lost.producer, node),
                                    .tag = "producer " + std::to_string(lost.producer),
                                    .where = where,
                                    .failure = blame(lost.producer, node),
                                    .wait_status = lost.wait_status};
  child.failure.master_released = os::Clock::now();
  child.failure.cause = lost.cause;
  child.failure.last_stderr = lost.last_stderr;
  detail::master::failures::put_stack(child.failure, lost.crash);
  return detail::master::failures::lost_error(std::move(child));
}

Error QueueCore::first_lost_error(const std::string& where) {
  if (const int lost = processes_->watcher().lost(); lost >= 0) return lost_error(lost, where);
  if (const auto loss = processes_->remote().first_loss()) return lost_error(*loss, where);
  return start_error();
}

Error QueueCore::start_error() {
  if (const int lost = processes_->watcher().lost_at_start(); lost >= 0) return lost_error(lost, "while starting");
  if (const auto loss = processes_->remote().first_loss()) return lost_error(*loss, "while starting");
  const auto failed = processes_->remote().failed_start();
  return {failed->error.kind(), processes_->name_of(failed->node) + ": " + failed->error.what(),
          failed->error.native_code()};
}

Error QueueCore::late_start_error(int producer, int node, os::Milliseconds limit) const {
  Failure failure = blame(producer, node);
  failure.phase = "start";
  failure.cause = "deadline";
  return {ErrorKind::timeout,
          describe(producer, node) + " did not start within " + std::to_string(limit.count()) + " ms (" +
              master::queues::kProducerStartLimit + " sets another limit)",
          std::move(failure)};
}

Error QueueCore::late_end_error(int node, os::Milliseconds limit) const {
  return {ErrorKind::timeout, processes_->name_of(node) + " has not ended the producers of '" + name_ + "' within " +
                                  std::to_string(limit.count()) + " ms"};
}

Error QueueCore::failure_error(int producer, int node) const {
  const protocol::ProducerSlot& failed =
      node == kOwnNode ? slot(producer) : remote_blocks_[static_cast<std::size_t>(node) - 1].producer(producer);
  Failure failure = blame(producer, node);
  failure.cause = text::get_text(failed.message);
  const std::string message = describe(producer, node) + " failed: " + failure.cause;
  return {failed.error_kind, message, std::move(failure), failed.native_code};
}

Error QueueCore::difference_error() const {
  const int producer = turns_.turn();
  const auto [first, second] = turns_.difference();
  Failure failure = blame(producer, second);
  failure.cause = processes_->name_of(first) + " " + turns_.describe_next(first) + ", " + processes_->name_of(second) +
                  " " + turns_.describe_next(second);
  const std::string message = describe(producer, second) + " does not do the same as on " + processes_->name_of(first) +
                              ": " + failure.cause +
                              ". With ProducerPlaces::every_node, a function must make the same batches on each node: "
                              "it may depend only on its "
                              "arguments, index(), count(), rng() and on files that are the same there";
  return {ErrorKind::function, message, std::move(failure)};
}

Error QueueCore::stuck_error() const {
  return {ErrorKind::usage, "the queue of '" + name_ + "' has nothing to give: the program holds all of the " +
                                std::to_string(block_.batches_of(turns_.turn())) + " batches of " +
                                describe(turns_.turn()) +
                                ", which waits for one to be free (QueueOptions::capacity gives it more)"};
}

Error QueueCore::timeout_error(os::Milliseconds limit) const {
  const int producer = turns_.turn();
  const int node = turns_.node();
  Failure failure = blame(producer, node);
  failure.cause = "deadline";
  const protocol::QueueBlock& block = node == kOwnNode ? block_ : remote_blocks_[static_cast<std::size_t>(node) - 1];
  std::string message = "no batch of '" + name_ + "' came within " + std::to_string(limit.count()) +
                        " ms: " + describe(producer, node) + " has pushed " +
                        std::to_string(block.producer(producer).pushed.load());
  if (node == kOwnNode) {
    message += slot(producer).waits.load() ? " and waits for one to be free" : " and is in its function";
    if (const int signal = processes_->nursery().stop_signal(producer))
      message += ", stopped by " + text::signal_name(signal);
  }
  return {ErrorKind::timeout, message + " (QueueOptions::timeout sets another limit)", std::move(failure)};
}

}  // namespace syncrun::detail

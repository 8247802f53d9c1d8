#include "master/failures/lost_child.hpp"

#include <utility>

#include "master/process/child_end.hpp"
#include "master/process/nursery.hpp"
#include "master/process/stuck_ranks.hpp"

namespace syncrun::detail::master::failures {

std::string tagged_lines(const std::string& tag, const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += "\n  [" + tag + "] " + line;
  return text;
}

namespace {

std::string stack_lines(const Failure& failure) {
  std::string text;
  for (const auto& line : failure.stack) text += "\n    " + line;
  return failure.no_stack.empty() ? text : text + "\n    no stack: " + failure.no_stack;
}

}  // namespace

void put_stack(Failure& failure, process::NativeStack stack) {
  failure.stack = std::move(stack.lines);
  failure.no_stack = std::move(stack.problem);
}

Error lost_error(LostChild lost) {
  const std::string message = lost.who + " was lost " + lost.where + ": " + lost.failure.cause +
                              tagged_lines(lost.tag, lost.failure.last_stderr) + stack_lines(lost.failure) +
                              process::report_of(lost.failure.ranks) + lost.more;
  return {ErrorKind::worker_lost, message, std::move(lost.failure), lost.wait_status};
}

Error lost_helper(process::Nursery& nursery, int child, LostChild lost, std::optional<std::string> known_cause) {
  if (nursery.has_lost_descriptors()) return nursery.lost_descriptors();
  lost.failure.master_released = os::Clock::now();
  process::ChildEnd end;
  if (known_cause) end = {nursery.await_end(child, os::Milliseconds(0)), std::move(*known_cause)};
  else end = process::await_child_end(nursery, child);
  lost.failure.cause = std::move(end.cause);
  put_stack(lost.failure, nursery.crash_stack(child));
  lost.failure.last_stderr = nursery.last_stderr(child);
  lost.wait_status = end.wait_status.value_or(0);
  return lost_error(std::move(lost));
}

}  // namespace syncrun::detail::master::failures

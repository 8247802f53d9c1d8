#include "launcher/failures/lost_child.hpp"

#include <utility>

#include "launcher/process/child_end.hpp"
#include "launcher/process/nursery.hpp"
#include "launcher/process/rank_report.hpp"

namespace syncrun::detail {

std::string tagged_lines(const std::string& tag, const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += "\n  [" + tag + "] " + line;
  return text;
}

Error lost_error(LostChild lost) {
  const std::string message = lost.who + " was lost " + lost.where + ": " + lost.failure.cause +
                              tagged_lines(lost.tag, lost.failure.last_stderr) + report_of(lost.failure.ranks) +
                              lost.more;
  return {ErrorKind::worker_lost, message, std::move(lost.failure), lost.wait_status};
}

Error lost_helper(Nursery& nursery, int child, LostChild lost, std::optional<std::string> known_cause) {
  if (nursery.has_lost_descriptors()) return nursery.lost_descriptors();
  lost.failure.master_released = Clock::now();
  ChildEnd end;
  if (known_cause) end = {nursery.await_end(child, Milliseconds(0)), std::move(*known_cause)};
  else end = await_child_end(nursery, child);
  lost.failure.cause = std::move(end.cause);
  lost.failure.last_stderr = nursery.last_stderr(child);
  lost.wait_status = end.wait_status.value_or(0);
  return lost_error(std::move(lost));
}

}  // namespace syncrun::detail

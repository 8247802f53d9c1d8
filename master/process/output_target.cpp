#include "master/process/output_target.hpp"

#include <algorithm>

#include "common/text/log.hpp"

namespace syncrun::detail::master::process {

void JsonLogTarget::push(const LinePrefix& prefix, std::string_view lines) {
  while (!lines.empty()) {
    // As many lines as need the same prefix.
    const bool is_log = text::is_json_log_line(lines);
    std::size_t end = 0;
    while (end < lines.size() && text::is_json_log_line(lines.substr(end)) == is_log)
      end = std::min(lines.find('\n', end), lines.size() - 1) + 1;
    to_.push(is_log ? LinePrefix{} : prefix, lines.substr(0, end));
    lines.remove_prefix(end);
  }
}

}  // namespace syncrun::detail::master::process

#include "master/nodes/attendance.hpp"

#include <algorithm>
#include <charconv>

namespace syncrun::detail::master::nodes {

namespace {

std::string name_of(const Attendance& attendance, std::size_t node) {
  const std::string& host = attendance.hosts[node];
  return "node " + std::to_string(node) + (host.empty() ? "" : " (" + host + ")");
}

/// The names of the nodes that have come, or of the others: "node 0 (a), node 1 (b)".
std::string names_of(const Attendance& attendance, bool has_come) {
  std::string names;
  for (std::size_t node = 0; node < attendance.has_come.size(); ++node) {
    if (attendance.has_come[node] == has_come) names += (names.empty() ? "" : ", ") + name_of(attendance, node);
  }
  return names;
}

std::string describe(int nodes, const std::optional<Attendance>& attendance) {
  const std::string expected = nodes > 0 ? "expected " + std::to_string(nodes) + " nodes, " : "";
  if (!attendance)
    return expected + "and this engine does not say which ones have come. Has syncrun started on all of them?";
  const std::string missing = names_of(*attendance, false);
  if (missing.empty()) return expected + "and all of them have come. Is the network between them up?";
  return expected + "found " + names_of(*attendance, true) + "; not found: " + missing +
         ". Has syncrun started there, and can the network reach it?";
}

/// Adds the hosts of a range: "08-10" after "n" stands for n08, n09 and n10. Returns false if the text is not a range.
bool add_range(std::vector<std::string>& hosts, std::string_view start, std::string_view range, std::size_t most) {
  const auto dash = range.find('-');
  const std::string_view first = range.substr(0, dash);
  const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
  std::size_t from = 0;
  std::size_t to = 0;
  const auto read = [](std::string_view text, std::size_t& number) {
    const char* const end = text.data() + text.size();
    const auto [after, code] = std::from_chars(text.data(), end, number);
    return code == std::errc() && after == end;
  };
  if (!read(first, from) || !read(last, to) || to < from || to - from >= most) return false;
  for (std::size_t number = from; number <= to; ++number) {
    const std::string digits = std::to_string(number);
    const std::string zeros(first.size() - std::min(first.size(), digits.size()), '0');
    hosts.push_back(std::string(start) + zeros + digits);
  }
  return hosts.size() <= most;
}

}  // namespace

void Attendance::add_hosts(const std::vector<std::string>& others) {
  for (std::size_t node = 0; node < std::min(hosts.size(), others.size()); ++node) {
    if (hosts[node].empty()) hosts[node] = others[node];
  }
}

std::string describe_late_nodes(int nodes, os::Milliseconds limit, const std::optional<Attendance>& attendance) {
  return "MPI has not connected the nodes within " + std::to_string(limit.count()) +
         " ms: " + describe(nodes, attendance) + " (--start-timeout sets another limit)";
}

std::vector<std::string> hosts_in_slurm_list(std::string_view list, std::size_t most) {
  std::vector<std::string> hosts;
  while (!list.empty()) {
    const auto end = list.find_first_of(",[");
    const std::string_view start = list.substr(0, end);
    if (end == std::string_view::npos || list[end] == ',') {
      if (start.empty() || hosts.size() == most) return {};
      hosts.emplace_back(start);
      list.remove_prefix(end == std::string_view::npos ? list.size() : end + 1);
      continue;
    }
    const auto close = list.find(']', end);
    if (close == std::string_view::npos) return {};
    std::string_view ranges = list.substr(end + 1, close - end - 1);
    do {
      const auto comma = ranges.find(',');
      if (!add_range(hosts, start, ranges.substr(0, comma), most)) return {};
      ranges.remove_prefix(comma == std::string_view::npos ? ranges.size() : comma + 1);
    } while (!ranges.empty());
    list.remove_prefix(close + 1);
    if (list.empty()) break;
    if (list.front() != ',') return {};  // more text after the numbers
    list.remove_prefix(1);
  }
  return hosts;
}

}  // namespace syncrun::detail::master::nodes

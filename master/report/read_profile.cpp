#include "master/report/read_profile.hpp"

// The parser of Boost.PropertyTree in Boost 1.74 uses the placeholders of Boost.Bind as global names.
#define BOOST_BIND_GLOBAL_PLACEHOLDERS
#include <boost/property_tree/json_parser.hpp>

#include <charconv>
#include <limits>
#include <sstream>
#include <utility>

#include "common/text/errors.hpp"
#include "master/profile/profile_json.hpp"

namespace syncrun::detail::master::report {

namespace {

using boost::property_tree::ptree;

/// The parser is recursive, so a text of brackets alone could use up the stack. A profile has five levels.
constexpr int kMostLevels = 16;

bool is_too_deep(std::string_view json) noexcept {
  int levels = 0;
  bool is_in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (is_in_string && c == '\\') ++i;
    else if (c == '"') is_in_string = !is_in_string;
    else if (!is_in_string && (c == '{' || c == '[') && ++levels > kMostLevels) return true;
    else if (!is_in_string && (c == '}' || c == ']')) --levels;
  }
  return false;
}

/// Throws std::runtime_error if the member is missing or no such number.
std::int64_t number_in(const ptree& object, const char* name, std::int64_t least = 0,
                       std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  const auto& text = object.get_child(name).data();
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most)
    throw std::runtime_error("'" + std::string(name) + "' is '" + text + "'");
  return number;
}

std::chrono::nanoseconds time_in(const ptree& object, const char* name) {
  return std::chrono::nanoseconds(number_in(object, name));
}

PhaseTimes times_in(const ptree& line, const char* phase) {
  const ptree& times = line.get_child(phase);
  return {time_in(times, "median_ns"), time_in(times, "max_ns"), time_in(times, "total_ns")};
}

CallProfile line_in(const ptree& object, const std::string& name, std::size_t ranks) {
  CallProfile line;
  line.name = name;
  line.rank = static_cast<int>(number_in(object, "rank", -1, static_cast<std::int64_t>(ranks) - 1));
  line.calls = number_in(object, "calls");
  line.whole = times_in(object, "whole");
  if (line.rank < 0) return line;
  line.inputs = times_in(object, "inputs");
  line.function = times_in(object, "function");
  line.collective = times_in(object, "collective");
  line.waiting = times_in(object, "waiting");
  line.reduction = times_in(object, "reduction");
  return line;
}

/// The page adds up times and calls. Throws std::runtime_error if the sums would be too large.
void check_sums(const ReportedProfile& profile) {
  std::int64_t sum = 0;
  const auto add = [&sum](std::int64_t number) {
    if (__builtin_add_overflow(sum, number, &sum)) throw std::runtime_error("its times are too long");
  };
  for (const ReportedFunction& function : profile.functions) {
    for (const CallProfile& line : function.lines) {
      add(line.calls);
      for (const PhaseTimes* times :
           {&line.whole, &line.inputs, &line.function, &line.collective, &line.waiting, &line.reduction})
        add(times->total.count());
    }
  }
}

ReportedProfile profile_in(const ptree& file) {
  ReportedProfile profile;
  profile.version = file.get<std::string>("version");
  profile.elapsed = time_in(file, "elapsed_ns");
  profile.busy = time_in(file, "busy_ns");
  profile.calls = time_in(file, "calls_ns");
  profile.lost_events = number_in(file, "lost_events");
  for (const auto& [key, device] : file.get_child("devices")) profile.devices.push_back(device.data());
  for (const auto& [key, object] : file.get_child("functions")) {
    ReportedFunction& function = profile.functions.emplace_back();
    function.name = object.get<std::string>("name");
    for (const auto& [unused, line] : object.get_child("lines"))
      function.lines.push_back(line_in(line, function.name, profile.devices.size()));
  }
  check_sums(profile);
  return profile;
}

[[noreturn]] void throw_no_profile(const std::string& name, const std::string& found) {
  text::throw_usage("syncrun report: expected a profile that 'syncrun --profile FILE.json' has written, but " + name +
                    " " + found);
}

}  // namespace

ReportedProfile parse_profile(std::string_view json, const std::string& name) {
  const auto first = json.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) throw_no_profile(name, "is empty");
  if (json[first] == '[') throw_no_profile(name, "is a list, as a trace is; open a trace with https://ui.perfetto.dev");
  if (json[first] != '{') throw_no_profile(name, "is no JSON; let the name of the profile end in .json");
  if (is_too_deep(json)) throw_no_profile(name, "has too many levels");
  try {
    std::istringstream stream{std::string(json)};
    ptree file;
    boost::property_tree::read_json(stream, file);
    const auto form = file.get_child_optional("syncrun_profile");
    if (!form) throw_no_profile(name, "is another JSON file");
    if (form->data() != std::to_string(profile::kProfileForm))
      throw_no_profile(name, "has form " + form->data() + " and this syncrun reads form " +
                                 std::to_string(profile::kProfileForm) + "; use the syncrun that wrote it");
    return profile_in(file);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // of Boost.PropertyTree, or of number_in()
    throw_no_profile(name, std::string("is damaged: ") + error.what());
  }
}

}  // namespace syncrun::detail::master::report

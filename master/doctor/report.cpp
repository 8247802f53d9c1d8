#include "master/doctor/report.hpp"

#include <string_view>
#include <utility>

#include "common/text/visible_text.hpp"

namespace syncrun::detail::master::doctor {

namespace {

constexpr std::size_t kLevelColumn = 2;
constexpr std::size_t kWhatColumn = 11;
constexpr std::size_t kValueColumn = 42;

std::string line_of(const Finding& finding) {
  std::string line(kLevelColumn, ' ');
  line += to_string(finding.level);
  line.resize(kWhatColumn, ' ');
  line += finding.what + " ";
  if (line.size() < kValueColumn) line.resize(kValueColumn, ' ');
  line += finding.value + '\n';
  if (!finding.advice.empty()) line += std::string(kWhatColumn, ' ') + "-> " + finding.advice + '\n';
  return line;
}

std::string counted(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

std::string verdict(const std::vector<Section>& sections) {
  const std::size_t wrong = count_of(sections, Level::wrong);
  const std::string warnings = counted(count_of(sections, Level::warning), "warning");
  if (wrong == 0) return "nothing is wrong, " + warnings;
  return std::to_string(wrong) + (wrong == 1 ? " thing is wrong, " : " things are wrong, ") + warnings;
}

std::string member(std::string_view name, std::string_view value) {
  std::string text = "\"";
  return text.append(name).append("\": \"").append(text::json_escaped(value)).append("\"");
}

std::string object_of(const Finding& finding) {
  std::string object = "{";
  object += member("level", to_string(finding.level));
  for (const auto& [name, value] :
       {std::pair("what", &finding.what), {"value", &finding.value}, {"advice", &finding.advice}})
    object.append(", ").append(member(name, *value));
  return object.append("}");
}

}  // namespace

std::string as_text(const std::vector<Section>& sections, const std::string& node) {
  const std::string front = "syncrun doctor" + (node.empty() ? "" : " on " + node) + ": ";
  std::string text;
  for (const Section& section : sections) {
    text += section.name + '\n';
    for (const Finding& finding : section.findings) text += line_of(finding);
  }
  return text::visible(text) + front + verdict(sections) + '\n';
}

std::string as_json(const std::vector<Section>& sections, const std::string& node) {
  std::string json = "{";
  json.append(member("syncrun", SYNCRUN_VERSION)).append(", ").append(member("node", node)).append(", \"sections\": {");
  for (const Section& section : sections) {
    json += (&section == &sections.front() ? "\"" : ", \"") + section.name + "\": [";
    for (const Finding& finding : section.findings)
      json += (&finding == &section.findings.front() ? "" : ", ") + object_of(finding);
    json += ']';
  }
  return json + "}, \"warnings\": " + std::to_string(count_of(sections, Level::warning)) +
         ", \"wrong\": " + std::to_string(count_of(sections, Level::wrong)) + "}\n";
}

}  // namespace syncrun::detail::master::doctor

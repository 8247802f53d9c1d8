#pragma once

// The findings as text, and as JSON.

#include <string>
#include <vector>

#include "master/doctor/finding.hpp"

namespace syncrun::detail::master::doctor {

/// One line for each finding, another one for its advice, and a last line that counts. `node` is in front of the first
/// and the last line. Empty: the job has one node.
std::string as_text(const std::vector<Section>& sections, const std::string& node);

/// One object in one line: {"syncrun": VERSION, "node": ..., "sections": {"limits": [{"level": "ok", "what": ..., "value":
/// ..., "advice": ...}]}, "warnings": 1, "wrong": 0}.
std::string as_json(const std::vector<Section>& sections, const std::string& node);

}  // namespace syncrun::detail::master::doctor

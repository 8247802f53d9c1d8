#pragma once

// What the probe has measured, and the verdict on each figure. A figure that is worse than expected is a warning and never an
// error, because other programs may have used the machine at that moment.

#include <map>
#include <optional>
#include <string>

#include "master/doctor/checks.hpp"
#include "master/doctor/program_run.hpp"

namespace syncrun::detail::master::doctor {

struct Figures {
  std::map<std::string, double> values{};  // by name: seconds, or units per second
  std::map<std::string, std::string> facts{};
  std::optional<double> find(const std::string& name) const;
  /// The number of ranks of a place: " on n1", or empty for all.
  int ranks(const std::string& where) const;
  /// Whether the job has several nodes.
  bool has_nodes() const;
};

/// Reads the lines that the probe prints (probe/main.cpp). Ignores others.
Figures read_figures(const std::string& output);

/// `usable` are the cores that the job may use.
Findings judge_figures(const Figures& figures, int usable, const System& system);

/// The end of the probe, if it failed.
Findings check_probe_end(const ProgramEnd& end);

/// The version of the library that the probe has used, and the BLAS that it has found.
Findings check_probe_libraries(const Figures& figures);

}  // namespace syncrun::detail::master::doctor

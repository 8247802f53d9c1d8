#include "master/doctor/figures.hpp"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "common/text/numbers.hpp"

namespace syncrun::detail::master::doctor {

namespace {

constexpr double kMicro = 1e6;
constexpr double kGiga = 1e9;
constexpr double kMebibyteBytes = 1 << 20;

std::string in_us(double seconds) { return text::fixed_text(seconds * kMicro, 1) + " us"; }
std::string in_ms(double seconds) { return text::fixed_text(seconds * 1e3, 2) + " ms"; }
std::string in_gb_per_s(double rate) { return text::fixed_text(rate / kGiga, 2) + " GB/s"; }

std::string busy_machine(const System& system) {
  const std::string load = system.text("/proc/loadavg");
  return "other programs may use the cores (load " + load.substr(0, load.find(' ')) + "): end them, and try again";
}

/// `is_as_expected` decides the level. `expected` is what a machine that has nothing else to do gives.
Finding judge(std::string what, std::string value, bool is_as_expected, const std::string& expected,
              std::string advice) {
  if (is_as_expected) return {Level::ok, std::move(what), std::move(value)};
  return {Level::warning, std::move(what), value + ", expected " + expected, std::move(advice)};
}

/// Calls `judge_one` with the words " on n1" and the value of each figure of this kind. The words are empty if there is one
/// node, or all are meant.
template <class JudgeOne>
void for_each_place(const Figures& figures, const std::string& kind, JudgeOne judge_one) {
  for (const auto& [name, value] : figures.values) {
    if (name == kind) judge_one("", value);
    else if (name.starts_with(kind + ":")) judge_one(" on " + name.substr(kind.size() + 1), value);
  }
}

void judge_empty_calls(Findings& findings, const Figures& figures, int usable, const System& system) {
  for_each_place(figures, "empty-call", [&](const std::string& where, double seconds) {
    const int ranks = figures.ranks(where);
    const bool is_over_nodes = where.empty() && figures.has_nodes();
    const double most = !where.empty() || is_over_nodes ? 1e-3 : ranks < usable ? 20e-6 : 200e-6;
    findings.push_back(
        judge("empty call" + where, in_us(seconds) + " on " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks"),
              seconds <= most, "at most " + in_us(most), busy_machine(system) + ", or start fewer workers than cores"));
  });
}

void judge_copies(Findings& findings, const Figures& figures, const System& system) {
  const auto alone = figures.find("copy");
  if (!alone) return;
  constexpr double kSlowMemory = 2e9;
  findings.push_back(judge("memory copy, one core", in_gb_per_s(*alone), *alone >= kSlowMemory,
                           "at least " + in_gb_per_s(kSlowMemory), busy_machine(system)));
  for_each_place(figures, "copies", [&](const std::string& where, double together) {
    findings.push_back(judge("memory copy, all ranks" + where, in_gb_per_s(together), together >= 0.7 * *alone,
                             "no less than one core alone", busy_machine(system)));
  });
  if (const auto scatter = figures.find("scatter")) {
    const double least = (figures.has_nodes() ? 0.01 : 0.05) * *alone;
    findings.push_back(judge("scatter of a host array", in_gb_per_s(*scatter), *scatter >= least,
                             "at least " + in_gb_per_s(least), busy_machine(system)));
  }
}

/// CPU workers read every copy and write every copy. Over nodes, the network decides.
void judge_all_reduces(Findings& findings, const Figures& figures, const std::string& size, double bytes,
                       const System& system) {
  for_each_place(figures, "all-reduce-" + size + "MiB", [&](const std::string& where, double seconds) {
    if (figures.ranks(where) < 2) return;  // nothing moves
    const bool is_over_nodes = where.empty() && figures.has_nodes();
    const double part_of_copy = is_over_nodes ? 0.01 : 0.1;
    const double least = part_of_copy * figures.find("copy").value_or(0) / std::max(1, figures.ranks(where));
    const double rate = bytes / seconds;
    findings.push_back(judge("all_reduce of " + size + " MiB" + where, in_ms(seconds) + ", " + in_gb_per_s(rate),
                             rate >= least, "at least " + in_gb_per_s(least), busy_machine(system)));
  });
}

void judge_gpus(Findings& findings, const Figures& figures) {
  constexpr double kSlowLink = 6e9;  // PCIe 3.0 with 8 lanes
  const std::string advice =
      "see whether the slot has all its lanes (nvidia-smi -q -d PCIE), and bind the workers near their GPUs (--bind-to "
      "device)";
  std::map<std::string, double> sums;  // by node
  for (const auto& [name, rate] : figures.values) {
    if (!name.starts_with("to-device:")) continue;
    const std::string device = name.substr(name.find(':') + 1);
    const auto colon = device.find(':');
    sums[colon == std::string::npos ? "" : " on " + device.substr(0, colon)] += rate;
    findings.push_back(
        judge("host to " + device, in_gb_per_s(rate), rate >= kSlowLink, "at least " + in_gb_per_s(kSlowLink), advice));
  }
  for_each_place(figures, "gpu-copies", [&](const std::string& where, double rate) {
    const double least = 1e11 * std::max(1, figures.ranks(where));
    findings.push_back(judge("memory of all GPUs" + where, in_gb_per_s(rate), rate >= least,
                             "at least " + in_gb_per_s(least), "see whether other programs use the GPUs: nvidia-smi"));
  });
  for_each_place(figures, "to-devices", [&](const std::string& where, double together) {
    const double half = sums[where] / 2;
    findings.push_back(judge("host to all GPUs at once" + where, in_gb_per_s(together), together >= half,
                             "half of the sum, " + in_gb_per_s(half), advice));
  });
}

void judge_ways(Findings& findings, const Figures& figures, const System& system) {
  constexpr double kLongest = 500e-6;
  constexpr double kLeast = 1e8;
  const std::string advice = busy_machine(system) + ", or see whether MPI uses the fastest network (docs/nodes.md)";
  for_each_place(figures, "latency", [&](const std::string& where, double seconds) {
    findings.push_back(
        judge("call of one rank" + where, in_us(seconds), seconds <= kLongest, "at most " + in_us(kLongest), advice));
  });
  for_each_place(figures, "bandwidth", [&](const std::string& where, double rate) {
    findings.push_back(judge("values to one rank" + where, in_gb_per_s(rate), rate >= kLeast,
                             "at least " + in_gb_per_s(kLeast), advice));
  });
}

void judge_products(Findings& findings, const Figures& figures, const System& system) {
  const auto judge_one = [&](const std::string& where, double rate, double least_of_rank, const std::string& advice) {
    const double least = least_of_rank * std::max(1, figures.ranks(where));
    if (rate <= 0) return;  // there is no BLAS
    findings.push_back(judge("matrix product, all ranks" + where, text::fixed_text(rate / kGiga, 1) + " GFLOP/s",
                             rate >= least, "at least " + text::fixed_text(least / kGiga, 0) + " GFLOP/s", advice));
  };
  for_each_place(figures, "product", [&](const std::string& where, double rate) {
    judge_one(where, rate, 5e9, busy_machine(system) + ", or install a faster BLAS");
  });
  for_each_place(figures, "gpu-product", [&](const std::string& where, double rate) {
    judge_one(where, rate, 1e12, "see whether the GPUs are used or throttled: nvidia-smi -q -d PERFORMANCE");
  });
}

}  // namespace

std::optional<double> Figures::find(const std::string& name) const {
  const auto found = values.find(name);
  return found == values.end() ? std::nullopt : std::optional(found->second);
}

int Figures::ranks(const std::string& where) const {
  constexpr std::string_view kOn = " on ";
  const auto found = facts.find(where.empty() ? "ranks" : "ranks:" + where.substr(kOn.size()));
  return found == facts.end() ? 0 : static_cast<int>(text::parse_number(found->second).value_or(0));
}

bool Figures::has_nodes() const {
  const auto found = facts.lower_bound("ranks:");
  return found != facts.end() && found->first.starts_with("ranks:");
}

Figures read_figures(const std::string& output) {
  Figures figures;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const auto space = line.find(' ');
    if (space == std::string::npos) continue;
    const std::string kind = line.substr(0, space);
    const std::string rest = line.substr(space + 1);
    const auto last = rest.rfind(' ');
    if (kind != "figure") {
      figures.facts[kind] = rest;
    } else if (last != std::string::npos) {
      if (const auto value = text::parse_number(rest.substr(last + 1))) figures.values[rest.substr(0, last)] = *value;
    }
  }
  return figures;
}

Findings judge_figures(const Figures& figures, int usable, const System& system) {
  Findings findings;
  if (const auto start = figures.find("start")) {
    const double most = system.gpus.devices.empty() ? 2 : 12;
    findings.push_back(judge("start to first call", text::fixed_text(*start, 2) + " s", *start <= most,
                             "at most " + text::fixed_text(most, 0) + " s",
                             busy_machine(system) + "; a program on a slow network drive starts slowly too"));
  }
  if (const auto why = figures.facts.find("unmeasured"); why != figures.facts.end()) {
    findings.push_back({Level::warning, "figures of devices", "some are missing: " + why->second,
                        "see whether programs of your own fail in the same way"});
  }
  judge_empty_calls(findings, figures, usable, system);
  judge_copies(findings, figures, system);
  judge_gpus(findings, figures);
  judge_ways(findings, figures, system);
  judge_all_reduces(findings, figures, "1", kMebibyteBytes, system);
  judge_all_reduces(findings, figures, "100", 100 * kMebibyteBytes, system);
  judge_products(findings, figures, system);
  return findings;
}

Findings check_probe_end(const ProgramEnd& end) {
  if (end.exit_code == 0) return {};
  std::string last = end.errors;
  while (!last.empty() && last.back() == '\n') last.pop_back();
  last.erase(0, last.rfind('\n') + 1);
  if (end.was_late) last = "it was not ready in time";
  return {{Level::wrong, "a session", "failed: " + (last.empty() ? "it gave no reason" : last),
           "read the message; the other findings may say why"}};
}

Findings check_probe_libraries(const Figures& figures) {
  Findings findings;
  if (const auto library = figures.facts.find("library"); library != figures.facts.end()) {
    const bool fits = library->second == SYNCRUN_VERSION;
    findings.push_back({fits ? Level::ok : Level::wrong, "Syncrun",
                        "command " SYNCRUN_VERSION ", library " + library->second,
                        fits ? "" : "use the syncrun that was installed with the library"});
  }
  const auto blas = figures.facts.find("blas");
  if (blas == figures.facts.end()) {
    if (figures.find("product") == 0.0)
      findings.push_back(
          {Level::note, "BLAS", "none", "programs that multiply matrices need one: install libopenblas0"});
    return findings;
  }
  const std::string& path = blas->second;
  const bool is_reference =
      path.find("/blas/libblas.so") != std::string::npos || path.find("refblas") != std::string::npos;
  findings.push_back(
      {is_reference ? Level::warning : Level::ok, "BLAS", is_reference ? "the reference BLAS, " + path : path,
       is_reference ? "install libopenblas0, which is many times faster, and choose it: update-alternatives --all"
                    : ""});
  return findings;
}

}  // namespace syncrun::detail::master::doctor

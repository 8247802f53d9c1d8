#include "master/report/draw_profile.hpp"

#include <algorithm>
#include <array>

#include "common/text/numbers.hpp"
#include "common/text/visible_text.hpp"

namespace syncrun::detail::master::report {

namespace {

using std::chrono::nanoseconds;

/// More ranks than this are drawn for no function. The slowest are shown.
constexpr std::size_t kMostRanksShown = 64;

struct PhaseOfPage {
  const char* name;
  const char* style;  // the class of its colour
  PhaseTimes CallProfile::*times;
};
constexpr std::array kPhasesOfPage{
    PhaseOfPage{"inputs", "p0", &CallProfile::inputs},         PhaseOfPage{"function", "p1", &CallProfile::function},
    PhaseOfPage{"collective", "p2", &CallProfile::collective}, PhaseOfPage{"waiting", "p3", &CallProfile::waiting},
    PhaseOfPage{"reduction", "p4", &CallProfile::reduction},
};

constexpr const char* kStyle = R"(
:root{--back:#fff;--text:#1c2128;--weak:#5b6570;--line:#d8dee4;--rail:#eef1f4;
--p0:#2f81c4;--p1:#2e9d5b;--p2:#d98e04;--p3:#c2454d;--p4:#8257c9}
@media (prefers-color-scheme:dark){:root{--back:#12161b;--text:#e3e8ee;--weak:#9aa5b1;--line:#333c46;--rail:#222a33;
--p0:#4f9fe0;--p1:#46b877;--p2:#e6a532;--p3:#e0666d;--p4:#a37fe3}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:70rem;background:var(--back);color:var(--text);
font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.4rem;margin:.2rem 0}h2{font-size:1.15rem;margin:2rem 0 .3rem}
h3{font-size:1rem;margin:1.4rem 0 .1rem;overflow-wrap:anywhere}
p{margin:.2rem 0;color:var(--weak)}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.6rem;margin:1rem 0}
dl div{border:1px solid var(--line);border-radius:.4rem;padding:.4rem .6rem}
dt{color:var(--weak);font-size:.85rem}dd{margin:0;font-size:1.15rem}
ul{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.6rem 0;padding:0;font-size:.9rem}
li::before{content:"";display:inline-block;width:.75em;height:.75em;margin-right:.35em;border-radius:2px;
background:var(--c)}
.p0{--c:var(--p0)}.p1{--c:var(--p1)}.p2{--c:var(--p2)}.p3{--c:var(--p3)}.p4{--c:var(--p4)}.no{--c:var(--rail)}
.row{display:grid;grid-template-columns:14rem 1fr 14rem;gap:.1rem .7rem;align-items:center;padding:.12rem 0;
font-size:.9rem;font-variant-numeric:tabular-nums}
.who,.num{white-space:nowrap;overflow:hidden;text-overflow:ellipsis}.num{color:var(--weak);text-align:right}
.slow .who{font-weight:600}
.bar{display:flex;height:1.05rem;background:var(--rail);border-radius:2px;overflow:hidden}
.bar i{background:var(--c);min-width:0}
@media (max-width:45rem){.row{grid-template-columns:1fr auto}.bar{grid-column:1/-1;grid-row:2}}
)";

std::string html(std::string_view text) {
  std::string result;
  for (const char c : text::visible(text)) {
    if (c == '&') result += "&amp;";
    else if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '"') result += "&quot;";
    else result += c;
  }
  return result;
}

/// Three digits and a unit: "12.3 ms".
std::string duration(nanoseconds time) {
  struct Unit {
    double ns;
    const char* name;
  };
  constexpr std::array kUnits{Unit{1e9, " s"}, Unit{1e6, " ms"}, Unit{1e3, " us"}};
  const auto ns = static_cast<double>(time.count());
  for (const Unit& unit : kUnits) {
    const double value = ns / unit.ns;
    if (value < 1) continue;
    return text::fixed_text(value, value < 10 ? 2 : value < 100 ? 1 : 0) + unit.name;
  }
  return std::to_string(time.count()) + " ns";
}

double part(nanoseconds time, nanoseconds whole) {
  return whole.count() <= 0 ? 0 : static_cast<double>(time.count()) / static_cast<double>(whole.count());
}
std::string percent(double of) { return text::fixed_text(of * 100, of < 0.1 ? 1 : 0) + " %"; }

/// What the rank itself did. The rest of a call, it was with other ranks or waited for them.
nanoseconds own_time(const CallProfile& line) { return line.inputs.total + line.function.total + line.reduction.total; }

/// The parts of a bar whose whole length stands for `all`.
std::string bar(const CallProfile& line, nanoseconds all) {
  std::string label;
  std::string parts;
  for (const PhaseOfPage& phase : kPhasesOfPage) {
    const nanoseconds total = (line.*phase.times).total;
    if (total.count() == 0) continue;
    const std::string words = std::string(phase.name) + " " + duration(total);
    label += (label.empty() ? "" : ", ") + words;
    parts += "<i class=\"" + std::string(phase.style) +
             "\" style=\"width:" + text::fixed_text(std::min(part(total, all), 1.0) * 100, 2) + "%\" title=\"" + words +
             "\"></i>";
  }
  return R"(<div class="bar" role="img" aria-label=")" + (label.empty() ? "nothing" : label) + "\">" + parts + "</div>";
}

std::string row(const std::string& who, const std::string& bar, const std::string& numbers, bool is_slowest) {
  return "<div class=\"row" + std::string(is_slowest ? " slow" : "") + "\"><div class=\"who\" title=\"" + html(who) +
         "\">" + html(who) + "</div>" + bar + "<div class=\"num\">" + numbers + "</div></div>\n";
}

std::string tile(const char* name, const std::string& value) {
  return "<div><dt>" + std::string(name) + "</dt><dd>" + value + "</dd></div>";
}

std::string legend(bool has_none) {
  std::string text = "<ul>";
  for (const PhaseOfPage& phase : kPhasesOfPage)
    text += "<li class=\"" + std::string(phase.style) + "\">" + phase.name + "</li>";
  return text + (has_none ? "<li class=\"no\">in no call</li></ul>\n" : "</ul>\n");
}

std::string rank_text(const ReportedProfile& profile, int rank) {
  return "rank " + std::to_string(rank) + " (" + profile.devices[static_cast<std::size_t>(rank)] + ")";
}

/// The lines of the ranks, without that of the master.
std::vector<const CallProfile*> ranks_of(const ReportedFunction& function) {
  std::vector<const CallProfile*> ranks;
  for (const CallProfile& line : function.lines) {
    if (line.rank >= 0) ranks.push_back(&line);
  }
  return ranks;
}

/// Keeps the slowest ranks, in the order of ranks.
void keep_slowest(std::vector<const CallProfile*>& ranks) {
  if (ranks.size() <= kMostRanksShown) return;
  std::ranges::stable_sort(ranks, [](const auto* a, const auto* b) { return own_time(*a) > own_time(*b); });
  ranks.resize(kMostRanksShown);
  std::ranges::sort(ranks, [](const auto* a, const auto* b) { return a->rank < b->rank; });
}

std::string shown_text(std::size_t shown, std::size_t all) {
  return shown == all ? "" : "<p>The slowest " + std::to_string(shown) + " of " + std::to_string(all) + " ranks.</p>\n";
}

/// All calls of each rank together.
std::vector<CallProfile> sums_by_rank(const ReportedProfile& profile) {
  std::vector<CallProfile> sums(profile.devices.size());
  for (std::size_t rank = 0; rank < sums.size(); ++rank) sums[rank].rank = static_cast<int>(rank);
  for (const ReportedFunction& function : profile.functions) {
    for (const CallProfile* line : ranks_of(function)) {
      CallProfile& sum = sums[static_cast<std::size_t>(line->rank)];
      sum.calls += line->calls;
      sum.whole.total += line->whole.total;
      for (const PhaseOfPage& phase : kPhasesOfPage) (sum.*phase.times).total += (line->*phase.times).total;
    }
  }
  return sums;
}

std::string draw_ranks(const ReportedProfile& profile) {
  const std::vector<CallProfile> sums = sums_by_rank(profile);
  std::vector<const CallProfile*> ranks;
  for (const CallProfile& sum : sums) ranks.push_back(&sum);
  keep_slowest(ranks);
  // The clocks of other nodes may be faster than that of the master.
  nanoseconds all = profile.elapsed;
  for (const CallProfile& sum : sums) all = std::max(all, sum.whole.total);
  std::string text = "<h2>Ranks</h2>\n<p>A whole bar is the time from the first call to the last one, " +
                     duration(all) + ".</p>\n" + legend(true) + shown_text(ranks.size(), sums.size());
  for (const CallProfile* sum : ranks)
    text += row(rank_text(profile, sum->rank), bar(*sum, all),
                duration(sum->whole.total) + " in calls, " + percent(part(sum->whole.total, all)), false);
  return text;
}

std::string slowest_text(const ReportedProfile& profile, const std::vector<const CallProfile*>& ranks,
                         const CallProfile& slowest) {
  if (ranks.size() < 2) return "";
  std::vector<nanoseconds> others;
  for (const CallProfile* line : ranks) {
    if (line->rank != slowest.rank) others.push_back(own_time(*line));
  }
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  const double ratio = middle->count() == 0 ? 1 : part(own_time(slowest), *middle);
  return "<p>Slowest: <strong>" + html(rank_text(profile, slowest.rank)) + "</strong>, " + duration(own_time(slowest)) +
         " without collectives and waiting, " + text::fixed_text(ratio, 2) +
         " times the median of the other ranks.</p>\n";
}

std::string draw_function(const ReportedProfile& profile, const ReportedFunction& function) {
  std::string text = "<h3>" + html(function.name) + "</h3>\n";
  for (const CallProfile& line : function.lines) {
    if (line.rank < 0)
      text += "<p>" + std::to_string(line.calls) + " calls, " + duration(line.whole.total) + " in all: median " +
              duration(line.whole.median) + ", longest " + duration(line.whole.max) + ".</p>\n";
  }
  std::vector<const CallProfile*> ranks = ranks_of(function);
  if (ranks.empty()) return text;
  const CallProfile* const slowest =
      *std::ranges::max_element(ranks, [](const auto* a, const auto* b) { return own_time(*a) < own_time(*b); });
  nanoseconds all{};
  for (const CallProfile* line : ranks) all = std::max(all, line->whole.total);
  text += slowest_text(profile, ranks, *slowest);
  const std::size_t count = ranks.size();
  keep_slowest(ranks);
  text += shown_text(ranks.size(), count);
  for (const CallProfile* line : ranks)
    text +=
        row(rank_text(profile, line->rank), bar(*line, all),
            duration(line->whole.total) + " (" + duration(line->whole.median) + " / " + duration(line->whole.max) + ")",
            line == slowest && count > 1);
  return text;
}

nanoseconds longest_of(const ReportedFunction& function) {
  nanoseconds longest{};
  for (const CallProfile& line : function.lines) longest = std::max(longest, line.whole.total);
  return longest;
}

}  // namespace

std::string draw_profile(const ReportedProfile& profile, const std::string& title) {
  std::int64_t calls = 0;
  std::vector<const ReportedFunction*> functions;
  for (const ReportedFunction& function : profile.functions) {
    functions.push_back(&function);
    for (const CallProfile& line : function.lines) calls += line.rank < 0 ? line.calls : 0;
  }
  std::ranges::stable_sort(functions, [](const auto* a, const auto* b) { return longest_of(*a) > longest_of(*b); });
  const nanoseconds overlap = profile.calls - profile.busy;
  std::string text =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>" +
      html(title) + "</title>\n<style>" + kStyle + "</style></head>\n<body>\n<h1>" + html(title) +
      "</h1>\n<p>Profile of Syncrun " + html(profile.version) + "</p>\n<dl>" +
      tile("first call to last", duration(profile.elapsed)) + tile("calls", std::to_string(calls)) +
      tile("ranks", std::to_string(profile.devices.size())) +
      tile("a call in flight", percent(part(profile.busy, profile.elapsed))) +
      tile("calls overlapped for", duration(overlap)) + "</dl>\n";
  if (profile.lost_events != 0)
    text += "<p>" + std::to_string(profile.lost_events) + " events came too fast to be read, and are missing.</p>\n";
  if (functions.empty()) return text + "<p>The program made no call.</p>\n</body></html>\n";
  text += draw_ranks(profile);
  text +=
      "<h2>Functions</h2>\n<p>A whole bar is the longest time of a rank in the calls of this function. The figures "
      "are the time of all calls, and of a call: median / longest.</p>\n" +
      legend(false);
  for (const ReportedFunction* function : functions) text += draw_function(profile, *function);
  return text + "</body></html>\n";
}

}  // namespace syncrun::detail::master::report

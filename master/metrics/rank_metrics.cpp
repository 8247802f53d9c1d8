#include "master/metrics/rank_metrics.hpp"

#include <algorithm>
#include <string_view>

#include "common/os/wait.hpp"
#include "common/text/numbers.hpp"
#include "common/text/visible_text.hpp"
#include "syncrun/version.hpp"

namespace syncrun::detail::master::metrics {

namespace {

using protocol::Count;
using protocol::Phase;

const std::string& node_of(const settings::Settings& settings, int rank) noexcept {
  const auto node = std::find_if(settings.nodes.begin(), settings.nodes.end(),
                                 [rank](const protocol::NodePlace& place) { return place.has(rank); });
  return settings.node_names[static_cast<std::size_t>(node->node)];
}

std::chrono::nanoseconds time_in(const protocol::TotalsNow& totals, std::initializer_list<Phase> phases) noexcept {
  std::int64_t sum = 0;
  for (const Phase phase : phases) sum += totals.of(phase);
  return std::chrono::nanoseconds(sum);
}

/// Escapes the value of a label. It has to be UTF-8.
std::string escaped_label(const std::string& text) {
  std::string result;
  for (const char c : text::visible(text)) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

std::string seconds_text(std::chrono::nanoseconds time) {
  constexpr int kDigits = 9;
  return text::fixed_text(static_cast<double>(time.count()) / 1e9, kDigits);
}

/// Writes families of metrics that have one sample or more per rank.
class MetricsWriter {
 public:
  explicit MetricsWriter(std::span<const RankMetrics> ranks) : ranks_(ranks) {
    for (const RankMetrics& rank : ranks) {
      labels_.push_back("rank=\"" + std::to_string(rank.rank) + "\",device=\"" + escaped_label(rank.device) +
                        "\",node=\"" + escaped_label(rank.node) + '"');
    }
  }
  void begin(const char* name, const char* help, const char* type = "counter") {
    name_ = name;
    text_.append("# HELP ").append(name).append(" ").append(help).append("\n# TYPE ").append(name).append(" ");
    text_.append(type).append("\n");
  }
  void sample(const std::string& labels, const std::string& value) {
    text_.append(name_).append("{").append(labels).append("} ").append(value).append("\n");
  }
  void counts(const char* name, std::int64_t RankMetrics::*member, const char* help) {
    begin(name, help);
    for (std::size_t i = 0; i < ranks_.size(); ++i) sample(labels_[i], std::to_string(ranks_[i].*member));
  }
  void times(const char* name, std::chrono::nanoseconds RankMetrics::*member, const char* help) {
    begin(name, help);
    for (std::size_t i = 0; i < ranks_.size(); ++i) sample(labels_[i], seconds_text(ranks_[i].*member));
  }
  void phase(const char* phase, std::chrono::nanoseconds RankMetrics::*member) {
    for (std::size_t i = 0; i < ranks_.size(); ++i)
      sample(labels_[i] + ",phase=\"" + phase + '"', seconds_text(ranks_[i].*member));
  }
  std::string take() { return std::move(text_); }

 private:
  std::span<const RankMetrics> ranks_;
  std::vector<std::string> labels_;  // by rank
  const char* name_ = "";
  std::string text_;
};

}  // namespace

std::vector<RankMetrics> read_metrics(const settings::Settings& settings, const protocol::RankTotals* totals) {
  std::vector<RankMetrics> ranks;
  const std::int64_t now = os::Clock::now().time_since_epoch().count();
  for (std::size_t rank = 0; rank < settings.devices.size(); ++rank) {
    const protocol::TotalsNow own = totals[rank].read(now);
    ranks.push_back(
        {.rank = static_cast<int>(rank),
         .device = devices::to_string(settings.devices[rank]),
         .node = node_of(settings, static_cast<int>(rank)),
         .calls = own.of(Count::calls),
         .call_time = std::chrono::nanoseconds(own.of(Count::call_ns)),
         .call_rows = own.of(Count::call_rows),
         .inputs = time_in(own, {Phase::inputs}),
         .function = time_in(own, {Phase::function}),
         .collective = time_in(own, {Phase::collective}),
         .waiting = time_in(own, {Phase::dependencies, Phase::vote}),
         .reduction = time_in(own, {Phase::reduction}),
         .idle = time_in(own, {Phase::idle}),
         .other = time_in(own, {Phase::spawn, Phase::attach, Phase::device, Phase::communicator, Phase::close}),
         .input_bytes = own.of(Count::input_bytes),
         .collectives = own.of(Count::collectives),
         .collective_bytes = own.of(Count::collective_bytes),
         .train_steps = own.of(Count::steps),
         .train_step_time = std::chrono::nanoseconds(own.of(Count::step_ns)),
         .train_step_rows = own.of(Count::step_rows)});
  }
  return ranks;
}

}  // namespace syncrun::detail::master::metrics

namespace syncrun {

std::string to_string(std::span<const RankMetrics> ranks) {
  using M = RankMetrics;
  detail::master::metrics::MetricsWriter to(ranks);
  to.begin("syncrun_build_info", "The version of Syncrun.", "gauge");
  to.sample("version=\"" + std::string(version()) + '"', "1");
  to.counts("syncrun_calls_total", &M::calls, "Calls of functions that are over.");
  to.times("syncrun_call_seconds_total", &M::call_time, "Time of calls of functions.");
  to.counts("syncrun_call_rows_total", &M::call_rows, "Rows of the rank in calls of functions.");
  to.begin("syncrun_phase_seconds_total", "Time of the rank by phase. idle: it has no command.");
  to.phase("inputs", &M::inputs);
  to.phase("function", &M::function);
  to.phase("collective", &M::collective);
  to.phase("waiting", &M::waiting);
  to.phase("reduction", &M::reduction);
  to.phase("idle", &M::idle);
  to.phase("other", &M::other);
  to.counts("syncrun_input_bytes_total", &M::input_bytes, "Rows and arrays that the rank got from the master.");
  to.counts("syncrun_collectives_total", &M::collectives, "Collectives in which the rank took part.");
  to.counts("syncrun_collective_bytes_total", &M::collective_bytes, "Sizes of the arrays of these collectives.");
  to.counts("syncrun_train_steps_total", &M::train_steps, "Train steps.");
  to.times("syncrun_train_step_seconds_total", &M::train_step_time, "Time of train steps.");
  to.counts("syncrun_train_step_rows_total", &M::train_step_rows, "Rows of the rank in train steps.");
  return to.take();
}

}  // namespace syncrun

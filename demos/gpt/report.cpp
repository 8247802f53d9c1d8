#include "demos/gpt/report.hpp"

#include <algorithm>
#include <cerrno>
#include <numbers>
#include <system_error>

#include "demos/gpt/device_peak.hpp"

namespace gpt {

Report::Report(const Options& options) : options_(options) {
  if (options.losses.empty()) return;
  losses_.reset(std::fopen(options.losses.c_str(), "w"));
  if (losses_) return;
  const std::string reason = std::generic_category().message(errno);
  throw UsageError("--losses: expected a file that can be written, got '" + options.losses + "': " + reason);
}

void Report::start(const TokenFiles& files, const std::vector<std::string>& devices, const std::string& hardware) {
  const std::int64_t step_tokens = options_.batch_size * options_.model.block_size;
  ModelConfig model = options_.model;
  model.vocab_size = files.vocabulary().size();
  std::printf("%s: %.2fM parameters (%s)\n", options_.size_name.c_str(),
              static_cast<double>(count_parameters(model)) / 1e6, describe(model).c_str());
  std::printf("%lld tokens to train on, %lld held out; %lld tokens per step; %zu %s (%s",
              static_cast<long long>(files.training().tokens), static_cast<long long>(files.held_out().tokens),
              static_cast<long long>(step_tokens), devices.size(), devices.size() == 1 ? "worker" : "workers",
              devices.front().c_str());
  if (devices.size() > 1) std::printf(" to %s", devices.back().c_str());
  std::printf(")\n");
  std::fflush(stdout);
  operations_per_token_ = training_operations_per_token(model);
  const auto is_gpu = [](const std::string& device) { return device.starts_with("cuda"); };
  if (std::all_of(devices.begin(), devices.end(), is_gpu)) peak_ = bfloat16_peak(hardware);
  if (peak_) *peak_ *= static_cast<double>(devices.size());
}

void Report::resume(std::int64_t steps) {
  std::printf("going on after step %lld, from %s\n", static_cast<long long>(steps), options_.checkpoint.c_str());
  std::fflush(stdout);
}

void Report::loss(std::int64_t step, double loss) {
  if (!losses_) return;
  std::fprintf(losses_.get(), "%lld %.17g\n", static_cast<long long>(step), loss);
  std::fflush(losses_.get());
}

void Report::interval(const Interval& interval) {
  const double seconds = interval.elapsed.count() / static_cast<double>(interval.steps);
  const auto tokens = static_cast<double>(options_.batch_size * options_.model.block_size);
  std::printf("iter %lld: loss %.4f, lr %.2e, ", static_cast<long long>(interval.step), interval.loss,
              interval.learning_rate);
  if (interval.gradient_norm) std::printf("norm %.2f, ", *interval.gradient_norm);
  const double operations = tokens / seconds * operations_per_token_;  // per second
  std::printf("time %.2fms, %.0f tokens/s, %.3g TFLOP/s", 1e3 * seconds, tokens / seconds, operations / 1e12);
  if (peak_) std::printf(", %.1f%% of the peak in bfloat16", 100 * operations / *peak_);
  std::printf("\n");
  std::fflush(stdout);
}

void Report::evaluation(std::int64_t steps, const Evaluation& evaluation) {
  std::printf("step %lld: train loss %.4f, val loss %.4f\n", static_cast<long long>(steps), evaluation.training,
              evaluation.held_out);
  std::fflush(stdout);
}

void Report::held_out(double loss, double bytes_per_token) {
  std::printf("held-out loss: %.4f nats per token, %.3f bits per byte\n", loss,
              loss / std::numbers::ln2 / bytes_per_token);
  std::fflush(stdout);
}

void Report::saved(const std::string& file) {
  std::printf("saved the model to %s\n", file.c_str());
  std::fflush(stdout);
}

void Report::begin_from(const std::string& file) {
  std::printf("beginning with the weights in %s\n", file.c_str());
  std::fflush(stdout);
}

void Report::text(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace gpt

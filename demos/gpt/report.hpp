#pragma once

// The output of the program. With --losses, it also writes the losses of all steps in full precision to a file.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demos/gpt/options.hpp"
#include "demos/gpt/token_files.hpp"

namespace gpt {

/// The mean losses of an evaluation, in nats per token.
struct Evaluation {
  double training = 0;
  double held_out = 0;
};

/// Some steps that have just ended.
struct Interval {
  std::int64_t step = 0;  // the last of them, from 0
  std::int64_t steps = 0;
  double loss = 0;  // of the last of them
  double learning_rate = 0;
  std::optional<double> gradient_norm;  // of the last of them, before it was clipped
  std::chrono::duration<double> elapsed{};
};

class Report {
 public:
  /// Opens the file for losses, if the options name one. Throws UsageError if it cannot be written.
  explicit Report(const Options& options);

  /// `hardware` is the name of a GPU's model, empty for CPU devices.
  void start(const TokenFiles& files, const std::vector<std::string>& devices, const std::string& hardware);
  void resume(std::int64_t steps);
  void loss(std::int64_t step, double loss);
  void interval(const Interval& interval);
  void evaluation(std::int64_t steps, const Evaluation& evaluation);
  /// The loss of all of the held-out text, and the mean number of bytes of its tokens.
  void held_out(double loss, double bytes_per_token);
  void saved(const std::string& file);
  void begin_from(const std::string& file);
  /// A part of the sample.
  void text(const std::string& text);

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  const Options& options_;
  double operations_per_token_ = 0;
  std::optional<double> peak_;                    // of all devices together, in floating-point operations per second
  std::unique_ptr<std::FILE, CloseFile> losses_;  // null without --losses
};

}  // namespace gpt

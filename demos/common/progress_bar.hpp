#pragma once

// A progress bar for one epoch: one line of a terminal, rewritten in place; nothing where the output is not
// one.

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

namespace demos {

/// What the bar shows at a moment.
struct Progress {
  std::size_t step = 0;
  std::size_t total_steps = 0;
  double loss = 0;
  std::chrono::duration<double> elapsed{};
};

/// The bar as text of at most `columns` characters: label, bar, step, loss and the time left, estimated from
/// the time taken so far.
std::string progress_line(const std::string& label, const Progress& progress, std::size_t columns);

/// Draws on `out`, which must outlive it. On a pipe or a file all members do nothing.
class ProgressBar {
 public:
  ProgressBar(std::FILE* out, std::string label, std::size_t total_steps);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Wipes the line, so that whatever is printed next starts on a clean one.
  ~ProgressBar() { wipe(); }

  /// Shows `step` finished steps, the last one's loss and the time left; redraws ten times a second at most.
  void update(std::size_t step, double loss);

  /// Clears the line for one that is printed next; the bar comes back with the next update.
  void wipe();

 private:
  using Clock = std::chrono::steady_clock;

  std::FILE* out_;  // null: not a terminal
  std::string label_;
  std::size_t total_steps_;
  Clock::time_point started_;
  Clock::time_point next_draw_;
};

}  // namespace demos

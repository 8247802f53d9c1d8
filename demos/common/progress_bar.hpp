#pragma once

// A progress bar for one epoch: one line of a terminal, which is rewritten in place. If the output is not a terminal, or
// if mpirun passes it on, the bar prints nothing.

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

namespace demos {

/// The values that the bar shows.
struct Progress {
  std::size_t step = 0;
  std::size_t total_steps = 0;
  double loss = 0;
  std::chrono::duration<double> elapsed{};
};

/// The bar as text of at most `columns` characters: label, bar, step, loss and the time left. The time left is
/// estimated from the time taken so far.
std::string progress_line(const std::string& label, const Progress& progress, std::size_t columns);

/// Draws the bar on `out`, which must outlive this object. If `out` is a pipe or a file, all members do nothing.
class ProgressBar {
 public:
  ProgressBar(std::FILE* out, std::string label, std::size_t total_steps);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Clears the line, so that the next output starts on an empty line.
  ~ProgressBar() { wipe(); }

  /// Shows the number of finished steps, the loss of the last one, and the time left. Redraws at most ten times a
  /// second.
  void update(std::size_t step, double loss);

  /// Clears the line, so that the caller can print another one. The next update shows the bar again.
  void wipe();

 private:
  using Clock = std::chrono::steady_clock;

  std::FILE* out_;  // null if the output is not a terminal
  std::string label_;
  std::size_t total_steps_;
  Clock::time_point started_;
  Clock::time_point next_draw_;
};

}  // namespace demos

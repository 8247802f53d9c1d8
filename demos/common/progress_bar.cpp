#include "demos/common/progress_bar.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace demos {
namespace {

constexpr std::size_t kBarCells = 30;
constexpr std::size_t kDefaultColumns = 80;
constexpr std::chrono::milliseconds kRedrawInterval{100};
constexpr const char* kWipeLine = "\r\x1b[K";

std::string bar(std::size_t step, std::size_t total_steps) {
  const std::size_t filled = total_steps == 0 ? kBarCells : kBarCells * std::min(step, total_steps) / total_steps;
  return std::string(filled, '#').append(kBarCells - filled, '.');
}

/// "1:05", or "-:--" while nothing is known yet.
std::string time_left(const Progress& progress) {
  if (progress.step == 0) return "-:--";
  const auto left = static_cast<double>(progress.total_steps - std::min(progress.step, progress.total_steps));
  const double seconds = progress.elapsed.count() / static_cast<double>(progress.step) * left;
  const auto whole = std::llround(seconds);
  const std::string rest = std::to_string(whole % 60);
  return std::to_string(whole / 60) + (rest.size() < 2 ? ":0" : ":") + rest;
}

std::string fixed(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4f", value);
  return text.data();
}

std::size_t columns_of(std::FILE* terminal) {
  winsize size{};
  if (ioctl(fileno(terminal), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefaultColumns;
  return size.ws_col;
}

/// Open MPI gives each program a terminal of its own, also if the output of mpirun goes to a file.
bool is_users_terminal(std::FILE* out) {
  return isatty(fileno(out)) != 0 && std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr;
}

}  // namespace

std::string progress_line(const std::string& label, const Progress& progress, std::size_t columns) {
  std::string line = label + " [" + bar(progress.step, progress.total_steps) + "] " + std::to_string(progress.step) +
                     "/" + std::to_string(progress.total_steps) + "  loss " + fixed(progress.loss) + "  ETA " +
                     time_left(progress);
  line.resize(std::min(line.size(), columns));
  return line;
}

ProgressBar::ProgressBar(std::FILE* out, std::string label, std::size_t total_steps)
    : out_(is_users_terminal(out) ? out : nullptr),
      label_(std::move(label)),
      total_steps_(total_steps),
      started_(Clock::now()),
      next_draw_(started_) {}

void ProgressBar::wipe() {
  if (out_ == nullptr) return;
  std::fputs(kWipeLine, out_);
  std::fflush(out_);
}

void ProgressBar::update(std::size_t step, double loss) {
  if (out_ == nullptr) return;
  const Clock::time_point now = Clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + kRedrawInterval;
  // One column stays free, because some terminals wrap when the last column is written.
  const std::string line = progress_line(label_, {step, total_steps_, loss, now - started_}, columns_of(out_) - 1);
  std::fputs((kWipeLine + line).c_str(), out_);
  std::fflush(out_);
}

}  // namespace demos

#include "master/process/line_format.hpp"

#include <array>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "common/text/time_text.hpp"

namespace syncrun::detail::master::process {

namespace {

class TagOnly final : public LineFormat {
 public:
  explicit TagOnly(LinePrefix tag) : tag_(std::move(tag)) {}
  const LinePrefix& prefix() override { return tag_; }

 private:
  LinePrefix tag_;
};

/// The time, and then the tag.
class TimeAndTag final : public LineFormat {
 public:
  explicit TimeAndTag(LinePrefix tag) : tag_(std::move(tag)) {}
  const LinePrefix& prefix() override {
    const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
    if (now == at_) return prefix_;
    at_ = now;
    const std::string time = text::utc_text(now) + " ";
    prefix_ = {time + tag_.plain, time + tag_.on_terminal};
    return prefix_;
  }

 private:
  LinePrefix tag_;
  LinePrefix prefix_;
  std::chrono::time_point<std::chrono::system_clock, std::chrono::milliseconds> at_{};
};

bool wants_colours() noexcept {
  const char* const none = std::getenv("NO_COLOR");
  const char* const kind = std::getenv("TERM");
  const std::string_view terminal = kind == nullptr ? "" : kind;
  // Open MPI gives a program a terminal, also if the output of mpirun goes to a file.
  if (std::getenv("OMPI_COMM_WORLD_RANK") != nullptr) return false;
  return (none == nullptr || *none == '\0') && !terminal.empty() && terminal != "dumb";
}

/// Without white and black, which some terminals have as their background, and without red, which looks like an error.
constexpr std::array kColours{"\x1b[36m", "\x1b[33m", "\x1b[35m", "\x1b[32m", "\x1b[34m"};

std::string coloured(const std::string& tag, int child) {
  if (tag.empty() || !wants_colours()) return tag;
  return kColours[static_cast<std::size_t>(child) % kColours.size()] + tag + "\x1b[0m";
}

}  // namespace

std::unique_ptr<LineFormat> make_line_format(const OutputSettings& settings, const std::string& tag, int child) {
  const std::string shown = settings.has_tags ? tag : std::string();
  LinePrefix prefix{shown, coloured(shown, child)};
  if (settings.has_times) return std::make_unique<TimeAndTag>(std::move(prefix));
  return std::make_unique<TagOnly>(std::move(prefix));
}

}  // namespace syncrun::detail::master::process

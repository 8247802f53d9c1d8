#pragma once

// Where the lines of a child go.

#include <string>
#include <string_view>

namespace syncrun::detail::master::process {

/// The text before each line of a child's output.
struct LinePrefix {
  std::string plain;
  std::string on_terminal;  ///< May have colours.
};

/// Used by one thread.
class OutputTarget {
 public:
  OutputTarget() = default;
  virtual ~OutputTarget() = default;
  OutputTarget(const OutputTarget&) = delete;
  OutputTarget& operator=(const OutputTarget&) = delete;

  /// Called before some lines are added.
  virtual void look() noexcept {}
  /// Adds whole lines. Each ends with a newline.
  virtual void push(const LinePrefix& prefix, std::string_view lines) = 0;
  /// Shows a line that is not complete yet, if the target is a terminal.
  virtual void show(const LinePrefix& prefix, std::string_view line) = 0;
  /// True if no more lines should be added at present.
  virtual bool is_full() const noexcept { return false; }
  /// True if lines can be added again after the target was full.
  virtual bool is_half_empty() const noexcept { return true; }
};

/// The target of ranks whose lines are not shown.
class NoTarget final : public OutputTarget {
 public:
  void push(const LinePrefix&, std::string_view) override {}
  void show(const LinePrefix&, std::string_view) override {}
};

/// Passes lines on. Lines of Syncrun's log in JSON get no prefix, so that they stay JSON.
class JsonLogTarget final : public OutputTarget {
 public:
  /// Refers to `to` as long as it lives.
  explicit JsonLogTarget(OutputTarget& to) : to_(to) {}
  void look() noexcept override { to_.look(); }
  void push(const LinePrefix& prefix, std::string_view lines) override;
  void show(const LinePrefix& prefix, std::string_view line) override { to_.show(prefix, line); }
  bool is_full() const noexcept override { return to_.is_full(); }
  bool is_half_empty() const noexcept override { return to_.is_half_empty(); }

 private:
  OutputTarget& to_;
};

}  // namespace syncrun::detail::master::process

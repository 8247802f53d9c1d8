#pragma once

// Writes the lines of children to the master's standard output or standard error without blocking. The reader of this
// output may be slow or may never read again (a pager, Ctrl-S). The thread that writes here also handles deaths, so it
// must not wait. The writer keeps what it cannot write now. Used by one thread.
//
// Each line begins with the prefix of the child that wrote it, such as its tag. Some output overwrites itself: a progress
// bar, for example, begins each of its states with a carriage return. Each of these states gets the prefix too, so that no
// child can overwrite a tag with its own text.
//
//   on a terminal: only the last state of a line, also while it is incomplete; control characters are made visible
//   elsewhere: every byte
//
//   flowing --a write took only part--> blocked --poll: writable--> flowing
//   blocked --poll said writable, and the write took nothing--> resting --kRest--> (tries again)

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/os/file_descriptor.hpp"
#include "master/process/output_target.hpp"

namespace syncrun::detail::master::process {

class NonblockingWriter final : public OutputTarget {
 public:
  /// When this many bytes are waiting, the pipes of the children are not read. The children then wait in their own
  /// writes, and no line is lost.
  static constexpr std::size_t kFullBytes = std::size_t{1} << 20U;
  static constexpr std::chrono::milliseconds kRest{10};

  /// `fd` is STDOUT_FILENO or STDERR_FILENO. The program and other processes share it, so its flags stay as they are.
  /// The program may make it refer to something else (dup2).
  explicit NonblockingWriter(int fd) noexcept;

  /// Checks what the descriptor refers to now.
  void look() noexcept override { find_mode(); }
  /// Adds whole lines. flush() writes them.
  void push(const LinePrefix& prefix, std::string_view lines) override;
  /// Shows a line that is not complete yet. On a terminal, it stays until anything else is added. Elsewhere this does
  /// nothing.
  void show(const LinePrefix& prefix, std::string_view line) override;
  /// Writes as much as possible without blocking, in whole lines where possible. Drops everything if it can never be
  /// written, because then there is no reader.
  void flush() noexcept;

  std::size_t waiting_bytes() const noexcept { return waiting_.size() - written_; }
  bool is_full() const noexcept override { return waiting_bytes() >= kFullBytes; }
  bool is_half_empty() const noexcept override { return waiting_bytes() <= kFullBytes / 2; }
  bool is_blocked() const noexcept { return state_ == State::blocked; }
  bool is_resting() const noexcept { return state_ == State::resting; }
  /// An entry for poll, which reports when flush() can continue. Its descriptor is negative, so that poll ignores it,
  /// unless the writer is blocked.
  pollfd poll_entry() const noexcept;

 private:
  enum class State : std::uint8_t { flowing, blocked, resting };
  /// How a write avoids blocking.
  enum class WriteMode : std::uint8_t {
    unknown,
    plain,        ///< A file. A write never waits for a reader.
    own_opening,  ///< A pipe or terminal, opened a second time with O_NONBLOCK.
    socket,       ///< MSG_DONTWAIT.
    // For what cannot be opened again, because it belongs to another user. When poll says that there is room, the
    // writer writes only as much as certainly fits. It could block only if another process writes in between.
    careful_pipe,      ///< PIPE_BUF bytes.
    careful_terminal,  ///< One byte. (A newline may become two.)
  };

  void find_mode() noexcept;
  void push_plain(std::string_view prefix, std::string_view lines);
  void push_states(std::string_view prefix, std::string_view lines);
  void begin_on_terminal(std::string_view prefix, std::string_view line);
  std::string_view next_part() const noexcept;
  ssize_t write_now(std::string_view part) const noexcept;
  void forget_written() noexcept;

  int fd_;
  bool can_erase_;  // the terminal can clear the rest of a line
  WriteMode mode_ = WriteMode::unknown;
  State state_ = State::flowing;
  dev_t device_ = 0;  // with inode_: what fd_ referred to when the mode was chosen
  ino_t inode_ = 0;
  bool is_terminal_ = false;
  bool has_shown_ = false;  // an incomplete line is shown, which the next one replaces
  os::KeptDescriptor own_;
  std::string waiting_;
  std::size_t written_ = 0;  // the number of bytes at the beginning of waiting_ that have been written
};

}  // namespace syncrun::detail::master::process

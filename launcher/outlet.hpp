#pragma once

// The master's standard output or standard error as the place where workers' lines go. Its reader may be slow, or gone
// for good (a pager, Ctrl-S), and whoever writes here also handles deaths: so what cannot be written now is kept, and no
// write blocks. Used by one thread.
//
// Lines are the tag of who wrote them and what he wrote. What overwrites itself (a progress bar, which begins each of its
// states with a carriage return) has the tag before each state, so that nobody's text can take the place of a tag.
//
//   on a terminal: the last state of a line only, while it comes as well; control characters are shown and not done
//   elsewhere: every byte, for whoever reads it
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

#include "common/file_descriptor.hpp"

namespace syncrun::detail {

class Outlet {
 public:
  /// Where this much is waiting, workers' pipes are not read: they wait in their own writes, and no line is lost.
  static constexpr std::size_t kFullBytes = std::size_t{1} << 20U;
  static constexpr std::chrono::milliseconds kRest{10};

  /// `fd`: STDOUT_FILENO or STDERR_FILENO, shared with the program and other processes; its flags stay as they are. What
  /// it refers to may change (dup2).
  explicit Outlet(int fd) noexcept;

  /// Looks what it writes to now.
  void look() noexcept { find_way(); }
  /// Adds a line, which a newline ends; `flush` writes it.
  void push(std::string_view tag, std::string_view line);
  /// The same of a line that has not come to its end. On a terminal it stays until anything else is added; elsewhere it
  /// is nothing.
  void show(std::string_view tag, std::string_view line);
  /// Writes as much as is taken now, in whole lines as far as possible. What cannot ever be written is dropped: nobody
  /// is left to read it.
  void flush() noexcept;

  std::size_t waiting_bytes() const noexcept { return waiting_.size() - written_; }
  bool is_full() const noexcept { return waiting_bytes() >= kFullBytes; }
  bool is_half_empty() const noexcept { return waiting_bytes() <= kFullBytes / 2; }
  bool is_blocked() const noexcept { return state_ == State::blocked; }
  bool is_resting() const noexcept { return state_ == State::resting; }
  /// To learn when it is worth to flush; a negative descriptor, which poll passes over, unless it is blocked.
  pollfd poll_entry() const noexcept;

 private:
  enum class State : std::uint8_t { flowing, blocked, resting };
  /// How a write is kept from blocking.
  enum class Way : std::uint8_t {
    unknown,
    plain,        ///< A file: a write never waits for a reader.
    own_opening,  ///< A pipe or terminal, opened once more with O_NONBLOCK.
    socket,       ///< MSG_DONTWAIT.
    // What cannot be opened again (another user's): as much as fits for certain where poll says that something does.
    // Only somebody else who writes in between could still make us wait.
    careful_pipe,      ///< PIPE_BUF bytes.
    careful_terminal,  ///< One byte. (A newline may become two.)
  };

  void find_way() noexcept;
  void begin_on_terminal(std::string_view tag, std::string_view line);
  std::string_view next_part() const noexcept;
  ssize_t write_now(std::string_view part) const noexcept;
  void forget_written() noexcept;

  int fd_;
  bool can_erase_;  // the rest of a line, on a terminal
  Way way_ = Way::unknown;
  State state_ = State::flowing;
  dev_t device_ = 0;  // with inode_: what fd_ referred to when the way was found
  ino_t inode_ = 0;
  bool is_terminal_ = false;
  bool has_shown_ = false;  // a line without its end, which the next one takes the place of
  KeptDescriptor own_;
  std::string waiting_;
  std::size_t written_ = 0;  // of waiting_, from its begin
};

}  // namespace syncrun::detail

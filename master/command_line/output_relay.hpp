#pragma once

// Output of a task of Open MPI's mpirun. That engine passes output on as it reads it, up to 4096 bytes at a time. Between two
// of its reads, it passes on what other tasks print, so lines of several nodes are cut. Here, all output of a task leaves in
// blocks that the engine reads in one piece and that name their source. The `syncrun` that has started the engine puts
// them together again.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/os/file_descriptor.hpp"
#include "common/os/stoppable_thread.hpp"

namespace syncrun::detail::master::command_line {

/// The beginning of each block.
inline constexpr std::string_view kBlockMark = "syncrun-block ";

enum class BlockKind : char { output = 'o', errors = 'e', report = 'r' };

/// A part of what a task writes.
struct Block {
  int task = 0;
  BlockKind kind = BlockKind::output;
  std::string_view bytes = {};
  std::size_t size = 0;  ///< Of the block with its head. 0: its end has not come yet.
};

/// The block at the beginning of a text. Empty if the text does not begin with a block.
std::optional<Block> block_at(std::string_view text, std::string_view token);

/// A text as blocks, each at most as long as one read of the engine.
std::string blocks_of(const std::string& token, int task, BlockKind kind, std::string_view text);

/// Writes everything, unless nobody reads.
void write_fully(int fd, std::string_view text);

/// The task's side. Standard output and standard error of this process, and of those that it starts from now on, come here
/// as long as this object lives.
class OutputRelay {
 public:
  OutputRelay(std::string token, int task);
  ~OutputRelay();
  OutputRelay(const OutputRelay&) = delete;
  OutputRelay& operator=(const OutputRelay&) = delete;

  /// Writes a report after everything that was written before. Any thread.
  void report(std::string_view line);

 private:
  void run(os::StoppableThread& self);
  bool pass_on_some(int limit_ms);

  std::string token_;
  int task_;
  os::FileDescriptor engine_;                  // standard error as the engine has opened it
  std::array<os::FileDescriptor, 3> sources_;  // the ends from which this object reads, by BlockKind
  os::FileDescriptor reports_;                 // the other end of the third one
  std::optional<os::StoppableThread> thread_;
};

}  // namespace syncrun::detail::master::command_line

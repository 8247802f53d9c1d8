#pragma once

// What ties a child to the master that started it, whatever the child is for: a worker, a producer, a task.

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "common/file_descriptor.hpp"

namespace syncrun::detail {

/// The name of the thread that live_while_open starts; stacks leave it out by that.
inline constexpr std::string_view kLifeThread = "syncrun-life";

/// A second way to learn of the master's death, for when the thread of live_while_open cannot run.
void die_with(pid_t master);

/// Starts the thread that stands for this process: it holds the sign of life, if there is one, and ends the process with
/// everything it has started when the socket's other end is closed. Returns once it holds.
void live_while_open(FileDescriptor socket, pthread_mutex_t* life);

/// Throws Error (system) unless this process runs the image with that build id.
void check_image(std::uint32_t build_id_bytes, const std::array<std::uint8_t, 32>& build_id);

/// Lines reach the master when they are written, not when a buffer is full.
void flush_lines();

/// Ends this process and everything it started, also in other process groups and sessions (worker/offspring.hpp), at once.
/// For when the master has died: else that is the master's to do.
[[noreturn]] void die_with_group() noexcept;

}  // namespace syncrun::detail

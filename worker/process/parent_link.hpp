#pragma once

// The connection between a child and the master that started it. A child is a worker, a producer or a task.

#include <pthread.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "common/os/file_descriptor.hpp"

namespace syncrun::detail::worker::process {

/// The name of the thread that live_while_open starts. By this name, end_offspring recognises workers and helpers.
/// Native stacks omit threads whose names begin with "syncrun-".
inline constexpr std::string_view kLifeThread = "syncrun-life";

/// Makes the kernel send a signal to this process when the master dies. This works even when the thread of
/// live_while_open cannot run. If the master has died already, ends this process. From here on, signals that ask a job to
/// stop, and reach this process too, do nothing: the master decides what they mean. Throws Error (system).
///
/// If the parent is a wrapper, there is no such signal: the kernel would send it when the *thread* ends that has started
/// this process. Then the socket of live_while_open shows the death of the master, and the master watches the wrapper.
enum class ParentIs : std::uint8_t { master, wrapper };
void die_with(pid_t parent, ParentIs parent_is = ParentIs::master);

/// Starts a thread that holds the sign of life `life`, unless it is null. When the other end of the socket is closed,
/// the thread ends this process and everything that it has started. Returns after the thread holds the sign of life. From
/// then on, this process reports its crashes over the socket (worker/process/crash_report.hpp).
void live_while_open(os::FileDescriptor socket, pthread_mutex_t* life);

/// Throws Error (system) unless this process runs the image with that build id.
void check_image(std::uint32_t build_id_bytes, const std::array<std::uint8_t, 32>& build_id);

/// Makes stdout line-buffered, so that each line reaches the master as soon as it is complete. stderr stays without a
/// buffer, so that a process that crashes loses nothing of it.
void flush_lines();

/// Ends this process at once, with everything that it has started, also in other process groups and sessions
/// (worker/process/offspring.hpp). Called when the master has died. Otherwise the master does this.
[[noreturn]] void die_with_group() noexcept;

}  // namespace syncrun::detail::worker::process

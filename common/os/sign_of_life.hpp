#pragma once

// Signs of life. A thread of each worker and each producer holds a robust mutex as long as the process lives. When the
// process dies, the kernel marks the mutex before it frees the memory of the process. So the master notices the death
// within a fraction of a millisecond. A pidfd becomes readable only after the kernel has freed the last page (measured:
// 16 to 390 ms with 8 GiB resident).

#include <pthread.h>

#include <atomic>

namespace syncrun::detail::os {

/// Initialises a mutex in shared memory as robust and shared between processes. The master calls it before it starts
/// the process that holds the mutex. Throws Error (system).
void initialise_life(pthread_mutex_t& life);

/// Locks the mutex and never unlocks it. A worker or producer calls it in a thread that ends only with the process.
/// Throws Error (system).
void hold_life(pthread_mutex_t& life);

/// Blocks until the holder of the mutex has died, and then returns true. Returns false at most 100 ms after `stops`
/// becomes true: a process in an uninterruptible sleep does not die even if it is killed. The master calls it in a
/// thread that ends before the shared memory is unmapped.
bool await_death(pthread_mutex_t& life, const std::atomic<bool>& stops);

}  // namespace syncrun::detail::os

#pragma once

// Mutexes that clang checks (-Wthread-safety). A member that is SYNCRUN_GUARDED_BY a mutex can be used only while the mutex
// is held. Otherwise the program does not compile. Other compilers ignore this. A Mutex is a std::mutex at run time.

#include <mutex>

#if defined(__clang__)
#define SYNCRUN_THREAD_ATTRIBUTE(...) __attribute__((__VA_ARGS__))
#else
#define SYNCRUN_THREAD_ATTRIBUTE(...)
#endif

/// After the name of a member.
#define SYNCRUN_GUARDED_BY(mutex) SYNCRUN_THREAD_ATTRIBUTE(guarded_by(mutex))
/// The same for a pointer that may be read without the mutex. What it points to is used only while the mutex is held.
#define SYNCRUN_PT_GUARDED_BY(mutex) SYNCRUN_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
/// After the parameters of a function or a lambda: the caller holds the mutex. A lambda needs this too, because it does not
/// inherit the locks of the function around it. Clang cannot see whether a function of the standard library that calls the
/// lambda holds the mutex.
#define SYNCRUN_REQUIRES(mutex) SYNCRUN_THREAD_ATTRIBUTE(requires_capability(mutex))
/// Clang does not check the body of this function. A comment says why it needs no lock. (Clang never checks constructors and
/// destructors.)
#define SYNCRUN_NO_THREAD_SAFETY_ANALYSIS SYNCRUN_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace syncrun::detail::os {

class SYNCRUN_THREAD_ATTRIBUTE(capability("mutex")) Mutex : public std::mutex {};
class SYNCRUN_THREAD_ATTRIBUTE(capability("mutex")) RecursiveMutex : public std::recursive_mutex {};

/// Holds a mutex as long as it lives. Used in place of std::lock_guard, which clang does not check.
template <class AnyMutex>
class SYNCRUN_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(AnyMutex& mutex) SYNCRUN_THREAD_ATTRIBUTE(acquire_capability(mutex)) : lock_(mutex) {}
  ~MutexLock() SYNCRUN_THREAD_ATTRIBUTE(release_capability()) = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  std::lock_guard<AnyMutex> lock_;
};

/// A std::unique_lock that clang checks, for condition variables. For clang, the mutex stays held during a wait. So a
/// guarded member may have another value afterwards.
class SYNCRUN_THREAD_ATTRIBUTE(scoped_lockable) UniqueLock : public std::unique_lock<std::mutex> {
 public:
  explicit UniqueLock(Mutex& mutex) SYNCRUN_THREAD_ATTRIBUTE(acquire_capability(mutex)) : unique_lock(mutex) {}
  ~UniqueLock() SYNCRUN_THREAD_ATTRIBUTE(release_capability()) = default;
  UniqueLock(const UniqueLock&) = delete;
  UniqueLock& operator=(const UniqueLock&) = delete;
  void lock() SYNCRUN_THREAD_ATTRIBUTE(acquire_capability()) { unique_lock::lock(); }
  void unlock() SYNCRUN_THREAD_ATTRIBUTE(release_capability()) { unique_lock::unlock(); }
};

}  // namespace syncrun::detail::os

#pragma once

// A process has at most one session at a time.

namespace syncrun::detail::master::session {

/// The claim to be the only session of this process. Whether there is one is a fact about the process, so it is not state
/// of a session.
class OnlySession {
 public:
  /// Throws Error (usage) if this process has a session.
  OnlySession();
  ~OnlySession() { release(); }
  OnlySession(const OnlySession&) = delete;
  OnlySession& operator=(const OnlySession&) = delete;

  /// From now on, the process can open another session.
  void release() noexcept;

 private:
  bool is_held_ = true;
};

}  // namespace syncrun::detail::master::session

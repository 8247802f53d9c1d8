#pragma once

// The variables and replicated objects that belong to a session, and the memory of handles that no longer
// exist. The registry lists these things. It does not own them.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "common/os/mutex.hpp"
#include "master/records/records.hpp"
#include "master/records/variable_names.hpp"

namespace syncrun::detail::master::records {

/// A variable that has no handle any more. Its memory is still there.
struct FreedVariable {
  std::uint64_t entry;      // offset of the VariableEntry
  std::uint64_t host;       // offset of the host copy of a Value, or 0
  protocol::RankSet ranks;  // that may have a copy
};

/// Used only by the thread that is inside the session. release_later() and free_later() are the exceptions: any thread
/// may call them.
class Registry {
 public:
  /// A new number at each call, never 0.
  std::uint64_t new_id() noexcept { return ++last_id_; }

  /// The shared variables by name.
  VariableNames& names() noexcept { return names_; }
  const VariableNames& names() const noexcept { return names_; }

  void add(const std::shared_ptr<VariableRecord>& variable) { variables_[variable->entry] = variable; }
  void forget_variable(std::uint64_t entry) noexcept { variables_.erase(entry); }
  void add(const std::shared_ptr<ObjectRecord>& object);

  /// Calls `visit(variable)` or `visit(object)` for each one that still has a handle.
  template <class Visit>
  void for_each_variable(Visit&& visit) const {
    for (const auto& [entry, known] : variables_) {
      if (const auto variable = known.lock()) visit(*variable);
    }
  }
  template <class Visit>
  void for_each_object(Visit&& visit) const {
    for (const auto& [id, known] : objects_) {
      if (const auto object = known.lock()) visit(*object);
    }
  }
  /// Calls `visit(entry)` with the offset of the VariableEntry of each variable, including variables that wait to be
  /// freed.
  template <class Visit>
  void for_each_entry(Visit&& visit) const {
    for (const auto& [entry, known] : variables_) visit(entry);
  }

  /// Remembers what to do about a handle that no longer exists. The next entry into the session does it. From any
  /// thread.
  void release_later(std::function<void()> release) noexcept;
  /// The same for a variable.
  void free_later(const FreedVariable& variable) noexcept;
  bool has_releases() const noexcept { return has_releases_.load(std::memory_order_relaxed); }
  /// Runs them one after the other, as long as `may_run()` is true. Without it, runs all. Variables are not among them.
  void run_releases(const std::function<bool()>& may_run = {});
  /// The variables to be freed that have no copy on these ranks. The registry forgets what it returns.
  std::vector<FreedVariable> take_freed(const protocol::RankSet& busy);
  /// True if many variables have come since the last call of take_freed().
  bool has_many_freed() const noexcept { return freed_since_.load(std::memory_order_relaxed) >= kManyFreed; }

  /// For the end of the session: drops the releases that have not run, and all later ones.
  void forget_releases() noexcept;

 private:
  void note_releases() noexcept SYNCRUN_REQUIRES(releases_mutex_);

  std::uint64_t last_id_ = 0;
  VariableNames names_;
  // by entry; includes variables that wait to be freed
  std::map<std::uint64_t, std::weak_ptr<VariableRecord>> variables_;
  std::map<std::uint64_t, std::weak_ptr<ObjectRecord>> objects_;  // by id
  os::Mutex releases_mutex_;
  std::deque<std::function<void()>> releases_ SYNCRUN_GUARDED_BY(releases_mutex_);
  bool drops_releases_ SYNCRUN_GUARDED_BY(releases_mutex_) = false;
  static constexpr std::size_t kManyFreed = 32;
  std::vector<FreedVariable> freed_ SYNCRUN_GUARDED_BY(releases_mutex_);
  std::atomic<std::size_t> freed_since_{0};  // how many have come since the last take_freed()
  std::atomic<bool> has_releases_{false};
};

}  // namespace syncrun::detail::master::records

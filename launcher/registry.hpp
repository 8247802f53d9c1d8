#pragma once

// What lives on a session: variables, replicated objects, queues, and the memory of handles that are gone. It knows them, and
// owns none of them.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "launcher/records.hpp"
#include "launcher/variable_names.hpp"

namespace syncrun::detail {

/// What lives on a session and has processes of its own: ends with it.
class SessionDependant {
 public:
  virtual ~SessionDependant() = default;
  virtual void end_with_session() noexcept = 0;
};

/// Used from inside the session, but for release_later().
class Registry {
 public:
  /// Never the same twice; not 0.
  std::uint64_t new_id() noexcept { return ++last_id_; }

  /// Shared variables by the names they were given.
  VariableNames& names() noexcept { return names_; }
  const VariableNames& names() const noexcept { return names_; }

  void add(const std::shared_ptr<VariableRecord>& variable) { variables_[variable->entry] = variable; }
  void forget_variable(std::uint64_t entry) noexcept { variables_.erase(entry); }
  void add(const std::shared_ptr<ObjectRecord>& object);
  void add(const std::shared_ptr<SessionDependant>& dependant);

  /// Those whose handles are there. `visit(variable)`, `visit(object)`.
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
  /// Places of the VariableEntry of all variables, also of those that wait to be freed.
  template <class Visit>
  void for_each_entry(Visit&& visit) const {
    for (const auto& [entry, known] : variables_) visit(entry);
  }

  /// What is to be done about a handle that is gone, in any thread: at the next entry into the session.
  void release_later(std::function<void()> release) noexcept;
  bool has_releases() const noexcept { return has_releases_.load(std::memory_order_relaxed); }
  void run_releases();

  /// The session is over: its dependants end, and what was to be released goes with it.
  void end_dependants() noexcept;
  void forget_releases() noexcept;

 private:
  std::uint64_t last_id_ = 0;
  VariableNames names_;
  std::map<std::uint64_t, std::weak_ptr<VariableRecord>> variables_;  // by entry; some wait to be freed
  std::map<std::uint64_t, std::weak_ptr<ObjectRecord>> objects_;      // by id
  std::vector<std::weak_ptr<SessionDependant>> dependants_;
  std::mutex releases_mutex_;
  std::deque<std::function<void()>> releases_;
  std::atomic<bool> has_releases_{false};
};

}  // namespace syncrun::detail

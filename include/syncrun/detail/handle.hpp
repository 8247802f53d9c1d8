#pragma once

// The check that every handle makes first: that it was not moved from. Then a mistake is an Error and not a crash.

#include <memory>

#include "syncrun/detail/master_seam.hpp"

namespace syncrun::detail {

/// Returns what a handle refers to. Throws Error (usage) if the handle was moved from.
template <class Record>
Record& held(const std::shared_ptr<Record>& record, const char* type) {
  if (!record) [[unlikely]]
    throw_moved_from(type);
  return *record;
}

/// For Syncrun's own code: returns what a handle refers to; null if it was moved from. The library then reports the
/// argument by its name.
struct HandleAccess {
  template <class Handle>
  static const auto& record(const Handle& handle) noexcept {
    return handle.record_;
  }
  /// The session of a future or a function.
  template <class Handle>
  static const std::shared_ptr<SessionCore>& session(const Handle& handle) noexcept {
    return handle.session_;
  }
  /// The result of a future; null after get().
  template <class Future>
  static CallResult* result(const Future& future) noexcept {
    return future.result_.get();
  }
};

}  // namespace syncrun::detail

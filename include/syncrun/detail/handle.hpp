#pragma once

// What every handle does first: it makes sure that it was not moved from, so that a mistake is an Error and no crash.

#include <memory>

#include "syncrun/detail/master_seam.hpp"

namespace syncrun::detail {

/// What a handle refers to. Throws Error (usage) if the handle was moved from.
template <class Record>
Record& held(const std::shared_ptr<Record>& record, const char* type) {
  if (!record) [[unlikely]]
    throw_moved_from(type);
  return *record;
}

/// For the framework: what a handle refers to, null if it was moved from. The library names the argument then.
struct HandleAccess {
  template <class Handle>
  static const auto& record(const Handle& handle) noexcept {
    return handle.record_;
  }
};

}  // namespace syncrun::detail

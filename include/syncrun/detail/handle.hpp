#pragma once

// The check that every handle makes first: that it was not moved from. Then a mistake is an Error and not a crash.

#include <memory>

#include "syncrun/detail/handle_access.hpp"
#include "syncrun/detail/master_interface.hpp"

namespace syncrun::detail {

/// Returns what a handle refers to. Throws Error (usage) if the handle was moved from.
template <class Record>
Record& held(const std::shared_ptr<Record>& record, const char* type) {
  if (!record) [[unlikely]]
    throw_moved_from(type);
  return *record;
}

}  // namespace syncrun::detail

#pragma once

// The update rules of update() on a CPU. update.cpp also contains the checks of rules that worker_interface.hpp declares.

#include <string_view>

#include "syncrun/detail/update_work.hpp"

namespace syncrun::detail::arrays {

/// The name of a rule, for example "adam".
std::string_view to_string(UpdateKind kind) noexcept;

/// Applies the update in one pass. The rule must be in host memory. The bits of the result do not depend on how the
/// elements are divided among calls.
void update_elements(const UpdateWork& work);

}  // namespace syncrun::detail::arrays

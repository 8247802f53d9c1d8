#pragma once

// Update rules on a CPU, and what is wrong with one.

#include <string_view>

#include "syncrun/detail/update_work.hpp"

namespace syncrun::detail {

/// "adam".
std::string_view to_string(UpdateKind kind) noexcept;

/// Does it, in one pass. The rule is in memory of the host. Bitwise the same for any division of the elements.
void update_elements(const UpdateWork& work);

}  // namespace syncrun::detail

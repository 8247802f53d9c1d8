#pragma once

// Counts calls of operator new in this test program.

#include <cstddef>

namespace demos::testing {

std::size_t allocations_so_far();

}  // namespace demos::testing

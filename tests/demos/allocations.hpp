#pragma once

// Counts calls of operator new in this test program.

#include <cstddef>

namespace demos::testing {

std::size_t allocations_so_far();
// The sum of all allocations, including those that were freed.
std::size_t allocated_bytes_so_far();

}  // namespace demos::testing

#pragma once

// Counts calls of operator new in this test program.

#include <cstddef>

namespace demos::testing {

std::size_t allocations_so_far();
std::size_t allocated_bytes_so_far();  // in sum: what was freed counts too

}  // namespace demos::testing

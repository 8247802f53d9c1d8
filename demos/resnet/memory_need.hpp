#pragma once

// What is said where a batch is too large for its device, and how such an error is known again.

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace resnet {

/// "12.3 GiB".
std::string gibibytes(std::size_t bytes);

/// That a pass over `rows` wants so many bytes of its device's memory, and `cause`: what refused them. Where that tells of
/// something else than short memory, `cause` alone.
std::runtime_error too_many_rows(std::size_t rows, std::size_t bytes, const std::string& cause);

/// Whether the text of an error is of memory that ran out: one of those above, of C++, CUDA, cuBLAS or shared memory, or that
/// the system has killed a worker for it. An illegal access is none, and no full disk.
bool tells_of_short_memory(std::string_view error);

}  // namespace resnet

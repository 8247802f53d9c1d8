#pragma once

// Makes the error for a batch that is too large for its device, and recognises errors about short memory.

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace resnet {

/// Formats a size: "12.3 GiB".
std::string gibibytes(std::size_t bytes);

/// Makes an error that says that a pass over `rows` rows requires `bytes` bytes of its device's memory. `cause` is the
/// message of the call that did not get them. If `cause` is not about short memory, the error has the text of `cause`
/// only.
std::runtime_error too_many_rows(std::size_t rows, std::size_t bytes, const std::string& cause);

/// Returns whether the text of an error says that memory ran out. It recognises errors of too_many_rows, C++, CUDA,
/// cuBLAS and shared memory, and that the system has killed a worker for lack of memory. It returns false for an
/// illegal access and for a full disk.
bool tells_of_short_memory(std::string_view error);

}  // namespace resnet

#pragma once

// Files of the kernel in /proc and /sys, which any thread may read while user code runs.

#include <span>
#include <string>
#include <string_view>

namespace syncrun::detail::os {

/// Reads the beginning of a file into the buffer, and returns it. Returns nothing if there is no such file. The program may
/// close all descriptors meanwhile, and the number then belongs to a file of its own (common/os/file_descriptor.hpp). So
/// this uses pread(2): for a pipe, a socket or an eventfd it fails, where read(2) would wait or take the program's bytes.
std::string_view read_kernel_file(const char* path, std::span<char> buffer) noexcept;
/// The whole file.
std::string kernel_file(const std::string& path);

}  // namespace syncrun::detail::os

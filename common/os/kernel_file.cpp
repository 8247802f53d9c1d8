#include "common/os/kernel_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include "common/os/file_descriptor.hpp"

namespace syncrun::detail::os {

std::string_view read_kernel_file(const char* path, std::span<char> buffer) noexcept {
  const KeptDescriptor file(FileDescriptor(::open(path, O_RDONLY | O_CLOEXEC)));
  std::size_t size = 0;
  while (file.is_intact() && size < buffer.size()) {
    const auto count = ::pread(file.get(), buffer.data() + size, buffer.size() - size, static_cast<off_t>(size));
    if (count <= 0) break;
    size += static_cast<std::size_t>(count);
  }
  return {buffer.data(), file.is_intact() ? size : 0};
}

std::string kernel_file(const std::string& path) {
  std::string text(4096, '\0');
  for (;; text.resize(2 * text.size())) {
    const std::size_t size = read_kernel_file(path.c_str(), text).size();
    if (size == text.size()) continue;
    text.resize(size);
    return text;
  }
}

}  // namespace syncrun::detail::os

#pragma once

// Code that the fuzz targets share. A target is one function, LLVMFuzzerTestOneInput. It is linked with libFuzzer
// (SYNCRUN_FUZZ) or with replay.cpp. It ends the process if a property does not hold. An exception that a parser
// must not throw ends it too.

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "common/os/file_descriptor.hpp"
#include "common/text/errors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fuzzing {

inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "a property does not hold: %s\n", what);
  std::abort();
}

/// Returns true if `parse` accepts its input, and false if it throws Error of `kind`. Any other exception ends the
/// process.
template <class Parse>
bool accepts(syncrun::ErrorKind kind, Parse parse) {
  try {
    parse();
    return true;
  } catch (const syncrun::Error& error) {
    expect(error.kind() == kind, "an error of another kind");
    expect(*error.what() != '\0', "an error without words");
    return false;
  }
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// The lines of the text. Each ends before its first NUL, because an argument or a variable cannot contain one.
inline std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (;;) {
    const std::string_view line = text.substr(0, text.find('\n'));
    lines.emplace_back(line.substr(0, line.find('\0')));
    if (line.size() == text.size()) return lines;
    text.remove_prefix(line.size() + 1);
  }
}

/// A command line: the name of a program, and then one argument for each line of the text.
class CommandLine {
 public:
  explicit CommandLine(std::string_view text) : words_(lines_of(text)) {
    words_.insert(words_.begin(), "program");
    for (auto& word : words_) pointers_.push_back(word.data());
    pointers_.push_back(nullptr);
  }
  int count() const { return static_cast<int>(words_.size()); }
  char** pointers() { return pointers_.data(); }

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

/// A file in memory that contains the input.
class MemoryFile {
 public:
  MemoryFile(const void* bytes, std::size_t count) : fd_(::memfd_create("input", MFD_CLOEXEC)) {
    expect(::write(fd_.get(), bytes, count) == static_cast<ssize_t>(count), "a file in memory takes the input");
    ::lseek(fd_.get(), 0, SEEK_SET);
  }
  const syncrun::detail::os::FileDescriptor& descriptor() const { return fd_; }
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_.get()); }
  std::string content() const {
    std::string text(static_cast<std::size_t>(::lseek(fd_.get(), 0, SEEK_END)), '\0');
    expect(::pread(fd_.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()), "a file can be read");
    return text;
  }

 private:
  syncrun::detail::os::FileDescriptor fd_;
};

}  // namespace fuzzing

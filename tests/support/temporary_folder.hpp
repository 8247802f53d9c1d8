#pragma once

// A folder for the files of one test, which is removed after the test, and functions that read or write a whole file.

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

/// A new, empty folder. The destructor removes it with everything in it.
class TemporaryFolder {
 public:
  /// Who may use the folder besides root.
  enum class Access : std::uint8_t { owner, everyone };

  /// Creates the folder in `parent`, by default where temporary files belong (TMPDIR, else /tmp). Throws
  /// std::system_error if that fails.
  explicit TemporaryFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path(),
                           Access access = Access::owner) {
    std::string name = (parent / "syncrun-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), "mkdtemp " + name);
    path_ = name;
    if (access == Access::everyone) std::filesystem::permissions(path_, std::filesystem::perms::all);
  }
  explicit TemporaryFolder(Access access) : TemporaryFolder(std::filesystem::temp_directory_path(), access) {}
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  /// The path of a file in the folder as a string, for functions that require one.
  std::string at(const std::string& name) const { return (path_ / name).string(); }
  bool is_empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::filesystem::path path_;
};

/// The contents of a file; empty if the file cannot be read. A process may end while a test reads its files in /proc.
inline std::string text_of(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

inline void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

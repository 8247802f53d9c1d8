#pragma once

// A folder for the files of one test, which goes with it. And what tests do with files: read and write them as a whole.

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

/// A new and empty folder. It is removed with everything in it when its owner goes.
class TemporaryFolder {
 public:
  /// Who may use the folder, beside root.
  enum class Access : std::uint8_t { owner, everyone };

  /// In `parent`: by default where temporary files belong (TMPDIR, else /tmp). Throws std::system_error if there can be none.
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
  /// The path of something in it, for those that take text.
  std::string at(const std::string& name) const { return (path_ / name).string(); }
  bool is_empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::filesystem::path path_;
};

/// All of a file. Nothing where it cannot be read: a process may go while its file in /proc is read.
inline std::string text_of(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

inline void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

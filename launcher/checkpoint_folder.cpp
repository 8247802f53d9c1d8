#include "launcher/checkpoint_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <climits>

#include "common/errors.hpp"

namespace syncrun::detail {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSavePrefix = ".syncrun-save-";
constexpr const char* kNextLink = ".syncrun-latest";

fs::path parent_of(const fs::path& path) {
  const fs::path parent = fs::absolute(path).lexically_normal().parent_path();
  return parent.empty() ? fs::path("/") : parent;
}

Folder make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error && !fs::is_directory(path)) throw_errno("cannot make " + path.string(), error.value());
  sync(open_folder(parent_of(path)));
  return open_folder(path);
}

/// One writer at a time. A file system without locks has none.
void lock(const Folder& folder) {
  if (::flock(folder.fd.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  throw_usage(folder.path.string() + ": another process is writing a checkpoint there");
}

/// Where `latest` leads to; empty if there is none. Throws Error (usage) if that is nothing of ours.
std::string current_save(const Folder& folder) {
  std::array<char, PATH_MAX> target{};
  const ssize_t length = ::readlinkat(folder.fd.get(), kLatest, target.data(), target.size());
  if (length < 0 && errno == ENOENT) return {};
  const std::string name = length < 0 ? "" : std::string(target.data(), static_cast<std::size_t>(length));
  if (name.starts_with(kSavePrefix) && name.find('/') == std::string::npos) return name;
  throw_usage((folder.path / kLatest).string() + " is not the link of a checkpoint: save to another folder");
}

/// A name that comes after this one.
std::string name_after(const std::string& current) {
  std::uint64_t number = 0;
  if (!current.empty()) {
    std::from_chars(current.data() + kSavePrefix.size(), current.data() + current.size(), number);
  }
  return std::string(kSavePrefix) + std::to_string(number + 1);
}

}  // namespace

CheckpointWriter::CheckpointWriter(const fs::path& path) : root_(make_folder(path)) {
  lock(root_);
  const std::string current = current_save(root_);
  remove_all_but(current);
  name_ = name_after(current);
  if (::mkdirat(root_.fd.get(), name_.c_str(), 0777) != 0) throw_errno("cannot make " + (path / name_).string());
  save_ = open_folder(path / name_);
}

CheckpointWriter::~CheckpointWriter() {
  if (is_committed_) return;
  std::error_code error;
  fs::remove_all(save_.path, error);
}

void CheckpointWriter::commit() {
  sync(save_);
  sync(root_);
  const int root = root_.fd.get();
  if (::symlinkat(name_.c_str(), root, kNextLink) != 0 || ::renameat(root, kNextLink, root, kLatest) != 0) {
    const int code = errno;
    ::unlinkat(root, kNextLink, 0);
    throw_errno("cannot write " + (root_.path / kLatest).string(), code);
  }
  is_committed_ = true;  // from here on it is what a reader finds
  sync(root_);
  remove_all_but(name_);
}

/// What cannot be removed now is tried again by the next save.
void CheckpointWriter::remove_all_but(const std::string& kept) const noexcept try {
  ::unlinkat(root_.fd.get(), kNextLink, 0);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root_.path, error)) {
    const std::string name = entry.path().filename().string();
    std::error_code left;
    if (name.starts_with(kSavePrefix) && name != kept) fs::remove_all(entry.path(), left);
  }
} catch (const std::exception&) {
  // No memory for names.
}

}  // namespace syncrun::detail

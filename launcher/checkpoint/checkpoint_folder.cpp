#include "launcher/checkpoint/checkpoint_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <optional>
#include <thread>
#include <utility>

#include "common/text/errors.hpp"

namespace syncrun::detail {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSavePrefix = ".syncrun-save-";
constexpr const char* kNextLink = ".syncrun-latest";
// How often a reader starts again because the checkpoint was replaced before the reader had opened it. Each time takes
// a whole save.
constexpr int kMostReplacements = 10'000;
// How long a save waits for readers that are opening the previous checkpoint. They need far less time unless they are
// stopped.
constexpr std::chrono::milliseconds kReadersLimit{200};
constexpr std::chrono::milliseconds kReadersLap{1};

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

/// Allows one writer at a time. On a file system without locks, there is no such check.
void lock(const Folder& folder) {
  if (::flock(folder.fd.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  throw_usage(folder.path.string() + ": another process is writing a checkpoint there");
}

/// The target of the link `latest`. Empty if it does not exist or is not a link. errno says which.
std::optional<std::string> link_target(const Folder& folder) {
  std::array<char, PATH_MAX> target{};
  const ssize_t length = ::readlinkat(folder.fd.get(), kLatest, target.data(), target.size());
  if (length < 0) return std::nullopt;
  return std::string(target.data(), static_cast<std::size_t>(length));
}

/// The name of the folder that `latest` leads to, for a save. Empty if there is no checkpoint. Throws Error (usage) if
/// `latest` is not a link that Syncrun has made.
std::string current_save(const Folder& folder) {
  const std::optional<std::string> target = link_target(folder);
  if (!target && errno == ENOENT) return {};
  const std::string name = target.value_or("");
  if (name.starts_with(kSavePrefix) && name.find('/') == std::string::npos) return name;
  throw_usage((folder.path / kLatest).string() + " is not the link of a checkpoint: save to another folder");
}

/// The name of the next folder.
std::string name_after(const std::string& current) {
  std::uint64_t number = 0;
  if (!current.empty()) {
    std::from_chars(current.data() + kSavePrefix.size(), current.data() + current.size(), number);
  }
  return std::string(kSavePrefix) + std::to_string(number + 1);
}

/// The name that a reader opens. If a checkpoint was copied, `latest` may be a folder instead of a link.
std::string target_of(const Folder& root) { return link_target(root).value_or(kLatest); }

}  // namespace

// ---- reading --------------------------------------------------------------------------------------------------

bool has_latest(const fs::path& path) noexcept try {
  const fs::path latest = path / kLatest;
  std::error_code error;
  for (int attempt = 0; attempt < kMostReplacements; ++attempt) {
    const fs::path target = fs::read_symlink(latest, error);  // empty if there is none
    if (fs::exists(latest, error)) return true;
    // The folder may have been removed after the link was read. In this case the link leads to another folder by now.
    if (fs::read_symlink(latest, error) == target) return false;
  }
  return true;  // the checkpoint was replaced each time
} catch (const std::exception&) {
  return false;  // no memory for the names
}

LatestFolder::LatestFolder(const fs::path& path) {
  if (!has_latest(path)) throw_usage("there is no checkpoint in " + path.string());
  // O_PATH only serves to find its contents, so the reader does not need permission to list the folder.
  FileDescriptor root(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.is_open()) {
    const int code = errno;
    throw_errno("cannot open " + path.string(), code);
  }
  root_ = {std::move(root), path};
  for (int attempt = 0; attempt < kMostReplacements; ++attempt) {
    if (open_once()) return;
  }
  throw Error(ErrorKind::system, (path / kLatest).string() + " was replaced each time before it could be opened");
}

/// Returns false if the checkpoint was replaced in the meantime.
bool LatestFolder::open_once() {
  target_ = target_of(root_);
  FileDescriptor save(::openat(root_.fd.get(), target_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!save.is_open()) {
    const int code = errno;
    if (code == ENOENT && is_replaced()) return false;
    throw_errno("cannot open " + (root_.path / kLatest).string(), code);
  }
  save_ = {std::move(save), root_.path / kLatest};
  const bool is_being_removed = ::flock(save_.fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (!is_being_removed) return !is_replaced();
  std::this_thread::sleep_for(kReadersLap);
  return false;
}

bool LatestFolder::is_replaced() const { return target_of(root_) != target_; }

// ---- writing --------------------------------------------------------------------------------------------------

CheckpointWriter::CheckpointWriter(const fs::path& path) : root_(make_folder(path)) {
  lock(root_);
  previous_ = current_save(root_);
  remove_all_but(previous_);
  name_ = name_after(previous_);
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
  is_committed_ = true;  // from here on, readers find the new folder
  sync(root_);
  remove_all_but(name_);
}

/// A folder that cannot be removed now is left for the next save. Only the folder that this save has replaced may have
/// readers that are opening it. Others keep it for longer, and are not awaited.
void CheckpointWriter::remove_all_but(const std::string& kept) const noexcept try {
  ::unlinkat(root_.fd.get(), kNextLink, 0);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root_.path, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kSavePrefix) || name == kept) continue;
    remove(name, name == previous_ ? Readers::awaited : Readers::left_alone);
  }
} catch (const std::exception&) {
  // No memory for the names.
}

/// Removes the folder, unless a reader is about to read it.
void CheckpointWriter::remove(const std::string& name, Readers readers) const {
  const FileDescriptor folder(::openat(root_.fd.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  const auto is_read = [&] {
    return folder.is_open() && ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  };
  const auto until = std::chrono::steady_clock::now() + kReadersLimit;
  while (is_read()) {
    if (readers == Readers::left_alone || std::chrono::steady_clock::now() >= until) return;
    std::this_thread::sleep_for(kReadersLap);
  }
  std::error_code left;
  fs::remove_all(root_.path / name, left);
}

}  // namespace syncrun::detail

#include "launcher/checkpoint/checkpoint_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/text/errors.hpp"

namespace syncrun::detail {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSavePrefix = ".syncrun-save-";
constexpr std::string_view kWritingPrefix = ".syncrun-writing-";
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

std::string name_of_save(std::uint64_t number) { return std::string(kSavePrefix) + std::to_string(number); }
std::string name_of_writing(std::uint64_t number) { return std::string(kWritingPrefix) + std::to_string(number); }

/// The number in a name that begins with this prefix. 0 if it is another name.
std::uint64_t number_in(std::string_view name, std::string_view prefix) noexcept {
  std::uint64_t number = 0;
  if (!name.starts_with(prefix)) return 0;
  const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
  return error == std::errc{} && end == name.data() + name.size() ? number : 0;
}

/// The numbers of all folders with this prefix, the highest first. Empty if the folder cannot be listed.
std::vector<std::uint64_t> numbers_in(const fs::path& folder, std::string_view prefix) {
  std::vector<std::uint64_t> numbers;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::uint64_t number = number_in(entry->path().filename().string(), prefix);
    if (number != 0) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end(), std::greater<>());
  return numbers;
}

std::string newest_name(const fs::path& folder) {
  const auto numbers = numbers_in(folder, kSavePrefix);
  return numbers.empty() ? "" : name_of_save(numbers.front());
}

/// The target of the link `latest`. Empty if it does not exist or is not a link. errno says which.
std::optional<std::string> link_target(const Folder& folder) {
  std::array<char, PATH_MAX> target{};
  const ssize_t length = ::readlinkat(folder.fd.get(), kLatest, target.data(), target.size());
  if (length < 0) return std::nullopt;
  return std::string(target.data(), static_cast<std::size_t>(length));
}

/// Some file systems have no symbolic links: FAT, and many that store objects.
bool means_no_links(int code) noexcept { return code == EPERM || code == ENOSYS || code == EOPNOTSUPP; }

}  // namespace

// ---- reading --------------------------------------------------------------------------------------------------

bool has_checkpoint(const fs::path& path) noexcept try {
  // A save removes one name and adds another while this function reads the folder. So one look may find neither.
  constexpr int kLooks = 3;
  const fs::path latest = path / kLatest;
  std::error_code error;
  for (int look = 0; look < kLooks; ++look) {
    if (fs::symlink_status(latest, error).type() != fs::file_type::not_found) return true;
    if (!newest_name(path).empty()) return true;
  }
  return false;
} catch (const std::exception&) {
  return false;  // no memory for the names
}

LatestFolder::LatestFolder(const fs::path& path, const Problem& problem) {
  if (!has_checkpoint(path)) throw_usage("there is no checkpoint in " + path.string());
  // O_PATH only serves to find its contents, so the reader does not need permission to list the folder.
  FileDescriptor root(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.is_open()) {
    const int code = errno;
    throw_errno("cannot open " + path.string(), code);
  }
  root_ = {std::move(root), path};
  for (int attempt = 0; attempt < kMostReplacements; ++attempt) {
    if (open_once(problem)) return;
  }
  throw Error(ErrorKind::system, (path / kLatest).string() + " was replaced each time before it could be opened");
}

/// Returns false if the checkpoint was replaced in the meantime.
bool LatestFolder::open_once(const Problem& problem) {
  newest_.clear();
  target_ = link_target(root_).value_or(kLatest);  // in some copies, `latest` is a folder
  if (!open(target_)) {
    const int code = errno;
    if (code != ENOENT) throw_errno("cannot open " + (root_.path / kLatest).string(), code);
    return !is_replaced() && open_newest(problem);
  }
  const bool is_being_removed = ::flock(save_.fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (!is_being_removed) return !is_replaced();
  std::this_thread::sleep_for(kReadersLap);
  return false;
}

/// Opens the newest complete folder, because `latest` leads to none. Returns false if the checkpoint was replaced in the
/// meantime.
bool LatestFolder::open_newest(const Problem& problem) {
  const bool is_link = link_target(root_).has_value();
  const std::string why = (root_.path / kLatest).string() +
                          (is_link ? " leads to " + target_ + ", which does not exist" : " does not exist");
  newest_ = newest_name(root_.path);
  std::string incomplete;
  for (const std::uint64_t number : numbers_in(root_.path, kSavePrefix)) {
    target_ = name_of_save(number);
    if (!open(target_) || (::flock(save_.fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)) return false;
    const std::string found = problem(save_);
    if (found.empty()) {
      note_ = why + ". Using " + target_ + ", the newest complete checkpoint there";
      return !is_replaced();
    }
    if (is_replaced()) return false;
    incomplete += "; " + target_ + " is incomplete: " + found;
  }
  throw_usage(root_.path.string() + " has no complete checkpoint: " + why + incomplete +
              ". Copy the whole folder again (cp -a), or remove what is left of it to start over");
}

/// Opens a folder in the root. Returns false if that fails. errno says why.
bool LatestFolder::open(const std::string& name) {
  FileDescriptor save(::openat(root_.fd.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!save.is_open()) return false;
  save_ = {std::move(save), root_.path / (name == target_ && newest_.empty() ? kLatest : name)};
  return true;
}

bool LatestFolder::is_replaced() const {
  if (newest_.empty()) return link_target(root_).value_or(kLatest) != target_;
  struct stat ignored {};
  return ::fstatat(root_.fd.get(), kLatest, &ignored, 0) == 0 || newest_name(root_.path) != newest_;
}

// ---- writing --------------------------------------------------------------------------------------------------

CheckpointWriter::CheckpointWriter(const fs::path& path) : root_(make_folder(path)) {
  lock(root_);
  for (const std::uint64_t left : numbers_in(path, kWritingPrefix)) remove(name_of_writing(left), Readers::left_alone);
  const auto saves = numbers_in(path, kSavePrefix);
  const std::uint64_t newest = saves.empty() ? 0 : saves.front();
  number_ = newest + 1;
  const std::optional<std::string> target = link_target(root_);
  if (target) {
    previous_ = target->find('/') == std::string::npos ? number_in(*target, kSavePrefix) : 0;
    number_ = std::max(number_, previous_ + 1);
  } else if (errno == ENOENT) {
    previous_ = newest;
  } else if (::faccessat(root_.fd.get(), (fs::path(kLatest) / kManifest).c_str(), F_OK, 0) == 0) {
    is_latest_folder_ = true;
    previous_ = number_++;
  }
  if (previous_ == 0 && (target || ::faccessat(root_.fd.get(), kLatest, F_OK, 0) == 0))
    throw_usage((path / kLatest).string() + " is not the link of a checkpoint: save to another folder");
  const std::string name = name_of_writing(number_);
  if (::mkdirat(root_.fd.get(), name.c_str(), 0777) != 0) throw_errno("cannot make " + (path / name).string());
  save_ = open_folder(path / name);
}

CheckpointWriter::~CheckpointWriter() {
  if (is_committed_) return;
  std::error_code error;
  fs::remove_all(save_.path, error);
}

void CheckpointWriter::commit() {
  sync(save_);
  const int root = root_.fd.get();
  const std::string name = name_of_save(number_);
  if (::renameat(root, name_of_writing(number_).c_str(), root, name.c_str()) != 0)
    throw_errno("cannot write " + (root_.path / name).string());
  save_.path = root_.path / name;
  sync(root_);
  lead_to_new_one();
  is_committed_ = true;  // from here on, readers find the new folder
  sync(root_);
  remove_older();
}

/// On a file system without links, readers find the new folder by its number.
void CheckpointWriter::lead_to_new_one() {
  const int root = root_.fd.get();
  const auto check = [&](int result) {
    if (result == 0) return;
    const int code = errno;
    ::unlinkat(root, kNextLink, 0);
    throw_errno("cannot write " + (root_.path / kLatest).string(), code);
  };
  if (is_latest_folder_) check(::renameat(root, kLatest, root, name_of_save(previous_).c_str()));
  ::unlinkat(root, kNextLink, 0);  // an interrupted save may have left it
  const int result = ::symlinkat(name_of_save(number_).c_str(), root, kNextLink);
  if (result != 0 && means_no_links(errno)) return;
  check(result);
  check(::renameat(root, kNextLink, root, kLatest));
}

/// A folder that cannot be removed now is left for the next save. Only the folder that this save has replaced may have
/// readers that are opening it. Others keep it for longer, and are not awaited.
void CheckpointWriter::remove_older() const noexcept try {
  for (const std::uint64_t number : numbers_in(root_.path, kSavePrefix)) {
    if (number > previous_) continue;
    remove(name_of_save(number), number == previous_ ? Readers::awaited : Readers::left_alone);
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

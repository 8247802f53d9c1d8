#include "master/checkpoint/checkpoint_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <csignal>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/text/errors.hpp"

namespace syncrun::detail::master::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSavePrefix = ".syncrun-save-";
constexpr std::string_view kWritingPrefix = ".syncrun-writing-";
constexpr std::string_view kNextLink = ".syncrun-latest-";  // and the mark of the save
constexpr const char* kLock = ".syncrun-lock";
// A save writes all the time. If it has written nothing for this long, it is over.
constexpr std::chrono::hours kLongestPause{24};
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

/// Makes the folder and those above it that do not exist, and waits until all of them are on disk.
arrays::Folder make_folder(const fs::path& path) {
  std::vector<fs::path> missing;
  std::error_code ignored;  // if the folder cannot be reached, it cannot be made either
  for (fs::path each = fs::absolute(path).lexically_normal(); !fs::exists(each, ignored); each = parent_of(each))
    missing.push_back(each);
  std::error_code error;
  fs::create_directories(path, error);
  if (error && !fs::is_directory(path, ignored)) text::throw_errno("cannot make " + path.string(), error.value());
  for (const fs::path& made : missing) arrays::sync(arrays::open_folder(parent_of(made)));
  return arrays::open_folder(path);
}

/// Identifies the start of this machine and the namespace of this process: "1b9d6bcd45e9-4026531836-". If both are the
/// same, kill(2) can tell whether a process still exists.
std::string own_machine() {
  constexpr std::size_t kEnough = 13;  // of the random number of a start, in hexadecimal digits
  std::string start;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), start);
  std::erase(start, '-');
  struct stat processes {};
  static_cast<void>(::stat("/proc/self/ns/pid", &processes));
  return start.substr(0, kEnough) + "-" + std::to_string(processes.st_ino) + "-";
}

/// A mark that no other save has, with its process.
std::string new_mark(const std::string& machine) {
  static std::atomic<std::uint64_t> saves{0};
  return machine + std::to_string(::getpid()) + "-" + std::to_string(++saves);
}

/// False if the mark is of a process of this machine that is gone.
bool may_be_running(std::string_view mark, const std::string& machine) {
  if (machine.front() == '-' || !mark.starts_with(machine)) return true;  // some sandboxes have no boot_id
  mark.remove_prefix(machine.size());
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(mark.data(), mark.data() + mark.size(), pid);
  return error != std::errc{} || pid <= 0 || ::kill(pid, 0) == 0 || errno != ESRCH;
}

/// True if nothing has changed in the folder for a day, or if it is a link that was made before that.
bool is_old(const fs::path& folder) {
  std::error_code error;
  struct stat own {};
  if (::lstat(folder.c_str(), &own) == 0 && S_ISLNK(own.st_mode))  // it may lead nowhere
    return std::chrono::system_clock::now() - std::chrono::system_clock::from_time_t(own.st_mtime) > kLongestPause;
  const auto limit = fs::file_time_type::clock::now() - kLongestPause;
  if (fs::last_write_time(folder, error) > limit || error) return false;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (fs::last_write_time(entry->path(), error) > limit) return false;
  }
  return !error;
}

std::string name_of_writing(std::uint64_t number, const std::string& mark) {
  return std::string(kWritingPrefix) + std::to_string(number) + "-" + mark;
}

std::string name_of_save(std::uint64_t number) { return std::string(kSavePrefix) + std::to_string(number); }

/// The number in a name that begins with this prefix. 0 if it is another name.
std::uint64_t number_in(std::string_view name, std::string_view prefix) noexcept {
  std::uint64_t number = 0;
  if (!name.starts_with(prefix)) return 0;
  const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
  return error == std::errc{} && end == name.data() + name.size() ? number : 0;
}

/// The names in a folder that begin with this prefix. Empty if the folder cannot be listed.
std::vector<std::string> names_in(const fs::path& folder, std::string_view prefix) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name.starts_with(prefix)) names.push_back(std::move(name));
  }
  return names;
}

/// The numbers of all complete folders, the highest first. Empty if the folder cannot be listed.
std::vector<std::uint64_t> saves_in(const fs::path& folder) {
  std::vector<std::uint64_t> numbers;
  for (const std::string& name : names_in(folder, kSavePrefix)) {
    if (const std::uint64_t number = number_in(name, kSavePrefix); number != 0) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end(), std::greater<>());
  return numbers;
}

std::string newest_name(const fs::path& folder) {
  const auto numbers = saves_in(folder);
  return numbers.empty() ? "" : name_of_save(numbers.front());
}

/// The target of the link `latest`. Empty if it does not exist or is not a link. errno says which.
std::optional<std::string> link_target(const arrays::Folder& folder) {
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
  if (!has_checkpoint(path)) text::throw_usage("there is no checkpoint in " + path.string());
  // O_PATH only serves to find its contents, so the reader does not need permission to list the folder.
  os::FileDescriptor root(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!root.is_open()) {
    const int code = errno;
    text::throw_errno("cannot open " + path.string(), code);
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
    if (code != ENOENT) text::throw_errno("cannot open " + (root_.path / kLatest).string(), code);
    return !leads_elsewhere() && open_newest(problem);
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
  for (const std::uint64_t number : saves_in(root_.path)) {
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
  text::throw_usage(root_.path.string() + " has no complete checkpoint: " + why + incomplete +
                    ". Copy the whole folder again (cp -a), or remove what is left of it to start over");
}

/// Opens a folder in the root. Returns false if that fails. errno says why.
bool LatestFolder::open(const std::string& name) {
  os::FileDescriptor save(::openat(root_.fd.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!save.is_open()) return false;
  save_ = {std::move(save), root_.path / (name == target_ && newest_.empty() ? kLatest : name)};
  return true;
}

/// A save that removes the folder takes its name first. Where no lock holds that save back, the link may still lead there:
/// a third save may have set it back for a moment.
bool LatestFolder::is_replaced() const {
  struct stat opened {};
  struct stat found {};
  const bool is_in_place = ::fstat(save_.fd.get(), &opened) == 0 &&
                           ::fstatat(root_.fd.get(), target_.c_str(), &found, 0) == 0 &&
                           opened.st_dev == found.st_dev && opened.st_ino == found.st_ino;
  return !is_in_place || leads_elsewhere();
}

bool LatestFolder::leads_elsewhere() const {
  if (newest_.empty()) return link_target(root_).value_or(kLatest) != target_;
  struct stat ignored {};
  return ::fstatat(root_.fd.get(), kLatest, &ignored, 0) == 0 || newest_name(root_.path) != newest_;
}

// ---- writing --------------------------------------------------------------------------------------------------

SaveLock::SaveLock(const arrays::Folder& folder) : folder_(folder) {
  const fs::path path = folder.path / kLock;
  struct flock whole {};
  whole.l_type = F_WRLCK;
  for (int attempt = 0; attempt < kMostReplacements; ++attempt) {
    file_ = os::FileDescriptor(
        ::openat(folder.fd.get(), kLock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    if (!file_.is_open()) text::throw_errno("cannot write " + path.string());
    // Every user who may write in the folder must be able to lock the file. A save of another user that was killed leaves
    // its file, and only that user can change the mode. So the mode is set now.
    struct stat status {};
    if (::fstat(folder.fd.get(), &status) == 0) static_cast<void>(::fchmod(file_.get(), status.st_mode & 0666));
    if (::fcntl(file_.get(), F_OFD_SETLK, &whole) != 0 && (errno == EAGAIN || errno == EACCES))
      text::throw_usage(folder.path.string() + ": another process is writing a checkpoint there");
    if (arrays::is_in_place(file_, folder, kLock)) return;  // else the process that had the lock has removed the file
  }
  throw Error(ErrorKind::system, path.string() + " was replaced each time before it could be locked");
}

SaveLock::~SaveLock() {
  if (arrays::is_in_place(file_, folder_, kLock)) ::unlinkat(folder_.fd.get(), kLock, 0);
}

CheckpointWriter::CheckpointWriter(const fs::path& path) : root_(make_folder(path)), lock_(root_) {
  const std::string machine = own_machine();
  remove_left(machine);
  mark_ = new_mark(machine);
  older_ = saves_in(path);
  const std::uint64_t newest = older_.empty() ? 0 : older_.front();
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
    older_.push_back(previous_);
  }
  if (previous_ == 0 && (target || ::faccessat(root_.fd.get(), kLatest, F_OK, 0) == 0))
    text::throw_usage((path / kLatest).string() + " is not the link of a checkpoint: save to another folder");
  std::erase_if(older_, [this](std::uint64_t number) { return number > previous_; });
  writing_ = name_of_writing(number_, mark_);
  if (::mkdirat(root_.fd.get(), writing_.c_str(), 0777) != 0)
    text::throw_errno("cannot make " + (path / writing_).string());
  save_ = arrays::open_folder(path / writing_);
}

/// Removes what interrupted saves have left.
void CheckpointWriter::remove_left(const std::string& machine) const {
  for (const std::string_view prefix : {kWritingPrefix, kNextLink}) {
    for (const std::string& name : names_in(root_.path, prefix)) {
      const std::size_t mark = prefix == kNextLink ? prefix.size() : name.find('-', prefix.size()) + 1;
      if (!may_be_running(std::string_view(name).substr(mark), machine) || is_old(root_.path / name))
        remove(name, Readers::left_alone);
    }
  }
}

CheckpointWriter::~CheckpointWriter() {
  if (is_committed_) return;
  try {
    remove(save_.path.filename().string(), Readers::left_alone);
  } catch (const std::exception&) {
    // No memory for the name. The next save removes the folder.
  }
}

void CheckpointWriter::commit() {
  arrays::sync(save_);
  rename_to_number();
  arrays::sync(root_);
  if (newest_number() != number_) give_way();
  lead_to(number_);
  // Just before this, another save may have made the link point to a newer checkpoint. If so, the link is set back to the
  // newest one. Meanwhile a third save may replace that one and remove it, so this looks again each time.
  std::uint64_t last = number_;
  for (std::uint64_t newest = newest_number(); newest != last; newest = newest_number()) lead_to(last = newest);
  if (last != number_) give_way();
  is_committed_ = true;  // from here on, readers find the new folder
  arrays::sync(root_);
  remove_older();
}

void CheckpointWriter::rename_to_number() {
  const int root = root_.fd.get();
  const std::string name = name_of_save(number_);
  if (::renameat(root, writing_.c_str(), root, name.c_str()) != 0) {
    if (errno == ENOTEMPTY || errno == EEXIST) give_way();
    text::throw_errno("cannot write " + (root_.path / name).string());
  }
  save_.path = root_.path / name;
}

/// The number of this save, or of a newer checkpoint that another process has completed since this save began.
std::uint64_t CheckpointWriter::newest_number() const {
  const auto saves = saves_in(root_.path);
  return saves.empty() ? number_ : std::max(number_, saves.front());
}

void CheckpointWriter::give_way() const {
  text::throw_usage(
      root_.path.string() +
      ": another process has saved a checkpoint there since this save began. That checkpoint stays, and " +
      "this one is removed. Let each program save to a folder of its own, and end the processes that are " +
      "left of an earlier job");
}

/// On a file system without links, readers find the new folder by its number.
void CheckpointWriter::lead_to(std::uint64_t number) {
  const int root = root_.fd.get();
  const std::string next = std::string(kNextLink) + mark_;
  const auto check = [&](int result) {
    if (result == 0) return;
    const int code = errno;
    ::unlinkat(root, next.c_str(), 0);
    text::throw_errno("cannot write " + (root_.path / kLatest).string(), code);
  };
  if (std::exchange(is_latest_folder_, false)) check(::renameat(root, kLatest, root, name_of_save(previous_).c_str()));
  const int result = ::symlinkat(name_of_save(number).c_str(), root, next.c_str());
  if (result != 0 && means_no_links(errno)) return;
  check(result);
  check(::renameat(root, next.c_str(), root, kLatest));
}

/// A folder that cannot be removed now is left for the next save. Only the folder that this save has replaced may have
/// readers that are opening it. Others keep it for longer, and are not awaited.
void CheckpointWriter::remove_older() const noexcept try {
  for (const std::uint64_t number : older_)
    remove(name_of_save(number), number == previous_ ? Readers::awaited : Readers::left_alone);
} catch (const std::exception&) {
  // No memory for the names.
}

/// Removes the folder, unless a reader is about to read it. A complete folder loses its name first, so that nobody finds
/// half of it. If this process ends meanwhile, a later save removes the rest.
void CheckpointWriter::remove(const std::string& name, Readers readers) const {
  const os::FileDescriptor folder(
      ::openat(root_.fd.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  const auto is_read = [&] {
    return folder.is_open() && ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  };
  const auto until = std::chrono::steady_clock::now() + kReadersLimit;
  while (is_read()) {
    if (readers == Readers::left_alone || std::chrono::steady_clock::now() >= until) return;
    std::this_thread::sleep_for(kReadersLap);
  }
  std::string last_name = name;
  if (const std::uint64_t number = number_in(name, kSavePrefix); number != 0) {
    const int root = root_.fd.get();
    std::string nobodys = name_of_writing(number, mark_);
    if (::renameat(root, name.c_str(), root, nobodys.c_str()) == 0) last_name = std::move(nobodys);
  }
  std::error_code left;
  fs::remove_all(root_.path / last_name, left);
}

}  // namespace syncrun::detail::master::checkpoint

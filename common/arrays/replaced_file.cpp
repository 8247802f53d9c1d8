#include "common/arrays/replaced_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>

#include "common/arrays/array_file.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail {

namespace {

namespace fs = std::filesystem;

/// A path as its folder and its name there.
struct Place {
  Folder folder;
  std::string name;
};

Place place_of(const fs::path& file) {
  if (!file.has_filename()) throw_usage("expected a file, got '" + file.string() + "'");
  return {open_folder(file.has_parent_path() ? file.parent_path() : fs::path(".")), file.filename().string()};
}

// How often a save opens its temporary file again because another process has renamed it in the meantime. Each time
// takes a whole save.
constexpr int kMostRenames = 10'000;

/// Whether `name` is this open file, and a save may write to it: it is a regular file and has no other name.
bool is_own_file(const FileDescriptor& fd, const Folder& folder, const std::string& name) {
  struct stat own {};
  struct stat there {};
  return ::fstat(fd.get(), &own) == 0 && ::fstatat(folder.fd.get(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
         own.st_dev == there.st_dev && own.st_ino == there.st_ino && S_ISREG(own.st_mode) && own.st_nlink == 1;
}

/// Removes what has the name of the temporary file if a save must not write to it: a link, a pipe, or a file that has a
/// second name. Leaves the temporary file of another save. Throws Error (system).
void remove_foreign(const Folder& folder, const std::string& name) {
  struct stat there {};
  if (::fstatat(folder.fd.get(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) != 0) return;  // it is gone
  if (S_ISREG(there.st_mode) && there.st_nlink == 1) return;
  if (::unlinkat(folder.fd.get(), name.c_str(), 0) == 0 || errno == ENOENT) return;
  const int code = errno;
  throw_errno("cannot replace " + (folder.path / name).string(), code);
}

/// Opens the temporary file of a save, locks it and empties it. The save writes through this descriptor, because two
/// processes that write would mix their values. On a file system without locks, the file stays unlocked. Throws Error
/// (usage) if another process is writing there, and Error (system).
FileDescriptor lock_temporary(const Folder& folder, const std::string& name) {
  const fs::path path = folder.path / name;
  for (int attempt = 0; attempt < kMostRenames; ++attempt) {
    // O_NONBLOCK: if `name` is a pipe, open does not wait for a reader.
    FileDescriptor fd(
        ::openat(folder.fd.get(), name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    const int code = errno;
    const bool is_link_or_pipe = !fd.is_open() && (code == ELOOP || code == ENXIO);
    if (!fd.is_open() && !is_link_or_pipe) throw_errno("cannot write " + path.string(), code);
    if (fd.is_open() && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw_usage(path.string() + ": another process is writing it");
    }
    if (fd.is_open() && is_own_file(fd, folder, name)) {
      if (::ftruncate(fd.get(), 0) != 0) throw_errno("cannot write " + path.string());
      return fd;
    }
    // If it is a regular file, another process has renamed it in the meantime. It is the saved file now.
    remove_foreign(folder, name);
  }
  throw Error(ErrorKind::system, path.string() + " was replaced each time before it could be locked");
}

}  // namespace

void replace_file(const fs::path& file, const std::function<void(const AppendBytes&)>& fill) {
  const Place place = place_of(file);
  const std::string temporary = place.name + ".tmp";
  const fs::path path = place.folder.path / temporary;
  const int folder = place.folder.fd.get();
  const FileDescriptor locked = lock_temporary(place.folder, temporary);
  try {
    std::uint64_t end = 0;
    fill([&](std::span<const std::byte> bytes) {
      write_at(locked, path, end, bytes);
      end += bytes.size();
    });
    sync_file(locked, path);
    if (::renameat(folder, temporary.c_str(), folder, place.name.c_str()) != 0)
      throw_errno("cannot write " + file.string());
  } catch (...) {
    ::unlinkat(folder, temporary.c_str(), 0);
    throw;
  }
  sync(place.folder);
}

}  // namespace syncrun::detail

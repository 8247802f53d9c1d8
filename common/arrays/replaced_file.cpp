#include "common/arrays/replaced_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <random>
#include <string>
#include <utility>

#include "common/arrays/array_file.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::arrays {

namespace {

namespace fs = std::filesystem;

/// A path as its folder and its name there.
struct Place {
  Folder folder;
  std::string name;
};

Place place_of(const fs::path& file) {
  if (!file.has_filename()) text::throw_usage("expected a file, got '" + file.string() + "'");
  return {open_folder(file.has_parent_path() ? file.parent_path() : fs::path(".")), file.filename().string()};
}

// How often a save makes its temporary file again if another save removes it at the same moment.
constexpr int kMostAttempts = 10'000;

/// Removes what has the name of the temporary file: the file of an interrupted save, a link or a pipe. Throws Error
/// (usage) if another save has locked it, and Error (system).
void remove_left(const Folder& folder, const std::string& name) {
  const fs::path path = folder.path / name;
  // O_NONBLOCK: if `name` is a pipe, open does not wait for a reader.
  const os::FileDescriptor left(
      ::openat(folder.fd.get(), name.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (left.is_open() && ::flock(left.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    text::throw_usage(path.string() + ": another process is writing it");
  if (left.is_open() && !is_in_place(left, folder, name)) return;  // another save has removed it, and made its own
  if (::unlinkat(folder.fd.get(), name.c_str(), 0) == 0 || errno == ENOENT) return;
  const int code = errno;
  text::throw_errno("cannot replace " + path.string(), code);
}

/// Makes the temporary file of a save, and locks it. On a file system without locks, it stays unlocked: another save then
/// makes a file of its own, because values of two saves must not mix. Throws as remove_left().
os::FileDescriptor make_temporary(const Folder& folder, const std::string& name) {
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    os::FileDescriptor fd(::openat(folder.fd.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd.is_open()) {
      if (errno != EEXIST) text::throw_errno("cannot write " + (folder.path / name).string());
      remove_left(folder, name);
      continue;
    }
    const bool is_locked_by_other = ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!is_locked_by_other && is_in_place(fd, folder, name)) return fd;
  }
  throw Error(ErrorKind::system, (folder.path / name).string() + " was replaced each time before it could be locked");
}

/// Gives a complete file a name under which nobody else can replace it. Without locks between all savers (NFS), another
/// save may put its own file in the place of the temporary one at any moment. Returns nothing if it has done so.
std::string own_name_of(const os::FileDescriptor& own, const Folder& folder, const std::string& temporary) {
  std::string name = temporary + "." + std::to_string(std::random_device{}());
  if (::renameat(folder.fd.get(), temporary.c_str(), folder.fd.get(), name.c_str()) != 0) return {};
  if (is_in_place(own, folder, name)) return name;
  // This is the file of the other save. It goes back, unless there is a third one now.
  static_cast<void>(::linkat(folder.fd.get(), name.c_str(), folder.fd.get(), temporary.c_str(), 0));
  ::unlinkat(folder.fd.get(), name.c_str(), 0);
  return {};
}

}  // namespace

void replace_file(const fs::path& file, const std::function<void(const AppendBytes&)>& fill) {
  const Place place = place_of(file);
  const std::string temporary = place.name + ".tmp";
  const fs::path path = place.folder.path / temporary;
  const int folder = place.folder.fd.get();
  const os::FileDescriptor own = make_temporary(place.folder, temporary);
  std::string name = temporary;
  try {
    std::uint64_t end = 0;
    fill([&](std::span<const std::byte> bytes) {
      write_at(own, path, end, bytes);
      end += bytes.size();
    });
    sync_file(own, path);
    name = own_name_of(own, place.folder, temporary);
    if (name.empty())
      text::throw_usage(file.string() + ": another process is writing it too. Let each write to a file of its own");
    if (::renameat(folder, name.c_str(), folder, place.name.c_str()) != 0)
      text::throw_errno("cannot write " + file.string());
    sync(place.folder);
  } catch (...) {
    if (!name.empty() && is_in_place(own, place.folder, name)) ::unlinkat(folder, name.c_str(), 0);
    throw;
  }
}

}  // namespace syncrun::detail::arrays

#pragma once

// The folder of a checkpoint, and how a save replaces its contents in one step:
//
//   run/latest -> .syncrun-save-7      a symbolic link, replaced by rename(2)
//   run/.syncrun-save-7/               manifest.txt, params.npy, ...
//   run/.syncrun-writing-8-1a2b3c/     a save that has not ended; the name is that of one process and save
//
// A save writes a new folder, waits until it is on disk, renames it, and then makes the link point to it. So a folder
// with the first of these names was complete once. Renaming over a link is atomic on every file system that has links,
// including network file systems. Exchanging two folders (renameat2) is not.
//
// Some file systems have no links, and some tools do not copy them. Without the link, a reader takes the complete folder
// with the highest number. A tool may also copy what the link leads to: then `latest` is a folder, and the next save
// renames it.
//
// One process saves at a time. It locks a file, run/.syncrun-lock, because the locks of files (unlike those of folders)
// hold between the machines that share a network file system. On a file system without locks, two processes may save
// at once. So nothing relies on the lock alone:
//
//   - Each process writes to a folder of its own.
//   - Renaming a folder over one that has files fails. So of two saves with one number, only one can be committed.
//   - A save that finds a newer checkpoint when it has renamed its folder gives up. If the newer one comes a moment later,
//     the link may lead to the older one. So each save looks again after it has changed the link, and corrects it.
//   - A save removes only folders that were there when it began, and only up to the number of the checkpoint that it
//     replaces, because only they are known to be older. It removes what interrupted saves have left if their process was
//     on this machine and is gone, or if nothing has changed there for a day.
//
// A reader may open a folder after the link has changed and before the save removes the old folder. Both sides use
// flock on the folder of the save:
//
//   reader  open it, lock it (shared), and check whether `latest` still leads there; if not, start again with the
//           new one
//   save    let `latest` lead to the new one, lock the old one (exclusive), and remove it; if a reader has it, wait a
//           little, and otherwise leave it to the next save
//
// So a folder that a reader has locked stays, and no reader uses a folder that is being removed. On a file system
// without locks, a reader that misses a file starts again if `latest` has changed.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "common/arrays/array_file.hpp"
#include "common/os/file_descriptor.hpp"

namespace syncrun::detail::master::checkpoint {

inline constexpr const char* kLatest = "latest";
inline constexpr const char* kManifest = "manifest.txt";

/// True if the folder contains a checkpoint, or something that is left of one, such as a link that leads nowhere. A save
/// at the same time does not change the answer.
bool has_checkpoint(const std::filesystem::path& path) noexcept;

/// The checkpoint that was saved last. It is locked, so no save removes it while this object lives.
class LatestFolder {
 public:
  /// Says what is wrong with a folder that should contain a checkpoint. Empty if it is complete.
  using Problem = std::function<std::string(const arrays::Folder&)>;

  /// Without a link that leads to a folder, takes the newest one without a `problem`. Throws Error (usage) if there is no
  /// checkpoint, or no complete one, and Error (system).
  LatestFolder(const std::filesystem::path& path, const Problem& problem);
  const arrays::Folder& folder() const noexcept { return save_; }
  /// Its path without the link. It still leads to this checkpoint after another save.
  std::filesystem::path own_path() const { return std::filesystem::absolute(root_.path / target_); }
  /// True if there is a newer checkpoint by now, or if a save removes this one.
  bool is_replaced() const;
  /// Why this is not the folder to which `latest` leads. Empty if it is.
  const std::string& note() const noexcept { return note_; }

 private:
  bool open_once(const Problem& problem);
  bool open_newest(const Problem& problem);
  bool open(const std::string& name);
  bool leads_elsewhere() const;

  arrays::Folder root_;
  std::string target_;
  std::string newest_;  // without a link: the name with the highest number
  std::string note_;
  arrays::Folder save_;
};

/// The right to save in a folder, for one process at a time. On a file system without locks, every process gets it.
class SaveLock {
 public:
  /// Throws Error (usage) if another process has it. Throws Error (system).
  explicit SaveLock(const arrays::Folder& folder);
  ~SaveLock();
  SaveLock(const SaveLock&) = delete;
  SaveLock& operator=(const SaveLock&) = delete;

 private:
  const arrays::Folder& folder_;
  os::FileDescriptor file_;
};

/// A save in progress. Readers see what is written here once commit() has returned. Without commit(), the destructor
/// removes it.
class CheckpointWriter {
 public:
  /// Creates the folder if it does not exist, and removes what interrupted saves have left. Throws Error (system).
  /// Throws Error (usage) if another process is writing there, or if something other than a checkpoint is in its place.
  explicit CheckpointWriter(const std::filesystem::path& path);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// The folder to write to.
  const arrays::Folder& folder() const noexcept { return save_; }

  /// Throws Error (system). Throws Error (usage) if another process has saved a checkpoint there meanwhile. That
  /// checkpoint stays, and the destructor removes this one.
  void commit();

 private:
  /// Whether a removal waits for readers of the folder.
  enum class Readers : std::uint8_t { awaited, left_alone };
  void remove_left(const std::string& machine) const;
  void rename_to_number();
  void lead_to(std::uint64_t number);
  std::uint64_t newest_number() const;
  [[noreturn]] void give_way() const;
  void remove_older() const noexcept;
  void remove(const std::string& name, Readers readers) const;

  arrays::Folder root_;
  SaveLock lock_;
  std::string mark_;                  // of this save, in the names of what it has not completed
  std::vector<std::uint64_t> older_;  // the numbers of the folders to remove after the save
  std::uint64_t previous_ = 0;     // the number of the last checkpoint, which this one replaces; 0 if this is the first
  bool is_latest_folder_ = false;  // the last checkpoint is a folder `latest`, which is renamed to its number
  std::uint64_t number_ = 0;
  std::string writing_;  // the name of the folder until it is complete
  arrays::Folder save_;
  bool is_committed_ = false;
};

}  // namespace syncrun::detail::master::checkpoint

#pragma once

// The folder of a checkpoint, and how a save replaces its contents in one step:
//
//   run/latest -> .syncrun-save-7      a symbolic link, replaced by rename(2)
//   run/.syncrun-save-7/               manifest.txt, params.npy, ...
//
// A save writes a new folder, waits until it is on disk, and then makes the link point to it. Renaming over a link is
// atomic on every file system that has links, including network file systems. Exchanging two folders (renameat2) is
// not.
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
#include <string>

#include "common/arrays/array_file.hpp"

namespace syncrun::detail {

inline constexpr const char* kLatest = "latest";
inline constexpr const char* kManifest = "manifest.txt";

/// True if the folder contains a checkpoint. A save at the same time does not change the answer.
bool has_latest(const std::filesystem::path& path) noexcept;

/// The checkpoint that was saved last. It is locked, so no save removes it while this object lives.
class LatestFolder {
 public:
  /// Throws Error (usage) if there is no checkpoint, and Error (system).
  explicit LatestFolder(const std::filesystem::path& path);
  const Folder& folder() const noexcept { return save_; }
  /// Its path without the link. It still leads to this checkpoint after another save.
  std::filesystem::path own_path() const { return std::filesystem::absolute(root_.path / target_); }
  /// True if `latest` leads to another folder by now.
  bool is_replaced() const;

 private:
  bool open_once();

  Folder root_;
  std::string target_;
  Folder save_;
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
  const Folder& folder() const noexcept { return save_; }

  /// Throws Error (system).
  void commit();

 private:
  /// Whether a removal waits for readers of the folder.
  enum class Readers : std::uint8_t { awaited, left_alone };
  void remove_all_but(const std::string& kept) const noexcept;
  void remove(const std::string& name, Readers readers) const;

  Folder root_;
  std::string previous_;  // the last checkpoint, which this one replaces; empty if this is the first
  std::string name_;
  Folder save_;
  bool is_committed_ = false;
};

}  // namespace syncrun::detail

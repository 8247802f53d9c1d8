#pragma once

// The folder of a checkpoint, and how what is in it changes at once:
//
//   run/latest -> .syncrun-save-7      a symbolic link, replaced by rename(2)
//   run/.syncrun-save-7/               manifest.txt, params.npy, ...
//
// A save writes a folder of its own, waits until that is on disk, and then has the link point there. Renaming over a link is
// atomic on every file system that has links, network file systems included, which the exchange of two folders
// (renameat2) is not.
//
// A reader may come between the new link and the removal of the old folder. Both sides use flock on the folder of the save:
//
//   reader  open it, lock it (shared), and look whether `latest` still leads there; if not, start again with the new one
//   save    let `latest` lead to the new one, lock the old one (exclusive), and remove it; if a reader has it, wait a
//           little, and otherwise leave it to the next save
//
// So what a reader has locked stays, and what is being removed nobody reads. Where a file system has no locks, a reader
// that misses a file starts again if `latest` has changed.

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/array_file.hpp"

namespace syncrun::detail {

inline constexpr const char* kLatest = "latest";
inline constexpr const char* kManifest = "manifest.txt";

/// Whether anything was saved in the folder. A save that goes on meanwhile does not matter.
bool has_latest(const std::filesystem::path& path) noexcept;

/// The checkpoint that was saved last, locked so that no save removes it while this lives.
class LatestFolder {
 public:
  /// Throws Error: usage if there is none; system.
  explicit LatestFolder(const std::filesystem::path& path);
  const Folder& folder() const noexcept { return save_; }
  /// `latest` leads elsewhere by now.
  bool is_replaced() const;

 private:
  bool open_once();

  Folder root_;
  std::string target_;
  Folder save_;
};

/// A save on its way: what is written here is seen once commit() has returned. Without it, nothing of it stays.
class CheckpointWriter {
 public:
  /// Makes the folder where it is missing, and removes what saves that were killed have left. Throws Error: system; usage
  /// if another process is writing there, or what stands in its place is no checkpoint.
  explicit CheckpointWriter(const std::filesystem::path& path);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Where to write.
  const Folder& folder() const noexcept { return save_; }

  /// Throws Error (system).
  void commit();

 private:
  /// How long to wait for readers of a folder that is to be removed.
  enum class Readers : std::uint8_t { awaited, left_alone };
  void remove_all_but(const std::string& kept, Readers readers) const noexcept;
  void remove(const std::string& name, Readers readers) const;

  Folder root_;
  std::string name_;
  Folder save_;
  bool is_committed_ = false;
};

}  // namespace syncrun::detail

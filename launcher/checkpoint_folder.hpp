#pragma once

// The folder of a checkpoint, and how what is in it changes at once:
//
//   run/latest -> .syncrun-save-7      a symbolic link, replaced by rename(2)
//   run/.syncrun-save-7/               manifest.txt, params.npy, ...
//
// A save writes a folder of its own, waits until that is on disk, and then has the link point there. Renaming over a link is
// atomic on every file system that has links, network file systems included, which the exchange of two folders
// (renameat2) is not.

#include <filesystem>
#include <string>

#include "launcher/array_file.hpp"

namespace syncrun::detail {

inline constexpr const char* kLatest = "latest";
inline constexpr const char* kManifest = "manifest.txt";

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
  void remove_all_but(const std::string& kept) const noexcept;

  Folder root_;
  std::string name_;
  Folder save_;
  bool is_committed_ = false;
};

}  // namespace syncrun::detail

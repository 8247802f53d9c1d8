#pragma once

// The files that this worker has mapped, and what becomes of reading where one has no bytes any more.

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "common/mapped_file.hpp"

namespace syncrun::detail {

/// A mapping that may be read although its file may be truncated, or its disk fail, at any time: the signal (SIGBUS) then
/// puts zeros in the place of what is missing, and is remembered. Signals from elsewhere go where they went before.
class FaultGuard {
 public:
  /// From here on. Throws Error (usage) where there are too many at a time.
  explicit FaultGuard(const MappedFile& file);
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

  /// Whether something was missing: what was read since then may be zeros that the file never had.
  bool has_struck() const noexcept;

 private:
  int place_;  // in the table that the signal handler looks at; -1: none
};

class MappedFiles {
 public:
  /// Mapped at the first use. Throws Error (system) where it cannot be, or is not all there any more.
  const MappedFile& at(const FileEntry& entry);
  void forget(std::uint64_t id) noexcept { files_.erase(id); }
  /// After a body has read it: throws Error (system) if it was not all there.
  void check(std::uint64_t id) const;

 private:
  struct Guarded {
    MappedFile file;
    FaultGuard guard{file};
  };
  std::unordered_map<std::uint64_t, std::unique_ptr<Guarded>> files_;
};

}  // namespace syncrun::detail

#pragma once

// The records of a zip archive, as torch.save and torch.jit.save write them. Uses no LibTorch. The format: APPNOTE.TXT of
// PKWARE, sections 4.3 and 4.5.3 (Zip64).

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace syncrun::libtorch::detail {

/// The directory of an archive in memory. The archive must outlive it.
class ZipRecords {
 public:
  /// Reads the directory. `name` is the file in messages. Throws Error (usage) if the archive is damaged: the message says
  /// what was expected and found.
  ZipRecords(std::span<const std::byte> archive, std::string_view name);

  /// The name of the folder with all records, such as "archive/". Empty if they are in none.
  const std::string& folder() const noexcept { return folder_; }
  /// Whether the archive has this record. Names do not have the folder.
  bool has(std::string_view record) const noexcept { return records_.find(record) != records_.end(); }
  /// The names of all records that begin with `prefix`.
  std::vector<std::string> names(std::string_view prefix) const;
  /// The bytes of a record, in the memory of the archive. Throws Error (usage) if there is no such record, or if it is
  /// compressed.
  std::span<const std::byte> stored(std::string_view record) const;
  /// The text of a record, which may be compressed. Throws Error (usage) if all texts together are longer than 100 MB.
  std::string text(std::string_view record);
  /// Throws Error (usage) about the archive: `what` says what was expected and found.
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  struct Record {
    std::uint16_t method = 0;
    std::span<const std::byte> bytes;  // in the archive: compressed if the method says so
    std::uint64_t size = 0;            // of the contents
    std::uint64_t at = 0;              // of its header, in the archive
  };
  struct Directory {
    std::uint64_t entries, bytes, at;
  };
  Directory find_directory() const;
  void check_places() const;
  std::uint64_t read_entry(std::uint64_t at, std::uint64_t end);
  const Record& find(std::string_view record) const;
  std::uint64_t number(std::uint64_t at, std::size_t bytes) const;

  std::span<const std::byte> archive_;
  std::string_view name_;
  std::string folder_;
  std::map<std::string, Record, std::less<>> records_;
  std::uint64_t text_bytes_ = 0;  // of all calls of text()
};

}  // namespace syncrun::libtorch::detail

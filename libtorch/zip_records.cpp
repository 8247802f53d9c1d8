#include "libtorch/zip_records.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "libtorch/inflate.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

constexpr std::uint64_t kEndSignature = 0x06054b50;
constexpr std::uint64_t kEnd64Signature = 0x06064b50;
constexpr std::uint64_t kLocatorSignature = 0x07064b50;
constexpr std::uint64_t kEntrySignature = 0x02014b50;
constexpr std::uint64_t kLocalSignature = 0x04034b50;
constexpr std::uint64_t kEndBytes = 22;
constexpr std::uint64_t kLongestComment = 0xffff;
constexpr std::uint64_t kLocatorBytes = 20;
constexpr std::uint64_t kEnd64Bytes = 56;
constexpr std::uint64_t kEntryBytes = 46;
constexpr std::uint64_t kLocalBytes = 30;
constexpr std::uint64_t kIn64 = 0xffffffff;  // the number is in the extra field for Zip64
constexpr std::uint16_t kStored = 0;
constexpr std::uint16_t kDeflated = 8;
/// The longest text of all records together. The code of a module is far shorter.
constexpr std::uint64_t kLongestText = 100'000'000;
/// The record that every archive of PyTorch has.
constexpr std::string_view kPickle = "data.pkl";

}  // namespace

ZipRecords::ZipRecords(std::span<const std::byte> archive, std::string_view name) : archive_(archive), name_(name) {
  const Directory directory = find_directory();
  if (directory.at > archive_.size() || directory.bytes > archive_.size() - directory.at)
    refuse("expected a directory of " + std::to_string(directory.bytes) + " bytes at byte " +
           std::to_string(directory.at) + ", found a file of " + std::to_string(archive_.size()) + " bytes");
  const std::uint64_t end = directory.at + directory.bytes;
  std::uint64_t at = directory.at;
  for (std::uint64_t i = 0; i < directory.entries; ++i) at = read_entry(at, end);
  check_places();

  const auto pickle = std::find_if(records_.begin(), records_.end(), [](const auto& record) {
    const std::string_view whole = record.first;
    return whole.ends_with(kPickle) && std::count(whole.begin(), whole.end(), '/') == 1 &&
           whole.find('/') + 1 + kPickle.size() == whole.size();
  });
  if (pickle == records_.end()) return;
  folder_ = pickle->first.substr(0, pickle->first.find('/') + 1);
  std::map<std::string, Record, std::less<>> inside;
  for (const auto& [whole, record] : records_) {
    if (whole.starts_with(folder_)) inside.emplace(whole.substr(folder_.size()), record);
  }
  records_ = std::move(inside);
}

/// Records that overlap could make a short archive a long one.
void ZipRecords::check_places() const {
  std::vector<std::pair<std::string_view, const Record*>> records;
  for (const auto& [name, record] : records_) records.emplace_back(name, &record);
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.second->at < b.second->at; });
  for (std::size_t i = 1; i < records.size(); ++i) {
    const auto& before = *records[i - 1].second;
    const auto end = static_cast<std::uint64_t>(before.bytes.data() - archive_.data()) + before.bytes.size();
    if (records[i].second->at < end)
      refuse("expected records that do not overlap, found '" + std::string(records[i - 1].first) + "' and '" +
             std::string(records[i].first) + "' at byte " + std::to_string(records[i].second->at));
  }
}

void ZipRecords::refuse(const std::string& what) const {
  throw Error(ErrorKind::usage,
              "cannot read " + std::string(name_) + " as a file of torch.save or torch.jit.save: " + what);
}

std::uint64_t ZipRecords::number(std::uint64_t at, std::size_t bytes) const {
  if (at > archive_.size() || bytes > archive_.size() - at)
    refuse("expected " + std::to_string(bytes) + " bytes at byte " + std::to_string(at) + ", found a file of " +
           std::to_string(archive_.size()) + " bytes");
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) value |= std::to_integer<std::uint64_t>(archive_[at + i]) << (8 * i);
  return value;
}

ZipRecords::Directory ZipRecords::find_directory() const {
  const std::uint64_t size = archive_.size();
  if (size < 4 || number(0, 4) != kLocalSignature) refuse("expected a zip archive, which begins with 'PK'");
  std::uint64_t at = size < kEndBytes ? 0 : size - kEndBytes;
  const std::uint64_t first = at < kLongestComment ? 0 : at - kLongestComment;
  while (at > first && number(at, 4) != kEndSignature) --at;
  if (at <= first)
    refuse("expected the directory of a zip archive at the end of the file, found none. The file may be cut off");
  if (at < kLocatorBytes || number(at - kLocatorBytes, 4) != kLocatorSignature)
    return {number(at + 10, 2), number(at + 12, 4), number(at + 16, 4)};
  const std::uint64_t at64 = number(at - kLocatorBytes + 8, 8);
  if (at64 > size || size - at64 < kEnd64Bytes || number(at64, 4) != kEnd64Signature)
    refuse("expected the end of a directory (Zip64) at byte " + std::to_string(at64) + ", found none");
  return {number(at64 + 32, 8), number(at64 + 40, 8), number(at64 + 48, 8)};
}

/// Adds a record. Returns where the next entry is.
std::uint64_t ZipRecords::read_entry(std::uint64_t at, std::uint64_t end) {
  if (end - at < kEntryBytes || number(at, 4) != kEntrySignature)
    refuse("expected an entry of the directory at byte " + std::to_string(at) + ", found none");
  const std::uint64_t name_bytes = number(at + 28, 2);
  const std::uint64_t extra_bytes = number(at + 30, 2);
  const std::uint64_t next = at + kEntryBytes + name_bytes + extra_bytes + number(at + 32, 2);
  if (next > end) refuse("expected an entry of the directory that ends before byte " + std::to_string(end));
  std::string name(reinterpret_cast<const char*>(archive_.data()) + at + kEntryBytes, name_bytes);

  std::array<std::uint64_t, 3> numbers{number(at + 24, 4), number(at + 20, 4), number(at + 42, 4)};
  auto& [size, stored, local] = numbers;
  std::uint64_t extra = at + kEntryBytes + name_bytes;
  const std::uint64_t extra_end = extra + extra_bytes;
  while (extra_end - extra >= 4) {
    const std::uint64_t bytes = number(extra + 2, 2);
    if (bytes > extra_end - extra - 4) break;
    std::uint64_t field = extra + 4;
    const bool is_zip64 = number(extra, 2) == 1;
    extra = field + bytes;
    for (std::uint64_t& each : numbers) {
      if (!is_zip64 || each != kIn64 || extra - field < 8) continue;
      each = number(field, 8);
      field += 8;
    }
  }
  const auto method = static_cast<std::uint16_t>(number(at + 10, 2));
  const std::uint64_t kEncrypted = 1;
  if ((number(at + 8, 2) & kEncrypted) != 0) refuse("record '" + name + "' is encrypted");
  if (local > archive_.size() || number(local, 4) != kLocalSignature)
    refuse("expected record '" + name + "' at byte " + std::to_string(local) + ", found none");
  const std::uint64_t begin = local + kLocalBytes + number(local + 26, 2) + number(local + 28, 2);
  if (begin > archive_.size() || stored > archive_.size() - begin)
    refuse("expected " + std::to_string(stored) + " bytes of record '" + name + "' at byte " + std::to_string(begin) +
           ", found a file of " + std::to_string(archive_.size()) + " bytes");
  if (method == kStored && stored != size)
    refuse("expected " + std::to_string(size) + " bytes of record '" + name + "', found " + std::to_string(stored));
  const Record record{method, archive_.subspan(begin, stored), size, local};
  if (!records_.emplace(name, record).second) refuse("expected every record once, found '" + name + "' twice");
  return next;
}

const ZipRecords::Record& ZipRecords::find(std::string_view record) const {
  const auto found = records_.find(record);
  if (found == records_.end()) refuse("expected a record '" + std::string(record) + "', found none");
  return found->second;
}

std::vector<std::string> ZipRecords::names(std::string_view prefix) const {
  std::vector<std::string> names;
  for (auto each = records_.lower_bound(prefix); each != records_.end() && each->first.starts_with(prefix); ++each)
    names.push_back(each->first);
  return names;
}

std::span<const std::byte> ZipRecords::stored(std::string_view record) const {
  const Record& found = find(record);
  if (found.method != kStored)
    refuse("expected a record '" + std::string(record) +
           "' that is not compressed, as PyTorch writes it. Do not compress such files");
  return found.bytes;
}

std::string ZipRecords::text(std::string_view record) {
  const Record& found = find(record);
  if (found.size > kLongestText - text_bytes_)
    refuse("expected at most " + std::to_string(kLongestText) + " bytes of text, found more in record '" +
           std::string(record) + "'");
  text_bytes_ += found.size;
  if (found.method == kStored) return {reinterpret_cast<const char*>(found.bytes.data()), found.bytes.size()};
  auto text = found.method == kDeflated ? inflate(found.bytes, found.size) : std::nullopt;
  if (!text) refuse("cannot decompress record '" + std::string(record) + "'");
  return std::move(*text);
}

}  // namespace syncrun::libtorch::detail

#include "demos/examples/tar_shard.hpp"

#include <charconv>
#include <string_view>
#include <system_error>

#include "demos/examples/images.hpp"

namespace examples {
namespace {

constexpr std::size_t kBlockBytes = 65536;
constexpr std::size_t kKeptImages = 1000;

/// The name of a file up to the first dot behind its folder, and the rest: "a/7.seg.png" becomes "a/7" and ".seg.png".
std::pair<std::string, std::string> key_and_extension(const std::string& name) {
  const std::size_t folder_end = name.rfind('/');
  const std::size_t dot = name.find('.', folder_end == std::string::npos ? 0 : folder_end);
  if (dot == std::string::npos) return {name, ""};
  return {name.substr(0, dot), name.substr(dot)};
}

}  // namespace

TarShard::TarShard(const std::filesystem::path& file, std::int64_t classes)
    : file_(file), classes_(classes), archive_(archive_read_new(), archive_read_free) {
  archive_read_support_filter_all(archive_.get());
  archive_read_support_format_tar(archive_.get());
  if (archive_read_open_filename(archive_.get(), file.c_str(), kBlockBytes) != ARCHIVE_OK) {
    refuse_tar(archive_error_string(archive_.get()));
  }
}

std::optional<LabelledImage> TarShard::next() {
  LabelledImage image;
  std::string key;  // of the files of this image that were read so far
  bool has_image = false, has_label = false;
  while (next_entry()) {
    const auto [entry_key, extension] = key_and_extension(entry_name());
    if (!is_jpeg(extension) && extension != ".cls") continue;
    if (!key.empty() && key != entry_key) break;
    key = entry_key;
    if (is_jpeg(extension)) {
      image.name = file_.string() + ": " + entry_name();
      image.jpeg = contents();
      has_image = true;
    } else {
      image.label = label();
      has_label = true;
    }
    if (has_image && has_label) return image;
  }
  if (key.empty()) return std::nullopt;
  refuse(key + (has_image ? ".cls" : ".jpg") + " is missing",
         "Write the shard again, with both files of a key next to each other");
}

/// Goes to the next entry. Returns false after the last one.
bool TarShard::next_entry() {
  const std::string before = entry_ == nullptr ? "" : " after " + entry_name();
  const int code = archive_read_next_header(archive_.get(), &entry_);
  if (code == ARCHIVE_EOF) {
    entry_ = nullptr;
    // A tar file ends with blocks of zeros. To libarchive, a file that was cut between two entries is whole.
    const bool has_end = archive_filter_bytes(archive_.get(), 0) > archive_read_header_position(archive_.get());
    if (!has_end) refuse_tar("it is truncated" + before);
    return false;
  }
  if (code != ARCHIVE_OK && code != ARCHIVE_WARN) {
    entry_ = nullptr;
    refuse_tar(archive_error_string(archive_.get()) + before);
  }
  return true;
}

std::string TarShard::entry_name() const {
  const char* const name = archive_entry_pathname(entry_);
  return name == nullptr ? "" : name;
}

/// The contents of the entry. The memory grows while it is read, because the size in a damaged header can be anything.
std::vector<std::uint8_t> TarShard::contents() {
  std::vector<std::uint8_t> bytes;
  for (;;) {
    const std::size_t size = bytes.size();
    bytes.resize(size + kBlockBytes);
    const la_ssize_t got = archive_read_data(archive_.get(), bytes.data() + size, kBlockBytes);
    if (got < 0) refuse_tar(entry_name() + ": " + archive_error_string(archive_.get()));
    bytes.resize(size + static_cast<std::size_t>(got));
    if (got == 0) return bytes;
  }
}

/// The number in the entry. Spaces and line ends may follow it.
std::int64_t TarShard::label() {
  const std::vector<std::uint8_t> bytes = contents();
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  text = text.substr(0, text.find_last_not_of(" \r\n") + 1);
  std::int64_t label = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), label);
  if (error != std::errc{} || stop != text.data() + text.size() || label < 0 || label >= classes_) {
    refuse(entry_name() + ": expected a class from 0 to " + std::to_string(classes_ - 1) + ", got '" +
               std::string(text.substr(0, 40)) + "'",
           "Correct the label, or the number of classes in the program");
  }
  return label;
}

void TarShard::refuse(const std::string& why, const std::string& what_to_do) const {
  throw DataError(file_.string() + ": " + why + ". " + what_to_do);
}

void TarShard::refuse_tar(const std::string& why) const {
  refuse("cannot read this tar file: " + why, "Expected a whole tar file. Copy or write the shard again, or remove it");
}

std::optional<LabelledImage> ShuffledShards::next() {
  while (kept_.size() < kKeptImages) {
    auto image = next_in_order();
    if (!image) break;
    kept_.push_back(std::move(*image));
  }
  if (kept_.empty()) return std::nullopt;
  std::uniform_int_distribution<std::size_t> any(0, kept_.size() - 1);
  std::swap(kept_[any(random_)], kept_.back());
  LabelledImage chosen = std::move(kept_.back());
  kept_.pop_back();
  return chosen;
}

std::optional<LabelledImage> ShuffledShards::next_in_order() {
  for (;;) {
    if (shard_) {
      if (auto image = shard_->next()) return image;
      shard_.reset();
    }
    if (opened_ == shards_.size()) return std::nullopt;
    shard_.emplace(shards_[opened_++], classes_);
  }
}

}  // namespace examples

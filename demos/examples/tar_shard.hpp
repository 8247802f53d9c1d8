#pragma once

// Reads shards: tar files with labelled images. Each image has a key. A shard has the files KEY.jpg and KEY.cls, which has
// the number of the class as text, next to each other. Source of the format: WebDataset,
// https://github.com/webdataset/webdataset.

#include <archive.h>
#include <archive_entry.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace examples {

struct LabelledImage {
  std::string name;  // of the shard and the entry, for messages
  std::vector<std::uint8_t> jpeg;
  std::int64_t label = 0;
};

/// One shard, which is read from its beginning to its end. It may be compressed.
class TarShard {
 public:
  /// Labels are from 0 to classes - 1. Throws DataError if the file cannot be opened.
  TarShard(const std::filesystem::path& file, std::int64_t classes);

  /// Returns the next image, or nothing after the last one. Ignores files with other extensions. Throws DataError if the
  /// shard is damaged or truncated, or if an image has no label or a label has no image.
  std::optional<LabelledImage> next();

 private:
  bool next_entry();
  std::vector<std::uint8_t> contents();
  std::int64_t label();
  std::string entry_name() const;
  [[noreturn]] void refuse(const std::string& why, const std::string& what_to_do) const;
  [[noreturn]] void refuse_tar(const std::string& why) const;

  std::filesystem::path file_;
  std::int64_t classes_;
  std::unique_ptr<archive, int (*)(archive*)> archive_;
  archive_entry* entry_ = nullptr;  // in archive_
};

/// The images of several shards, shuffled with a limited memory: it keeps some images, and returns one of them at random.
class ShuffledShards {
 public:
  ShuffledShards(std::vector<std::filesystem::path> shards, std::int64_t classes, std::mt19937_64 random)
      : shards_(std::move(shards)), classes_(classes), random_(random) {}

  /// Returns the next image, or nothing after the last one. Throws DataError as TarShard does.
  std::optional<LabelledImage> next();

 private:
  std::optional<LabelledImage> next_in_order();

  std::vector<std::filesystem::path> shards_;
  std::int64_t classes_;
  std::mt19937_64 random_;
  std::size_t opened_ = 0;  // shards
  std::optional<TarShard> shard_;
  std::vector<LabelledImage> kept_;
};

}  // namespace examples

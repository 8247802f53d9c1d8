#include "demos/examples/synthetic_images.hpp"

#include <archive.h>
#include <archive_entry.h>
#include <turbojpeg.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>

namespace examples {
namespace {

namespace fs = std::filesystem;

struct ColourClass {
  const char* name;
  std::array<int, 3> rgb;
};
constexpr std::array<ColourClass, 3> kClasses{
    {{"blue", {100, 110, 150}}, {"green", {100, 150, 110}}, {"red", {150, 110, 100}}}};
constexpr unsigned kImagesPerClass = 20;
constexpr unsigned kShards = 4;
constexpr unsigned kImagesPerShard = 15;
constexpr int kNoise = 150;  // the range of the noise of a pixel

/// Image `number` of the data set as a JPEG file.
std::string jpeg_image(const ColourClass& kind, unsigned number) {
  std::mt19937 random(number);
  const int width = 24 + static_cast<int>(random() % 40);
  const int height = 24 + static_cast<int>(random() % 40);
  const int shade = static_cast<int>(random() % 80) - 40;  // of the whole image
  std::string rgb(static_cast<std::size_t>(3 * width * height), '\0');
  for (std::size_t i = 0; i < rgb.size(); ++i) {
    const int noise = static_cast<int>(random() % kNoise) - kNoise / 2;
    rgb[i] = static_cast<char>(std::clamp(kind.rgb[i % 3] + shade + noise, 0, 255));
  }
  const std::unique_ptr<void, int (*)(void*)> compressor(tjInitCompress(), tjDestroy);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const int code = !compressor ? -1
                               : tjCompress2(compressor.get(), reinterpret_cast<const unsigned char*>(rgb.data()),
                                             width, 0, height, TJPF_RGB, &bytes, &size, TJSAMP_420, 90, 0);
  const std::unique_ptr<unsigned char, void (*)(unsigned char*)> owner(bytes, tjFree);
  if (code != 0)
    throw std::runtime_error(std::string("cannot write a JPEG image: ") + tjGetErrorStr2(compressor.get()));
  return {reinterpret_cast<const char*>(bytes), size};
}

void create_empty(const fs::path& folder) {
  fs::create_directories(folder);
  if (!fs::is_empty(folder)) {
    throw std::runtime_error(folder.string() +
                             ": expected an empty folder for the new data set, got one with files. "
                             "Pass another folder");
  }
}

void write_file(const fs::path& file, const std::string& bytes) {
  std::ofstream stream(file, std::ios::binary);
  stream << bytes;
  stream.close();
  if (!stream)
    throw std::runtime_error(file.string() + ": cannot write this file. Check the folder and its free space");
}

/// A tar file that is being written.
class TarWriter {
 public:
  explicit TarWriter(const fs::path& file) : file_(file), archive_(archive_write_new(), archive_write_free) {
    check(archive_write_set_format_pax_restricted(archive_.get()));
    check(archive_write_open_filename(archive_.get(), file.c_str()));
  }
  void add(const std::string& name, std::string_view bytes) {
    const std::unique_ptr<archive_entry, void (*)(archive_entry*)> entry(archive_entry_new(), archive_entry_free);
    archive_entry_set_pathname(entry.get(), name.c_str());
    archive_entry_set_size(entry.get(), static_cast<la_int64_t>(bytes.size()));
    archive_entry_set_filetype(entry.get(), AE_IFREG);
    archive_entry_set_perm(entry.get(), 0644);
    check(archive_write_header(archive_.get(), entry.get()));
    if (archive_write_data(archive_.get(), bytes.data(), bytes.size()) < 0) check(ARCHIVE_FATAL);
  }
  void close() { check(archive_write_close(archive_.get())); }

 private:
  void check(int code) const {
    if (code == ARCHIVE_OK) return;
    throw std::runtime_error(file_.string() + ": cannot write this file: " + archive_error_string(archive_.get()));
  }
  fs::path file_;
  std::unique_ptr<archive, int (*)(archive*)> archive_;
};

template <class... Values>
std::string text_of(const char* format, Values... values) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

}  // namespace

void write_image_folder(const fs::path& folder) {
  create_empty(folder);
  unsigned number = 0;
  for (const ColourClass& kind : kClasses) {
    fs::create_directory(folder / kind.name);
    for (unsigned i = 0; i < kImagesPerClass; ++i) {
      write_file(folder / kind.name / text_of("%04u.jpg", i), jpeg_image(kind, number++));
    }
  }
}

void write_tar_shards(const fs::path& folder) {
  create_empty(folder);
  unsigned number = 0;
  for (unsigned shard = 0; shard < kShards; ++shard) {
    TarWriter tar(folder / text_of("shard-%04u.tar", shard));
    for (unsigned i = 0; i < kImagesPerShard; ++i, ++number) {
      const unsigned label = number % kClasses.size();
      const std::string key = text_of("%06u", number);
      tar.add(key + ".jpg", jpeg_image(kClasses[label], number));
      tar.add(key + ".cls", std::to_string(label));
    }
    tar.close();
  }
}

}  // namespace examples

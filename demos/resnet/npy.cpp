#include "demos/resnet/npy.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

namespace resnet {
namespace {

namespace fs = std::filesystem;
using std::string_view_literals::operator""sv;

static_assert(std::endian::native == std::endian::little, "files are read as they are");

constexpr std::string_view kMagic = "\x93NUMPY"sv;
constexpr std::size_t kMostHeaderBytes = std::size_t{1} << 20;

[[noreturn]] void fail(const fs::path& file, const std::string& expected, const std::string& got) {
  throw DatasetError(file.string() + ": expected " + expected + ", got " + got);
}

void read(std::ifstream& stream, const fs::path& file, void* to, std::size_t bytes) {
  stream.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
  if (static_cast<std::size_t>(stream.gcount()) != bytes) {
    fail(file, std::to_string(bytes) + " more bytes", std::to_string(stream.gcount()) + " (truncated)");
  }
}

/// The header's text, and where it ends.
struct HeaderText {
  std::string text;
  std::size_t end;
};

HeaderText read_header_text(std::ifstream& stream, const fs::path& file) {
  std::array<char, 8> start{};
  read(stream, file, start.data(), start.size());
  if (std::string_view(start.data(), kMagic.size()) != kMagic) fail(file, "a .npy file", "something else");
  const int version = static_cast<unsigned char>(start[6]);
  if (version < 1 || version > 3) fail(file, "a .npy file of version 1 to 3", "version " + std::to_string(version));
  std::uint32_t length = 0;
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  read(stream, file, &length, length_bytes);
  if (length > kMostHeaderBytes) fail(file, "a header of up to 1 MiB", std::to_string(length) + " bytes");
  HeaderText header{std::string(length, ' '), start.size() + length_bytes + length};
  read(stream, file, header.text.data(), length);
  return header;
}

/// What follows `'key':` in the header, without spaces in front.
std::string_view value_of(std::string_view text, std::string_view key, const fs::path& file) {
  const std::string quoted = std::string(1, '\'').append(key).append("'");
  const std::size_t at = text.find(quoted + ':');
  if (at == text.npos) fail(file, quoted + " in the header", "none");
  text.remove_prefix(at + quoted.size() + 1);
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  return text;
}

/// "(1000, 32, 32, 3), ...".
std::optional<std::vector<std::int64_t>> parse_shape(std::string_view text) {
  const std::size_t close = text.find(')');
  if (!text.starts_with('(') || close == text.npos) return std::nullopt;
  text = text.substr(1, close - 1);
  std::vector<std::int64_t> shape;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(", "), text.size()));
    if (text.empty()) return shape;
    std::int64_t extent = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), extent);
    if (error != std::errc{} || extent < 0) return std::nullopt;
    shape.push_back(extent);
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  }
}

std::string_view parse_dtype(std::string_view text) {
  if (!text.starts_with('\'')) return {};
  text.remove_prefix(1);
  return text.substr(0, text.find('\''));
}

/// Bytes of the elements; nothing where there are more than a file can have.
std::optional<std::size_t> data_bytes(const NpyHeader& header) {
  std::size_t bytes = header.element_bytes();
  for (const std::int64_t extent : header.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(extent), &bytes)) return std::nullopt;
  }
  if (bytes > static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())) return std::nullopt;
  return bytes;
}

void check_length(const NpyHeader& header, const fs::path& file) {
  const std::string what = to_text(header.shape) + " elements of type " + header.dtype;
  const auto expected = data_bytes(header);
  if (!expected) fail(file, "a shape that a file can have", what);
  const std::size_t got = fs::file_size(file) - header.data_offset;
  if (got == *expected) return;
  fail(file, what + " in " + std::to_string(*expected) + " bytes",
       std::to_string(got) + (got < *expected ? " (truncated)" : ""));
}

/// The elements as T.
template <class T>
std::vector<std::int64_t> read_as(std::ifstream& stream, const fs::path& file, std::size_t count) {
  std::vector<T> values(count);
  read(stream, file, values.data(), count * sizeof(T));
  for (const T value : values) {
    if (!std::in_range<std::int64_t>(value)) fail(file, "labels below 2^63", std::to_string(value));
  }
  return {values.begin(), values.end()};
}

std::ifstream open(const fs::path& file) {
  if (!fs::exists(file)) throw DatasetError(file.string() + ": expected a .npy file, got none");
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw DatasetError(file.string() + ": expected a file that can be read: " + std::strerror(errno));
  return stream;
}

}  // namespace

std::size_t NpyHeader::element_bytes() const {
  std::size_t bytes = 0;
  if (dtype.size() > 2) std::from_chars(dtype.data() + 2, dtype.data() + dtype.size(), bytes);
  return bytes;
}

std::string to_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text.append(text.empty() ? "" : " x ").append(std::to_string(extent));
  return text.empty() ? "0-dimensional" : text;
}

NpyHeader read_npy_header(const fs::path& file) {
  std::ifstream stream = open(file);
  const HeaderText header = read_header_text(stream, file);
  const auto shape = parse_shape(value_of(header.text, "shape", file));
  if (!shape) fail(file, "a shape in the header", "'" + header.text + "'");
  if (!value_of(header.text, "fortran_order", file).starts_with("False")) {
    fail(file, "an array in C order", "one in Fortran order");
  }
  const NpyHeader read{std::string(parse_dtype(value_of(header.text, "descr", file))), *shape, header.end};
  if (read.element_bytes() == 0) fail(file, "elements that are numbers", "'" + header.text + "'");
  check_length(read, file);
  return read;
}

std::vector<std::int64_t> read_labels(const fs::path& file) {
  const NpyHeader header = read_npy_header(file);
  if (header.shape.size() != 1) fail(file, "labels in 1 dimension", to_text(header.shape));
  const auto count = static_cast<std::size_t>(header.shape[0]);
  std::ifstream stream = open(file);
  stream.seekg(static_cast<std::streamoff>(header.data_offset));
  const std::string& dtype = header.dtype;
  if (dtype == "|u1") return read_as<std::uint8_t>(stream, file, count);
  if (dtype == "|i1") return read_as<std::int8_t>(stream, file, count);
  if (dtype == "<u2") return read_as<std::uint16_t>(stream, file, count);
  if (dtype == "<i2") return read_as<std::int16_t>(stream, file, count);
  if (dtype == "<u4") return read_as<std::uint32_t>(stream, file, count);
  if (dtype == "<i4") return read_as<std::int32_t>(stream, file, count);
  if (dtype == "<u8") return read_as<std::uint64_t>(stream, file, count);
  if (dtype == "<i8") return read_as<std::int64_t>(stream, file, count);
  fail(file, "labels of an integer type, little-endian", "'" + dtype + "'");
}

}  // namespace resnet

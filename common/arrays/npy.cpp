#include "common/arrays/npy.hpp"

#include <array>
#include <bit>
#include <optional>
#include <string_view>
#include <utility>

#include "common/arrays/extents.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::arrays {

static_assert(std::endian::native == std::endian::little, "elements are copied between files and memory as they are");

namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr std::size_t kAlignment = 64;

struct Name {
  std::string_view descr;
  DType dtype;
};

/// The names of the types. If a type has several names, the first is used for writing.
constexpr std::array kNames{Name{"<f2", DType::float16},  Name{"<f4", DType::float32},  Name{"<f8", DType::float64},
                            Name{"|V2", DType::bfloat16}, Name{"<V2", DType::bfloat16}, Name{"|i1", DType::int8},
                            Name{"<i1", DType::int8},     Name{"<i2", DType::int16},    Name{"<i4", DType::int32},
                            Name{"<i8", DType::int64},    Name{"|u1", DType::uint8},    Name{"<u1", DType::uint8},
                            Name{"<u2", DType::uint16},   Name{"<u4", DType::uint32},   Name{"<u8", DType::uint64},
                            Name{"|b1", DType::boolean},  Name{"<b1", DType::boolean}};

/// Text of unknown origin in quotes, shortened and made printable for messages.
std::string quoted(std::string_view text) {
  constexpr std::size_t kLongest = 40;
  std::string shown = "'";
  for (const char c : text.substr(0, kLongest)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown + (text.size() > kLongest ? "...'" : "'");
}

DType dtype_from(std::string_view descr) {
  for (const Name& name : kNames) {
    if (name.descr == descr) return name.dtype;
  }
  std::string what = "element type " + quoted(descr);
  if (descr.starts_with('>')) what += ", big-endian";
  else if (descr.ends_with('O')) what += ", Python objects";
  text::throw_usage(
      "expected little-endian floats of 2, 4 or 8 bytes, integers of 1 to 8 bytes, bool or bfloat16 ('|V2'); found " +
      what);
}

std::string_view descr_of(DType dtype) {
  for (const Name& name : kNames) {
    if (name.dtype == dtype) return name.descr;
  }
  text::throw_usage("no .npy element type for " + std::string(to_string(dtype)));
}

/// A parser for the text of the header, which is a Python dictionary.
class Dictionary {
 public:
  explicit Dictionary(std::string_view text) : text_(text) {}

  NpyHeader read() {
    expect('{', "a dictionary");
    while (!accept('}')) {
      read_item();
      if (accept(',')) continue;
      expect('}', "',' or '}'");
      break;
    }
    skip_spaces();
    if (at_ != text_.size()) fail("nothing after the dictionary");
    if (!descr_ || !is_fortran_ || !shape_)
      text::throw_usage("expected 'descr', 'fortran_order' and 'shape', found " + quoted(text_));
    if (*is_fortran_) text::throw_usage("expected C order, found fortran_order: True");
    return {.dtype = dtype_from(*descr_), .shape = std::move(*shape_), .data_offset = 0};
  }

 private:
  void read_item() {
    const std::string_view key = string("a key");
    expect(':', "':'");
    if (key == "descr" && !descr_) descr_ = read_descr();
    else if (key == "fortran_order" && !is_fortran_) is_fortran_ = read_bool();
    else if (key == "shape" && !shape_) shape_ = read_shape();
    else text::throw_usage("expected 'descr', 'fortran_order' and 'shape' once each, found " + quoted(key));
  }

  std::string_view read_descr() {
    skip_spaces();
    if (rest().starts_with('[')) text::throw_usage("expected one element type, found records: " + quoted(rest()));
    return string("an element type");
  }

  bool read_bool() {
    skip_spaces();
    for (const auto& [word, value] : {std::pair{std::string_view("True"), true}, {std::string_view("False"), false}}) {
      if (!rest().starts_with(word)) continue;
      at_ += word.size();
      return value;
    }
    fail("True or False");
  }

  std::vector<std::int64_t> read_shape() {
    std::vector<std::int64_t> shape;
    expect('(', "a tuple");
    while (!accept(')')) {
      if (shape.size() == kMaxDimensions) fail("at most " + std::to_string(kMaxDimensions) + " dimensions");
      shape.push_back(read_extent());
      if (accept(',')) continue;
      if (shape.size() == 1) fail("','");  // in Python, (5) is a number and (5,) is a tuple
      expect(')', "',' or ')'");
      break;
    }
    return shape;
  }

  std::int64_t read_extent() {
    skip_spaces();
    const std::size_t from = at_;
    std::int64_t value = 0;
    bool overflows = false;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      overflows = overflows || __builtin_mul_overflow(value, 10, &value) ||
                  __builtin_add_overflow(value, text_[at_] - '0', &value);
    }
    if (at_ == from) fail("an extent of at least 0");
    if (overflows) text::throw_usage("expected an extent below 2^63, found " + quoted(text_.substr(from, at_ - from)));
    return value;
  }

  /// Reads a string. Does not support escapes, because no valid header contains one.
  std::string_view string(const char* what) {
    skip_spaces();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail(what);
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("the end of a string");
    const std::string_view found = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return found;
  }

  void skip_spaces() noexcept {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char wanted) noexcept {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted, const char* what) {
    if (!accept(wanted)) fail(what);
  }
  std::string_view rest() const noexcept { return text_.substr(at_); }
  [[noreturn]] void fail(const std::string& expected) const {
    text::throw_usage("expected " + expected + " at byte " + std::to_string(at_) + " of the header's text, found " +
                      (rest().empty() ? "its end" : quoted(rest())));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::optional<std::string_view> descr_;
  std::optional<bool> is_fortran_;
  std::optional<std::vector<std::int64_t>> shape_;
};

[[noreturn]] void fail_truncated(std::size_t wanted, std::size_t got) {
  text::throw_usage("expected a header of " + std::to_string(wanted) + " bytes, found the end after " +
                    std::to_string(got));
}

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kNpyMagic)) {
    text::throw_usage("expected a .npy file ('\\x93NUMPY' in front), found " +
                      quoted(text.substr(0, kNpyMagic.size())));
  }
  const std::size_t version_at = kNpyMagic.size();
  if (text.size() < version_at + 2) fail_truncated(version_at + 2, text.size());
  const auto byte = [&](std::size_t at) { return std::to_integer<std::uint32_t>(bytes[at]); };
  const std::uint32_t major = byte(version_at);
  const std::uint32_t minor = byte(version_at + 1);
  if (major < 1 || major > 3 || minor != 0) {
    text::throw_usage("expected .npy format 1.0, 2.0 or 3.0, found " + std::to_string(major) + "." +
                      std::to_string(minor));
  }

  const std::size_t length_at = version_at + 2;
  const std::size_t text_at = length_at + (major == 1 ? 2 : 4);
  if (text.size() < text_at) fail_truncated(text_at, text.size());
  std::size_t length = 0;
  for (std::size_t at = text_at; at-- > length_at;) length = length << 8U | byte(at);
  if (text_at + length > kLongestNpyHeader) {
    text::throw_usage("expected a header of at most " + std::to_string(kLongestNpyHeader) + " bytes, found one of " +
                      std::to_string(text_at + length));
  }
  if (text.size() - text_at < length) fail_truncated(text_at + length, text.size());

  NpyHeader header = Dictionary(text.substr(text_at, length)).read();
  header.data_offset = text_at + length;
  static_cast<void>(checked_bytes(header.dtype, header.shape));
  return header;
}

std::size_t npy_data_bytes(const NpyHeader& header, std::uint64_t file_bytes) {
  const std::size_t bytes = checked_bytes(header.dtype, header.shape);
  if (file_bytes >= header.data_offset && file_bytes - header.data_offset == bytes) return bytes;
  text::throw_usage("expected " + std::to_string(bytes) + " bytes of elements (shape " +
                    syncrun::to_string(header.shape) + " of " + std::string(to_string(header.dtype)) +
                    ") after a header of " + std::to_string(header.data_offset) + ", found a file of " +
                    std::to_string(file_bytes) + " bytes");
}

std::string npy_header(DType dtype, std::span<const std::int64_t> shape) {
  std::string text = "{'descr': '" + std::string(descr_of(dtype)) + "', 'fortran_order': False, 'shape': (";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ' ';
    text += std::to_string(shape[i]) + (i + 1 < shape.size() || shape.size() == 1 ? "," : "");
  }
  text += "), }";
  constexpr std::size_t kFixed = kNpyMagic.size() + 4;  // version and length
  const std::size_t unpadded = kFixed + text.size() + 1;
  text.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  text += '\n';
  std::string header(kNpyMagic);
  header += {'\x01', '\x00', static_cast<char>(text.size() & 0xffU), static_cast<char>(text.size() >> 8U)};
  return header + text;
}

}  // namespace syncrun::detail::arrays

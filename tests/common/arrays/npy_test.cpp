#include "common/arrays/npy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tests/common/error_text.hpp"

namespace syncrun::detail {
namespace {

using Shape = std::vector<std::int64_t>;

/// The beginning of a .npy file whose header has this text.
std::string file(std::string_view text, char version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += {version, '\0', static_cast<char>(text.size() & 0xffU), static_cast<char>(text.size() >> 8U)};
  if (version > 1) bytes.append(2, '\0');
  return bytes.append(text);
}

std::string dictionary(std::string_view descr, std::string_view shape) {
  return "{'descr': " + std::string(descr) + ", 'fortran_order': False, 'shape': " + std::string(shape) + ", }\n";
}

/// Parses a copy of the bytes, so that a sanitizer detects a read beyond their end.
arrays::NpyHeader parse(std::string_view bytes) {
  const std::vector<char> own(bytes.begin(), bytes.end());
  return arrays::parse_npy_header(std::as_bytes(std::span(own)));
}

std::string complaint(std::string_view bytes) {
  return test::error_text([&] { parse(bytes); }, ErrorKind::usage);
}

std::string complaint_about(std::string_view text) { return complaint(file(text)); }

TEST(NpyHeader, IsReadInAllThreeFormats) {
  for (const char version : {'\1', '\2', '\3'}) {
    const std::string bytes = file(dictionary("'<i8'", "(7,)"), version);
    const arrays::NpyHeader header = parse(bytes + "elements");
    EXPECT_EQ(header.dtype, DType::int64);
    EXPECT_EQ(header.shape, (Shape{7}));
    EXPECT_EQ(header.data_offset, bytes.size());
  }
}

TEST(NpyHeader, MayHaveItsKeysInAnyOrderAndEitherQuote) {
  const arrays::NpyHeader header = parse(file(R"({ "shape":(2,3,), 'fortran_order' : False,"descr":"|u1"})"));
  EXPECT_EQ(header.dtype, DType::uint8);
  EXPECT_EQ(header.shape, (Shape{2, 3}));
}

TEST(NpyHeader, ComesBackForEveryElementTypeAndNumberOfDimensions) {
  for (const DType dtype :
       {DType::float16, DType::bfloat16, DType::float32, DType::float64, DType::int8, DType::int16, DType::int32,
        DType::int64, DType::uint8, DType::uint16, DType::uint32, DType::uint64, DType::boolean}) {
    for (const Shape& shape : {Shape{}, Shape{5}, Shape{0, 3}, Shape{500, 784}, Shape{1, 2, 3, 4, 5, 6}}) {
      const std::string bytes = arrays::npy_header(dtype, shape);
      EXPECT_EQ(bytes.size() % 64, 0);
      EXPECT_EQ(bytes.back(), '\n');
      const arrays::NpyHeader header = parse(bytes);
      EXPECT_EQ(header.dtype, dtype);
      EXPECT_EQ(header.shape, shape);
      EXPECT_EQ(header.data_offset, bytes.size());
    }
  }
}

TEST(NpyHeader, TakesTwoBytesWithoutAMeaningForBfloat16) {
  EXPECT_EQ(parse(file(dictionary("'<V2'", "(1,)"))).dtype, DType::bfloat16) << "as ml_dtypes writes it";
  EXPECT_EQ(parse(file(dictionary("'|V2'", "(1,)"))).dtype, DType::bfloat16);
}

TEST(NpyHeader, RefusesWhatIsNoNpyFile) {
  const std::string expected = "expected a .npy file ('\\x93NUMPY' in front), found ";
  EXPECT_EQ(complaint(""), expected + "''");
  EXPECT_EQ(complaint("PK\x03\x04 a zip"), expected + "'PK?? a'");
  EXPECT_EQ(complaint("\x93NUM"), expected + "'?NUM'");
}

TEST(NpyHeader, RefusesOtherFormats) {
  EXPECT_EQ(complaint(file("", 0)), "expected .npy format 1.0, 2.0 or 3.0, found 0.0");
  EXPECT_EQ(complaint(file("", 4)), "expected .npy format 1.0, 2.0 or 3.0, found 4.0");
  EXPECT_EQ(complaint(std::string("\x93NUMPY\x01\x07\x00\x00", 10)), "expected .npy format 1.0, 2.0 or 3.0, found 1.7");
}

TEST(NpyHeader, RefusesEveryTruncation) {
  for (const char version : {'\1', '\2', '\3'}) {
    const std::string whole = file(dictionary("'<f8'", "(2, 2)"), version);
    for (std::size_t length = 0; length < whole.size(); ++length) {
      EXPECT_THROW(parse(std::string_view(whole).substr(0, length)), Error) << length << " bytes";
    }
  }
  EXPECT_EQ(complaint(std::string("\x93NUMPY\x01\x00\x76\x00{", 11)),
            "expected a header of 128 bytes, found the end after 11");
}

TEST(NpyHeader, RefusesAHeaderWithoutEnd) {
  EXPECT_EQ(complaint(std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff{", 13)),
            "expected a header of at most 65536 bytes, found one of 4294967307");
}

TEST(NpyHeader, RefusesElementsThatAreNotLittleEndianNumbers) {
  const std::string expected =
      "expected little-endian floats of 2, 4 or 8 bytes, integers of 1 to 8 bytes, bool or bfloat16 ('|V2'); "
      "found element type ";
  EXPECT_EQ(complaint_about(dictionary("'>f4'", "(1,)")), expected + "'>f4', big-endian");
  EXPECT_EQ(complaint_about(dictionary("'|O'", "(1,)")), expected + "'|O', Python objects");
  for (const std::string descr : {"<c8", "<u3", "<U5", "|S3", "<M8[s]", "|V4", "f4", "=f4", "<f16", ""}) {
    EXPECT_EQ(complaint_about(dictionary("'" + descr + "'", "(1,)")), expected + "'" + descr + "'");
  }
  EXPECT_EQ(complaint_about(dictionary("[('a', '<f4')]", "(1,)")),
            "expected one element type, found records: '[('a', '<f4')], 'fortran_order': False, ...'");
}

TEST(NpyHeader, RefusesShapesThatCannotBe) {
  const auto about = [](std::string_view shape) { return complaint_about(dictionary("'<f8'", shape)); };
  EXPECT_EQ(about("(-1, 2)"), "expected an extent of at least 0 at byte 51 of the header's text, found '-1, 2), }?'");
  EXPECT_EQ(about("(9223372036854775808,)"), "expected an extent below 2^63, found '9223372036854775808'");
  EXPECT_EQ(about("(9223372036854775807,)"), "the size of shape [9223372036854775807] of float64 overflows");
  EXPECT_EQ(about("(4294967296, 4294967296)"), "the size of shape [4294967296, 4294967296] of float64 overflows");
  EXPECT_EQ(about("(1, 2, 3, 4, 5, 6, 7)"),
            "expected at most 6 dimensions at byte 69 of the header's text, found '7), }?'");
  EXPECT_EQ(about("(5)"), "expected ',' at byte 52 of the header's text, found '), }?'");
  for (const char* shape : {"5", "[5]", "(5", "(5,", "(,)", "(5,,)", "(1.5,)", "(5L,)", "(0x5,)", "('5',)", "None"}) {
    EXPECT_NE(about(shape), "") << shape;
  }
}

TEST(NpyHeader, RefusesGarbageInTheDictionary) {
  EXPECT_EQ(complaint_about("{}"), "expected 'descr', 'fortran_order' and 'shape', found '{}'");
  EXPECT_EQ(complaint_about("{'descr': '<f4', 'descr': '<f8'}"),
            "expected 'descr', 'fortran_order' and 'shape' once each, found 'descr'");
  EXPECT_EQ(complaint_about("{'magic': 1}"), "expected 'descr', 'fortran_order' and 'shape' once each, found 'magic'");
  EXPECT_EQ(complaint_about(dictionary("'<f4'", "(1,)") + "x"),
            "expected nothing after the dictionary at byte 58 of the header's text, found 'x'");
  for (const char* text : {"", "{", "}", "{'", "{'descr", "{'descr'", "{'descr'}", "{'descr':", "{'descr': '<f4'",
                           "{,}", "[1]", "{'fortran_order': 0}", "{1: 2}", "None"}) {
    EXPECT_NE(complaint_about(text), "") << text;
  }
}

TEST(NpyFile, MayHaveOneElementOrNone) {
  EXPECT_EQ(arrays::npy_data_bytes({.dtype = DType::float64, .shape = {}, .data_offset = 128}, 136), 8);
  EXPECT_EQ(arrays::npy_data_bytes({.dtype = DType::float64, .shape = {0, 9}, .data_offset = 128}, 128), 0);
}

}  // namespace
}  // namespace syncrun::detail

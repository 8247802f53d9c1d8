// Headers of safetensors files: what is read as it was written, and what is refused with which words.

#include "libtorch/safetensors_header.hpp"

#include <gtest/gtest.h>

#include <syncrun/error.hpp>

namespace {

using namespace syncrun::libtorch::detail;

/// A file with this JSON text and this many bytes of elements.
std::string file_of(const std::string& json, std::size_t data_bytes) {
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>((json.size() >> (8 * i)) & 0xffU);
  return file + json + std::string(data_bytes, 'x');
}
SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors({reinterpret_cast<const std::byte*>(file.data()), file.size()}, file.size(),
                           "m.safetensors");
}
void expect_refused(const std::string& file, const std::string& words) {
  try {
    parse(file);
    ADD_FAILURE() << "accepted, expected: " << words;
  } catch (const syncrun::Error& error) {
    EXPECT_EQ(error.kind(), syncrun::ErrorKind::usage);
    EXPECT_EQ(std::string(error.what()).find("m.safetensors is not a safetensors file, or is damaged: "), 0U)
        << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}
std::string entry(const std::string& type, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(SafetensorsHeader, IsReadAsItWasWritten) {
  std::vector<StoredTensor> tensors{{.name = "b.weight", .type = StoredType::float32, .shape = {2, 3}},
                                    {.name = "a \"quoted\" näme", .type = StoredType::bfloat16, .shape = {}},
                                    {.name = "empty", .type = StoredType::int64, .shape = {4, 0}}};
  const std::map<std::string, std::string> metadata{{"format", "pt"}, {"step", "12"}};
  const std::string header = make_safetensors_header(tensors, metadata);
  EXPECT_EQ(header.size() % 8, 0U);
  const auto again = parse(header + std::string(26, 'x'));
  EXPECT_EQ(again.data_at, header.size());
  EXPECT_EQ(again.metadata, metadata);
  ASSERT_EQ(again.tensors.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(again.tensors[i].name, tensors[i].name);
    EXPECT_EQ(again.tensors[i].type, tensors[i].type);
    EXPECT_EQ(again.tensors[i].shape, tensors[i].shape);
    EXPECT_EQ(again.tensors[i].begin, tensors[i].begin);
    EXPECT_EQ(again.tensors[i].end, tensors[i].end);
  }
  const auto of_python = parse(file_of(R"({"__metadata__":{"format":"pt"},"b":)" + entry("F16", "[2]", "[4,8]") +
                                           R"(,"a":)" + entry("I32", "[1]", "[0,4]") + "}   ",
                                       8));
  ASSERT_EQ(of_python.tensors.size(), 2U);
  EXPECT_EQ(of_python.tensors[0].name, "a");
  EXPECT_EQ(of_python.tensors[1].shape, std::vector<std::int64_t>{2});
}

TEST(SafetensorsHeader, ThatIsTooShortIsRefused) {
  expect_refused("", "expected at least 8 bytes, found 0");
  expect_refused("1234567", "expected at least 8 bytes, found 7");
  const std::string whole = file_of("{}", 0);
  expect_refused(whole.substr(0, 9), "expected a header of 2 bytes, found 1");
  expect_refused(std::string(8, '\xff'), "expected a header of at most 100000000 bytes, found 18446744073709551615");
}

TEST(SafetensorsHeader, ThatIsNotItsJsonIsRefused) {
  expect_refused(file_of("", 0), "expected a header that begins with '{'");
  expect_refused(file_of("[]", 0), "expected a header that begins with '{'");
  expect_refused(file_of("{\"a\":", 0), "expected a header in JSON: ");
  expect_refused(file_of("{} {}", 0), "expected a header in JSON: ");
  expect_refused(file_of(std::string("{\"a\":\"\xff\"}"), 0), "expected a header in JSON: ");
  expect_refused(file_of("{\"a\":[[[[[1]]]]]}", 0), "expected at most 3 levels of JSON, found more");
  expect_refused(file_of("{\"a\":7}", 0), "expected an object for 'a', found 'number'");
  expect_refused(file_of("{\"a\":{}}", 0), "expected 'data_offsets' for 'a', found none");
  expect_refused(file_of(R"({"__metadata__":3})", 0), "expected an object as '__metadata__'");
  expect_refused(file_of(R"({"__metadata__":{"a":3}})", 0), "expected texts in '__metadata__'");
}

TEST(SafetensorsHeader, WithANameTwiceIsRefused) {
  expect_refused(file_of("{\"a\":" + entry("U8", "[1]", "[0,1]") + ",\"a\":" + entry("U8", "[1]", "[0,1]") + "}", 1),
                 "expected every name once, found 'a' twice");
  expect_refused(file_of(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
                 "expected every name once, found 'dtype' twice");
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}})", 1),
                 "expected 'dtype', 'shape' and 'data_offsets' for 'a', found 4 keys");
}

TEST(SafetensorsHeader, WithWrongValuesGapsOrOverlapsIsRefused) {
  const auto refuse = [](const std::string& type, const std::string& shape, const std::string& offsets,
                         std::size_t bytes, const std::string& words) {
    expect_refused(file_of("{\"a\":" + entry(type, shape, offsets) + "}", bytes), words);
  };
  refuse("F8_E5M2", "[1]", "[0,1]", 1, "expected an element type that LibTorch has for 'a', found 'F8_E5M2'");
  refuse("U8", "[-1]", "[0,1]", 1, "expected whole numbers from 0 in 'shape' of 'a', found '-1'");
  refuse("U8", "[1.5]", "[0,1]", 1, "expected whole numbers from 0 in 'shape' of 'a', found '1.5'");
  refuse("U8", "7", "[0,1]", 1, "expected a list as 'shape' of 'a'");
  refuse("U8", "[1]", "[0]", 1, "expected two numbers as 'data_offsets' of 'a'");
  const auto ones = [](int count) {
    std::string shape = "[1";
    for (int i = 1; i < count; ++i) shape += ",1";
    return shape + "]";
  };
  refuse("U8", ones(65), "[0,1]", 1, "expected at most 64 dimensions for 'a', found 65");
  refuse("U8", "[18446744073709551615]", "[0,1]", 1, "the shape of 'a' is too large");
  refuse("F64", "[4294967296,4294967296]", "[0,0]", 0, "the shape of 'a' is too large");
  refuse("F32", "[2]", "[0,4]", 4, "expected 8 bytes for 'a', found the bytes from 0 to 4");
  refuse("F32", "[2]", "[8,0]", 8, "expected 8 bytes for 'a', found the bytes from 8 to 0");
  refuse("F32", "[2]", "[1,9]", 9, "expected 'a' at byte 0 of the elements, found byte 1");
  refuse("F32", "[2]", "[0,8]", 7, "expected 8 bytes of elements, as the header says, found 7");
  refuse("F32", "[2]", "[0,8]", 9, "expected 8 bytes of elements, as the header says, found 9");
  for (const auto& [second, first_byte] : {std::pair("[1,3]", "1"), {"[3,5]", "3"}, {"[0,2]", "0"}}) {
    expect_refused(file_of("{\"a\":" + entry("U8", "[2]", "[0,2]") + ",\"b\":" + entry("U8", "[2]", second) + "}", 4),
                   std::string("expected 'b' at byte 2 of the elements, found byte ") + first_byte);
  }
}

TEST(SafetensorsHeader, IsWrittenWithEveryNameOnce) {
  std::vector<StoredTensor> twice{{.name = "a", .shape = {1}}, {.name = "a", .shape = {1}}};
  EXPECT_THROW(make_safetensors_header(twice, {}), syncrun::Error);
  std::vector<StoredTensor> bytes{{.name = "\xff", .shape = {1}}};
  EXPECT_THROW(make_safetensors_header(bytes, {}), syncrun::Error);
  std::vector<StoredTensor> metadata{{.name = "__metadata__", .shape = {1}}};
  EXPECT_THROW(make_safetensors_header(metadata, {}), syncrun::Error);
}

}  // namespace

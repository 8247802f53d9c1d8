// Loaded libraries and their versions.

#include "common/os/libraries.hpp"

#include <gtest/gtest.h>

#include <string>

namespace syncrun::detail {
namespace {

TEST(Libraries, ThoseThatAreLoadedAreFound) {
  EXPECT_EQ(loaded_libraries("libc.so").size(), 1u);
  const auto found = loaded_libraries("libstdc++.so");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].find("/libstdc++.so.6"), std::string::npos) << found[0];
  EXPECT_TRUE(loaded_libraries("libnosuch.so").empty());
}

TEST(Libraries, NumbersOfNcclAndCudnnAreVersions) {
  EXPECT_EQ(LibraryVersion::of_number(22809), (LibraryVersion{2, 28, 9}));
  EXPECT_EQ(LibraryVersion::of_number(91400).text(), "9.14.0");
}

std::string refusal(const LibraryVersion& loaded, const LibraryVersion& expected) {
  try {
    require_version("NCCL", "libstdc++.so", loaded, "LibTorch", expected);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return {};
}

TEST(Libraries, AnOlderOneOrAnotherMajorVersionIsRefused) {
  const LibraryVersion expected{2, 28, 9};
  EXPECT_EQ(refusal({2, 28, 9}, expected), "");
  EXPECT_EQ(refusal({2, 28, 12}, expected), "");
  EXPECT_EQ(refusal({2, 29, 1}, expected), "");
  for (const LibraryVersion& loaded : {LibraryVersion{2, 28, 3}, {2, 27, 30}, {1, 30, 10}, {3, 0, 0}}) {
    const std::string text = refusal(loaded, expected);
    for (const std::string& part : {"has loaded NCCL " + loaded.text() + " (/", std::string("libstdc++.so"),
                                    std::string("and LibTorch was built with 2.28.9, expected the same major version")})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace syncrun::detail

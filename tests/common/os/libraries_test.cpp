// Loaded libraries and their versions.

#include "common/os/libraries.hpp"

#include <gtest/gtest.h>

#include <string>

#include "common/os/part_version.hpp"
#include "tests/common/error_text.hpp"

namespace syncrun::detail {
namespace {

TEST(Libraries, ThoseThatAreLoadedAreFound) {
  EXPECT_EQ(os::loaded_libraries("libc.so").size(), 1u);
  const auto found = os::loaded_libraries("libstdc++.so");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].find("/libstdc++.so.6"), std::string::npos) << found[0];
  EXPECT_TRUE(os::loaded_libraries("libnosuch.so").empty());
}

TEST(Libraries, NumbersOfNcclAndCudnnAreVersions) {
  EXPECT_EQ(os::LibraryVersion::of_number(22809), (os::LibraryVersion{2, 28, 9}));
  EXPECT_EQ(os::LibraryVersion::of_number(91400).text(), "9.14.0");
}

std::string refusal(const os::LibraryVersion& loaded, const os::LibraryVersion& expected) {
  return test::error_text([&] { os::require_version("NCCL", "libstdc++.so", loaded, "LibTorch", expected); },
                          ErrorKind::usage);
}

TEST(Libraries, AnOlderOneOrAnotherMajorVersionIsRefused) {
  const os::LibraryVersion expected{2, 28, 9};
  EXPECT_EQ(refusal({2, 28, 9}, expected), "");
  EXPECT_EQ(refusal({2, 28, 12}, expected), "");
  EXPECT_EQ(refusal({2, 29, 1}, expected), "");
  for (const os::LibraryVersion& loaded : {os::LibraryVersion{2, 28, 3}, {2, 27, 30}, {1, 30, 10}, {3, 0, 0}}) {
    const std::string text = refusal(loaded, expected);
    for (const std::string& part : {"has loaded NCCL " + loaded.text() + " (/", std::string("libstdc++.so"),
                                    std::string("and LibTorch was built with 2.28.9, expected the same major version")})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(Libraries, APartOfAnotherVersionDoesNotFit) {
  EXPECT_EQ(os::why_part_does_not_fit("libsyncrun_cuda.so.0.1", SYNCRUN_VERSION), "");
  const std::string rest =
      ", and the program uses Syncrun " SYNCRUN_VERSION ": expected the same version. Install both from one build";
  EXPECT_EQ(os::why_part_does_not_fit("libsyncrun_cuda.so.0.1", "0.1.77"),
            "libsyncrun_cuda.so.0.1 is of Syncrun 0.1.77" + rest);
  void* const without_version = ::dlopen(nullptr, RTLD_NOW);
  EXPECT_EQ(os::why_part_does_not_fit("libold.so", without_version), "libold.so is of another Syncrun" + rest);
}

}  // namespace
}  // namespace syncrun::detail

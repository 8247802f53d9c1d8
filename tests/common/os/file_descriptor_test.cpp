// A KeptDescriptor notices that the program has closed its descriptor, or that its number has become another file's.

#include "common/os/file_descriptor.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <array>

namespace {

using syncrun::detail::FileDescriptor;
using syncrun::detail::KeptDescriptor;

FileDescriptor new_file() { return FileDescriptor(::memfd_create("file", MFD_CLOEXEC)); }

std::pair<KeptDescriptor, KeptDescriptor> new_pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

TEST(KeptDescriptor, IsIntactWhileItIsOpen) {
  KeptDescriptor file(new_file());
  EXPECT_TRUE(file.is_intact());
  KeptDescriptor moved = std::move(file);
  EXPECT_TRUE(moved.is_intact());
  EXPECT_FALSE(file.is_intact());  // NOLINT(bugprone-use-after-move): that is the point
  moved.reset();
  EXPECT_FALSE(moved.is_intact());
  EXPECT_FALSE(KeptDescriptor().is_intact());
}

TEST(KeptDescriptor, ThatSomebodyElseClosedIsNotIntact) {
  const KeptDescriptor file(new_file());
  ::close(file.get());
  EXPECT_FALSE(file.is_intact());
}

TEST(KeptDescriptor, WhoseNumberIsAnotherFilesIsNotIntactAndLeavesThatOpen) {
  auto [read, write] = new_pipe();
  const KeptDescriptor file(new_file());
  const KeptDescriptor others(FileDescriptor(::dup2(file.get(), read.get())));
  ASSERT_EQ(others.get(), read.get());
  EXPECT_FALSE(read.is_intact());
  read.reset();
  EXPECT_TRUE(others.is_intact()) << "closed by who had the number before";
}

TEST(KeptDescriptor, TellsTwoOfAKindApart) {
  const KeptDescriptor file(new_file());
  const int number = file.get();
  const KeptDescriptor other(new_file());
  ASSERT_EQ(::dup2(other.get(), number), number);
  EXPECT_FALSE(file.is_intact());

  auto [read, write] = new_pipe();
  auto [other_read, other_write] = new_pipe();
  ASSERT_EQ(::dup2(other_write.get(), write.get()), write.get());
  EXPECT_FALSE(write.is_intact());
  ::close(number);  // no handle owns it any more
  ::close(write.get());
}

}  // namespace

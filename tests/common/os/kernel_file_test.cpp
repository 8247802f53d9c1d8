#include "common/os/kernel_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace syncrun::detail::os {
namespace {

TEST(KernelFile, IsReadWholeAndIsEmptyIfItDoesNotExist) {
  const std::string text = kernel_file("/proc/self/smaps");  // longer than one read
  EXPECT_GT(text.size(), 5000U);
  EXPECT_NE(text.rfind("VmFlags:"), std::string::npos);
  EXPECT_EQ(text.back(), '\n');
  EXPECT_EQ(kernel_file("/proc/self/nothing"), "");
  std::array<char, 4> start{};
  EXPECT_EQ(read_kernel_file("/proc/version", start), "Linu");
}

/// The numbers by which this process has files of /proc open, other than the folder that is read here.
std::vector<int> open_kernel_files() {
  std::vector<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().ends_with("/stat"))
      numbers.push_back(std::stoi(entry.path().filename()));
  }
  return numbers;
}

/// A program closes all descriptors and opens eventfds while another thread is reading. A read of an eventfd waits.
TEST(KernelFile, DoesNotWaitForAFileThatHasGotItsNumber) {
  constexpr int kEnough = 100;
  const int event = ::eventfd(0, EFD_CLOEXEC);
  ASSERT_GE(event, 0);
  std::atomic<bool> is_over{false};
  std::atomic<long> reads{0};
  std::thread reader([&] {
    for (; !is_over; ++reads) kernel_file("/proc/self/stat");
  });
  std::vector<int> taken;
  long before = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (static_cast<int>(taken.size()) < kEnough && std::chrono::steady_clock::now() < end) {
    for (const int number : open_kernel_files()) {
      // Not by dup2(), because the thread sanitizer knows that function, and reports the race that this test makes.
      if (::syscall(SYS_dup3, event, number, O_CLOEXEC) == number) taken.push_back(number);
    }
    before = reads;
  }
  while (reads <= before + 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_GT(reads, before + 2) << "the reader waits for an eventfd";
  EXPECT_GE(taken.size(), std::size_t{kEnough});
  is_over = true;
  const std::uint64_t many = 1000000;  // wakes a reader that waits
  EXPECT_EQ(::write(event, &many, sizeof many), static_cast<ssize_t>(sizeof many));
  reader.join();
  for (const int number : taken) ::close(number);
  ::close(event);
}

}  // namespace
}  // namespace syncrun::detail::os

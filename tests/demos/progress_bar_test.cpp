#include "demos/common/progress_bar.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>

namespace demos {
namespace {

using namespace std::chrono_literals;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

/// The text that arrives at a terminal until it is quiet for 200 ms.
std::string shown_on(int terminal) {
  constexpr int kQuiet_ms = 200;
  std::string text;
  std::array<char, 512> bytes{};
  for (pollfd ready{terminal, POLLIN, 0}; poll(&ready, 1, kQuiet_ms) == 1 && (ready.revents & POLLIN) != 0;) {
    const ssize_t got = read(terminal, bytes.data(), bytes.size());
    if (got <= 0) break;
    text.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return text;
}

TEST(ProgressLine, ShowsBarStepLossAndTimeLeftAndFitsTheTerminal) {
  EXPECT_EQ(progress_line("epoch 1", {.step = 10, .total_steps = 40, .loss = 0.25, .elapsed = 30s}, 100),
            "epoch 1 [#######.......................] 10/40  loss 0.2500  ETA 1:30");
  EXPECT_TRUE(progress_line("e", {.step = 0, .total_steps = 4}, 100).ends_with("ETA -:--")) << "not known yet";
  EXPECT_TRUE(progress_line("e", {.step = 4, .total_steps = 4, .elapsed = 9s}, 100).ends_with("ETA 0:00"));
  EXPECT_EQ(progress_line("epoch", {.step = 1, .total_steps = 2}, 12), "epoch [#####");
}

/// A terminal. A test reads from `terminal` what was written to `shown`.
class ProgressBarOnTerminal : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(terminal_, nullptr);
    ASSERT_EQ(grantpt(fileno(terminal_.get())), 0);
    ASSERT_EQ(unlockpt(fileno(terminal_.get())), 0);
    shown_.reset(std::fopen(ptsname(fileno(terminal_.get())), "w"));
    ASSERT_NE(shown_, nullptr);
  }

  const File terminal_{fdopen(posix_openpt(O_RDWR | O_NOCTTY), "r+")};
  File shown_;
};

TEST_F(ProgressBarOnTerminal, RewritesOneLineAndWipesItForAnotherLineAndAtTheEnd) {
  {
    ProgressBar bar(shown_.get(), "epoch", 10);
    bar.update(5, 0.5);
    bar.update(6, 0.5);  // too soon after the update before, so this one is not drawn
    bar.wipe();
    std::fputs("a line", shown_.get());
  }
  std::fflush(shown_.get());
  const std::string text = shown_on(fileno(terminal_.get()));
  EXPECT_TRUE(text.starts_with("\r\x1b[Kepoch [")) << text;
  EXPECT_NE(text.find("5/10"), std::string::npos) << text;
  EXPECT_EQ(text.find("6/10"), std::string::npos) << text;
  EXPECT_NE(text.find("\r\x1b[Ka line"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

}  // namespace
}  // namespace demos

#include "master/wrappers/wrappers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/os/environment.hpp"
#include "tests/common/error_text.hpp"

namespace syncrun::detail::master::wrappers {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const std::string& lines) {
  return test::error_text([&] { Wrappers::read(lines, ""); }, ErrorKind::usage);
}

TEST(Wrappers, BelongToTheRanksOfTheirList) {
  const Wrappers wrappers = Wrappers::read("0,2-3:gdb -batch --args\n5:env A=1:2", "");
  std::vector<std::string> commands;
  for (int rank = 0; rank < 7; ++rank) commands.push_back(wrappers.of(rank) == nullptr ? "" : *wrappers.of(rank));
  const std::string gdb = "gdb -batch --args";
  EXPECT_THAT(commands, ElementsAre(gdb, "", gdb, gdb, "", "env A=1:2", ""));
  EXPECT_EQ(wrappers.lines(), "0,2-3:gdb -batch --args\n5:env A=1:2");
  EXPECT_EQ(*Wrappers::read("*:nice", "").of(1023), "nice");
}

TEST(Wrappers, StandBeforeWhatIsStartedAndAShellReadsThem) {
  const Wrappers wrappers = Wrappers::read("1:nice -n 3", "terminal");
  process::SpawnRequest request;
  request.program = process::SpawnRequest{}.program;
  request.arguments = {"./program", "two words"};
  wrappers.apply(request, 0);
  EXPECT_THAT(request.arguments, ElementsAre("./program", "two words"));
  wrappers.apply(request, 1);
  EXPECT_THAT(request.arguments, ElementsAre("sh", "-c", R"(exec terminal nice -n 3 "$@")", "sh",
                                             HasSubstr("/master_base_tests"), "two words"));
  EXPECT_EQ(request.environment.front().first, environment::kIsWrapped);
}

TEST(Wrappers, ThatAreValgrindLimitTheSharedMemoryAndDoNotLookForLeaksUnlessTheUserWants) {
  EXPECT_FALSE(Wrappers::read("*:env", "").most_shared_bytes());
  EXPECT_EQ(Wrappers::read("0:env\n1:/usr/bin/valgrind -q", "").most_shared_bytes(), std::size_t{32} << 30U);
  EXPECT_EQ(Wrappers::read("1:valgrind --leak-check=full", "").most_shared_bytes(), std::size_t{2} << 30U);
  process::SpawnRequest request;
  request.arguments = {"./program"};
  Wrappers::read("1:valgrind", "").apply(request, 1);
  EXPECT_THAT(request.environment,
              testing::Contains(testing::Pair("VALGRIND_OPTS", testing::StartsWith("--leak-check=no "))));
}

TEST(Wrappers, AreRefusedIfTheyAreNotRanksAndOneCommand) {
  for (const char* line : {"gdb", ":gdb", "a:gdb", "-1:gdb", "3-1:gdb", "0,:gdb", "0,,1:gdb", "1024:gdb", "0 :gdb"})
    EXPECT_THAT(refusal(line), HasSubstr("--wrap (SYNCRUN_WRAP): expected ranks, such as 0")) << line;
  EXPECT_THAT(refusal("0:"), HasSubstr("expected a command after the ':'; got '0:'"));
  EXPECT_THAT(refusal("0:gdb 'x"), HasSubstr("whose quotes are closed"));
  for (const char* line : {"0:gdb | cat", "0:gdb; id", "0:`id`", "0:$(id)"})
    EXPECT_THAT(refusal(line), HasSubstr("expected one command, and quotes")) << line;
}

}  // namespace
}  // namespace syncrun::detail::master::wrappers

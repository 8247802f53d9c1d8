#include "master/wrappers/wrappers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/os/environment.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::wrappers {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::usage ? error.what() : std::string("not a usage error: ") + error.what();
  }
  return "nothing";
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
    EXPECT_THAT(refusal([&] { Wrappers::read(line, ""); }),
                HasSubstr("--wrap (SYNCRUN_WRAP): expected ranks, such as 0"))
        << line;
  EXPECT_THAT(refusal([] { Wrappers::read("0:", ""); }), HasSubstr("expected a command after the ':'; got '0:'"));
  EXPECT_THAT(refusal([] { Wrappers::read("0:gdb 'x", ""); }), HasSubstr("whose quotes are closed"));
  for (const char* line : {"0:gdb | cat", "0:gdb; id", "0:`id`", "0:$(id)"})
    EXPECT_THAT(refusal([&] { Wrappers::read(line, ""); }), HasSubstr("expected one command, and quotes")) << line;
}

TEST(Wrappers, AreRefusedIfARankHasTwo) {
  const std::string two = "expected at most one command for each rank, but rank 2 has two: '";
  EXPECT_THAT(refusal([] { Wrappers::read("0-2:gdb\n2,5:env", ""); }), HasSubstr(two + "0-2:gdb' and '2,5:env'"));
  EXPECT_THAT(refusal([] { Wrappers::read("*:gdb\n2:env", ""); }), HasSubstr(two + "*:gdb' and '2:env'"));
}

TEST(Wrappers, AreRefusedIfARankOrAProgramIsUnknown) {
  const auto check = [](const char* lines, protocol::NodePlace here) {
    return refusal([&] { Wrappers::read(lines, "").check(4, here); });
  };
  const auto alone = protocol::NodePlace::alone(4);
  EXPECT_EQ(check("*:sh\n", alone), "nothing");
  EXPECT_THAT(check("1,4:sh", alone),
              HasSubstr("--wrap (SYNCRUN_WRAP) '1,4:sh': expected ranks from 0 to 3, since there are 4 workers; "
                        "got rank 4"));
  EXPECT_THAT(check("1:no-such-tool -x", alone), HasSubstr("no-such-tool: not found in PATH. Install it"));
  EXPECT_THAT(check("1:/etc/passwd", alone), HasSubstr("/etc/passwd: Permission denied"));
  EXPECT_EQ(check("1:no-such-tool", {1, 2, 2, 2}), "nothing") << "only the node of the rank needs it";
}

}  // namespace
}  // namespace syncrun::detail::master::wrappers

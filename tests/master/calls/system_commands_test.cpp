// The memory that SystemCommands lends, and frees although GPUs may have pinned it.

#include "master/calls/system_commands.hpp"

#include <gmock/gmock.h>

#include "tests/master/calls/played_commands.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr auto kAny = os::SharedHeap::Contents::any;

TEST(Memory, ThatGpusHavePinnedIsGivenBackOnlyIfThereIsNoOther) {
  PlayedSession session{{{DeviceKind::cpu, 0}, {DeviceKind::cuda, 0}}};
  const auto first = session.commands.allocate(FakePool::kHeapBytes / 4 * 3, kAny, "an array");
  EXPECT_THAT(session.commands.log, IsEmpty());
  session.commands.on_command = [&](const protocol::Command& command) {
    EXPECT_EQ(command.kind, protocol::CommandKind::unpin);
    session.heap.free(first, os::SharedHeap::Giveback::now);
  };
  session.commands.allocate(FakePool::kHeapBytes / 4 * 3, kAny, "an array");
  EXPECT_THAT(session.commands.log, ElementsAre("unpin"));
}

TEST(Memory, ThatIsLentGoesBackUnlessTheSessionIsOver) {
  PlayedSession session{{{}}};
  { const master::calls::HeapLoan loan(session.commands, 100, "values"); }
  EXPECT_EQ(session.heap.used_bytes(), 0U);
  {
    const master::calls::HeapLoan loan(session.commands, 100, "values");
    session.commands.is_session_open = false;
  }
  EXPECT_NE(session.heap.used_bytes(), 0U) << "it is not ours to give back any more";
}

}  // namespace
}  // namespace syncrun::test

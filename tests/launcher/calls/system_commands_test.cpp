// What SystemCommands offers besides running commands: freeing memory that GPUs may have pinned, and closing files that
// workers have mapped.

#include "launcher/calls/system_commands.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "common/arrays/array_file.hpp"
#include "common/arrays/npy.hpp"
#include "launcher/data/mapped_data.hpp"
#include "tests/launcher/calls/played_commands.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr auto kAny = SharedHeap::Contents::any;

TEST(Memory, ThatGpusHavePinnedIsGivenBackOnlyIfThereIsNoOther) {
  PlayedSession session{{{DeviceKind::cpu, 0}, {DeviceKind::cuda, 0}}};
  const auto first = session.commands.allocate(FakePool::kHeapBytes / 4 * 3, kAny, "an array");
  EXPECT_THAT(session.commands.log, IsEmpty());
  session.commands.on_command = [&](const Command& command) {
    EXPECT_EQ(command.kind, CommandKind::unpin);
    session.heap.free(first, SharedHeap::Giveback::now);
  };
  session.commands.allocate(FakePool::kHeapBytes / 4 * 3, kAny, "an array");
  EXPECT_THAT(session.commands.log, ElementsAre("unpin"));
}

TEST(Memory, ThatThereIsNotIsRefusedAtOnceWithoutGpus) {
  PlayedSession session{{{}, {}}};
  EXPECT_THROW(session.commands.allocate(2 * FakePool::kHeapBytes, kAny, "an array"), Error);
  session.commands.give_back_pages();
  EXPECT_THAT(session.commands.log, IsEmpty()) << "nothing is pinned";
}

TEST(Memory, ThatIsLentGoesBackUnlessTheSessionIsOver) {
  PlayedSession session{{{}}};
  { const HeapLoan loan(session.commands, 100, "values"); }
  EXPECT_EQ(session.heap.used_bytes(), 0U);
  {
    const HeapLoan loan(session.commands, 100, "values");
    session.commands.is_session_open = false;
  }
  EXPECT_NE(session.heap.used_bytes(), 0U) << "it is not ours to give back any more";
}

class MappedFileOfASession : public testing::Test {
 protected:
  MappedFileOfASession() {
    const std::vector<std::int64_t> shape{4};
    std::ofstream out(path, std::ios::binary);
    out << npy_header(DType::float32, shape) << std::string(16, 'x');
  }

  TemporaryFolder folder;
  std::filesystem::path path = folder.path() / "array.npy";
  PlayedSession session{{{}}};
  Registry registry;
};

TEST_F(MappedFileOfASession, IsUnmappedByTheWorkersAtTheNextEntry) {
  ArrayFile file(path);
  auto record =
      std::make_unique<FileRecord>(session.commands, registry, file.take_elements(), FileRecord::Readers::this_node);
  const auto id = session.pool.segment().at<const FileEntry>(record->entry())->id;
  EXPECT_EQ(session.pool.segment().at<const FileEntry>(record->entry())->bytes, 16U);
  record.reset();
  EXPECT_THAT(session.commands.log, IsEmpty()) << "a destructor starts no command";
  session.commands.on_command = [&](const Command& command) { EXPECT_EQ(command.as<UnmapPayload>().file, id); };
  registry.run_releases();
  EXPECT_THAT(session.commands.log, ElementsAre("the unmapping of a file"));
  EXPECT_EQ(session.heap.used_bytes(), 0U);
}

TEST_F(MappedFileOfASession, AsksNothingOfWorkersThatAreGone) {
  ArrayFile file(path);
  auto record =
      std::make_unique<FileRecord>(session.commands, registry, file.take_elements(), FileRecord::Readers::this_node);
  session.commands.is_session_open = false;
  record.reset();
  EXPECT_FALSE(registry.has_releases());
}

}  // namespace
}  // namespace syncrun::test

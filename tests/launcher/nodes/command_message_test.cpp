// Messages about commands: changes of the heap.

#include "launcher/nodes/command_message.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "common/os/heap_log.hpp"
#include "common/os/segment.hpp"

namespace syncrun::detail {
namespace {

constexpr std::uint64_t kBytes = std::uint64_t{1} << 20U;
constexpr std::uint64_t kExtent = std::uint64_t{64} << 10U;  // extents of this size have pages of their own

class HeapChanges : public testing::Test {
 protected:
  /// An agent that has got an extent with values, and then learns that it was freed.
  char first_byte_after_free(SharedHeap::Pages pages) {
    const Segment master = Segment::create(kBytes);
    const Segment agent = Segment::create(kBytes);
    std::memset(master.at(kExtent), 7, kExtent);
    HeapLog log;
    log.add({HeapChange::Kind::reserved, kExtent, kExtent});
    log.add({HeapChange::Kind::written, kExtent, kExtent});
    repeat(master, agent, log, 0, pages);
    EXPECT_EQ(*agent.at<char>(kExtent), 7);
    const std::uint64_t told = log.end();
    log.add({HeapChange::Kind::freed, kExtent, kExtent});
    repeat(master, agent, log, told, pages);
    return *agent.at<char>(kExtent);
  }

 private:
  static void repeat(const Segment& master, const Segment& agent, const HeapLog& log, std::uint64_t from,
                     SharedHeap::Pages pages) {
    MessageWriter writer(MessageKind::command);
    put_heap_changes(writer, master, log, from);
    const auto bytes = writer.take();
    MessageReader reader(bytes, "the master");
    apply_heap_changes(reader, agent, pages);
  }
};

TEST_F(HeapChanges, ReturnThePagesOfWhatWasFreed) { EXPECT_EQ(first_byte_after_free(SharedHeap::Pages::returned), 0); }

TEST_F(HeapChanges, KeepThePagesThatAGpuMayHavePinned) { EXPECT_EQ(first_byte_after_free(SharedHeap::Pages::kept), 7); }

}  // namespace
}  // namespace syncrun::detail

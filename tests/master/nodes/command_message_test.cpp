// Messages about commands: changes of the heap.

#include "master/nodes/command_message.hpp"

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
  char first_byte_after_free(os::SharedHeap::Pages pages) {
    const os::Segment master = os::Segment::create(kBytes);
    const os::Segment agent = os::Segment::create(kBytes);
    std::memset(master.at(kExtent), 7, kExtent);
    os::HeapLog log;
    log.add({os::HeapChange::Kind::reserved, kExtent, kExtent});
    log.add({os::HeapChange::Kind::written, kExtent, kExtent});
    repeat(master, agent, log, 0, pages);
    EXPECT_EQ(*agent.at<char>(kExtent), 7);
    const std::uint64_t told = log.end();
    log.add({os::HeapChange::Kind::freed, kExtent, kExtent});
    repeat(master, agent, log, told, pages);
    return *agent.at<char>(kExtent);
  }

 private:
  static void repeat(const os::Segment& master, const os::Segment& agent, const os::HeapLog& log, std::uint64_t from,
                     os::SharedHeap::Pages pages) {
    master::nodes::MessageWriter writer(master::nodes::MessageKind::command);
    master::nodes::put_heap_changes(writer, master, log, from);
    const auto bytes = writer.take();
    master::nodes::MessageReader reader(bytes, "the master");
    master::nodes::apply_heap_changes(reader, agent, pages);
  }
};

TEST_F(HeapChanges, ReturnThePagesOfWhatWasFreed) {
  EXPECT_EQ(first_byte_after_free(os::SharedHeap::Pages::returned), 0);
}

TEST_F(HeapChanges, KeepThePagesThatAGpuMayHavePinned) {
  EXPECT_EQ(first_byte_after_free(os::SharedHeap::Pages::kept), 7);
}

}  // namespace
}  // namespace syncrun::detail

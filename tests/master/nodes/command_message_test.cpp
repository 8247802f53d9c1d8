// Messages about commands: changes of the heap.

#include "master/nodes/command_message.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "common/os/heap_log.hpp"
#include "common/os/segment.hpp"
#include "common/os/shared_heap.hpp"
#include "master/nodes/row_mirror.hpp"
#include "syncrun/error.hpp"

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

  static void repeat(const os::Segment& master, const os::Segment& agent, const os::HeapLog& log, std::uint64_t from,
                     os::SharedHeap::Pages pages) {
    master::nodes::MessageWriter writer(master::nodes::MessageKind::command);
    master::nodes::put_heap_changes(writer, master, log, from);
    const auto bytes = writer.take();
    master::nodes::MessageReader reader(bytes, "the master");
    master::nodes::apply_heap_changes(reader, agent, pages);
  }

  /// Node 1, and what the master knows of it.
  struct Node {
    void ask(const os::Segment& master, const os::HeapLog& log) {
      repeat(master, segment, log, std::exchange(told, log.end()), os::SharedHeap::Pages::returned);
    }
    void note(const os::HeapLog& log) {
      log.for_each(told, [this](const os::HeapChange& change) {
        if (change.node == os::HeapChange::kAllNodes || change.node == 1) rows.note(change);
      });
    }
    std::vector<os::SegmentRange> missing_of(std::uint64_t array, std::size_t bytes) const {
      const auto call = std::make_unique<protocol::Command>();
      call->begin<protocol::CallPayload>().arguments_count = 1;
      call->ranks = protocol::RankSet::all(2);
      call->arguments[0] = {.kind = ArgumentKind::broadcast,
                            .dtype = DType::uint8,
                            .dimensions = 1,
                            .offset = array,
                            .extents = {static_cast<std::int64_t>(bytes)}};
      master::nodes::RowMirror copy = rows;
      return copy.take_missing(segment, *call, {1, 2, 1, 1});
    }
    os::Segment segment = os::Segment::create(kHeapEnd);
    master::nodes::RowMirror rows;
    std::uint64_t told = 0;
  };
  static constexpr std::uint64_t kHeapEnd = std::uint64_t{8} << 20U;
};

TEST_F(HeapChanges, AreRefusedOutsideTheSharedMemory) {
  const os::Segment agent = os::Segment::create(kHeapEnd);
  const std::uint64_t end = agent.bytes();
  const auto take = [&](os::HeapChange::Kind kind, std::uint64_t offset, std::uint64_t bytes) {
    master::nodes::MessageWriter writer(master::nodes::MessageKind::command, std::uint64_t{1},
                                        os::HeapChange{kind, offset, bytes});
    writer.put(std::array<std::byte, 64>{});
    const auto message = writer.take();
    master::nodes::MessageReader reader(message, "the master");
    master::nodes::apply_heap_changes(reader, agent, os::SharedHeap::Pages::returned);
  };
  EXPECT_NO_THROW(take(os::HeapChange::Kind::written, end - 64, 64));
  for (const auto kind : {os::HeapChange::Kind::reserved, os::HeapChange::Kind::written, os::HeapChange::Kind::freed}) {
    EXPECT_THROW(take(kind, end - 63, 64), Error);
    EXPECT_THROW(take(kind, end + 1, 0), Error);
    EXPECT_THROW(take(kind, 64, ~std::uint64_t{0}), Error);
  }
}

/// One node asks for changes after each step, the other one seldom, so it gets a short list.
TEST_F(HeapChanges, AreTheSameForANodeThatAsksLate) {
  struct Extent {
    std::uint64_t offset;
    std::size_t bytes;
    bool has_rows;
  };
  const os::Segment master = os::Segment::create(kHeapEnd);
  os::SharedHeap heap(master, 4096, kHeapEnd - 4096);
  os::HeapLog log;
  heap.note_changes(log);
  Node prompt, late;
  std::vector<Extent> extents;
  std::mt19937 random(1);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  const auto fill = [&](std::uint64_t offset, std::size_t bytes) {
    std::memset(master.at(offset), static_cast<int>(below(256)), bytes);
  };
  for (int step = 1; step <= 20'000; ++step) {
    const std::size_t action = below(extents.size() > 20 ? 5 : 8);
    if (action >= 4 || extents.empty()) {
      if (extents.size() > 20) continue;
      Extent extent{0, 1 + below(below(2) == 0 ? 5000 : 300'000), below(2) == 0};
      extent.offset = heap.allocate(extent.bytes, os::SharedHeap::Contents::any, "a test");
      fill(extent.offset, extent.bytes);
      if (extent.has_rows && below(2) == 0) heap.send_by_rows(extent.offset);
      else if (extent.has_rows) heap.leave_to_nodes(extent.offset);
      extents.push_back(extent);
    } else {
      const std::size_t at = below(extents.size());
      const Extent extent = extents[at];
      const std::size_t begin = below(extent.bytes);
      const std::size_t bytes = 1 + below(extent.bytes - begin);
      if (action == 0) {
        heap.free(extent.offset, below(2) == 0 ? os::SharedHeap::Giveback::now : os::SharedHeap::Giveback::later);
        extents.erase(extents.begin() + static_cast<std::ptrdiff_t>(at));
      } else if (!extent.has_rows) {
        fill(extent.offset + begin, bytes);
        heap.note_written(extent.offset + begin, bytes);
      } else if (action == 1) {
        heap.note_rows_written(extent.offset + begin, bytes);
      } else if (action == 2) {
        heap.note_rows_there(extent.offset + begin, bytes);
      } else {
        heap.note_rows_there(extent.offset + begin, bytes, static_cast<int>(1 + below(2)));
      }
    }
    prompt.note(log);
    prompt.ask(master, log);
    if (below(100) != 0) continue;
    log.shorten(late.told);
    late.note(log);
    late.ask(master, log);
    for (const Extent& extent : extents) {
      if (extent.has_rows)
        ASSERT_EQ(late.missing_of(extent.offset, extent.bytes), prompt.missing_of(extent.offset, extent.bytes)) << step;
      else ASSERT_EQ(std::memcmp(late.segment.at(extent.offset), master.at(extent.offset), extent.bytes), 0) << step;
    }
    if (below(10) == 0) log.forget(late.told);
  }
}

TEST_F(HeapChanges, ReturnThePagesOfWhatWasFreed) {
  EXPECT_EQ(first_byte_after_free(os::SharedHeap::Pages::returned), 0);
}

TEST_F(HeapChanges, KeepThePagesThatAGpuMayHavePinned) {
  EXPECT_EQ(first_byte_after_free(os::SharedHeap::Pages::kept), 7);
}

}  // namespace
}  // namespace syncrun::detail

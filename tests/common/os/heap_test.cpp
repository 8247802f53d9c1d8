#include "common/os/shared_heap.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "common/os/heap_log.hpp"
#include "common/os/segment.hpp"

namespace {

using namespace syncrun::detail;
using Contents = os::SharedHeap::Contents;
using Giveback = os::SharedHeap::Giveback;

class Heap : public testing::Test {
 protected:
  static constexpr std::size_t kMegabyte = std::size_t{1} << 20;
  os::Segment segment = os::Segment::create(std::size_t{1} << 31);
  os::SharedHeap heap{segment, 4096, 64 * kMegabyte};

  std::size_t resident_bytes() const {
    struct stat status {};
    fstat(segment.fd(), &status);
    return static_cast<std::size_t>(status.st_blocks) * 512;
  }
  bool is_zero(std::uint64_t offset, std::size_t bytes) const {
    const auto* memory = segment.at(offset);
    return std::all_of(memory, memory + bytes, [](std::byte b) { return b == std::byte{0}; });
  }
};

TEST_F(Heap, GivesExtentsThatDoNotOverlap) {
  std::mt19937 random(1);
  std::vector<std::pair<std::uint64_t, std::size_t>> extents;
  for (int i = 0; i < 2000; ++i) {
    if (!extents.empty() && random() % 2 == 0) {
      const auto victim = extents.begin() + static_cast<std::ptrdiff_t>(random() % extents.size());
      // Each extent is filled with its own mark. If the mark is intact, no other extent has overlapped this one.
      const auto mark = static_cast<std::byte>(victim->first >> 6);
      const auto* memory = segment.at(victim->first);
      ASSERT_TRUE(std::all_of(memory, memory + victim->second, [&](std::byte b) { return b == mark; }));
      heap.free(victim->first, random() % 2 == 0 ? Giveback::now : Giveback::later);
      extents.erase(victim);
    } else {
      const std::size_t bytes = random() % 3 == 0 ? random() % 200'000 : random() % 500;
      const auto offset = heap.allocate(bytes, Contents::zero, "a test");
      ASSERT_EQ(offset % 64, 0U);
      ASSERT_TRUE(is_zero(offset, bytes));
      std::memset(segment.at(offset), static_cast<int>((offset >> 6) & 0xff), bytes);
      extents.emplace_back(offset, bytes);
    }
  }
}

TEST_F(Heap, KeepsWhatIsFreedUntilItMayBeUsedAgain) {
  const auto before = heap.allocate(kMegabyte, Contents::any, "a test");
  heap.keep_freed();
  heap.free(before, Giveback::now);
  heap.free(before, Giveback::now);
  std::memset(segment.at(before), 1, kMegabyte);  // its pages are still there
  const auto meanwhile = heap.allocate(kMegabyte, Contents::any, "a test");
  EXPECT_NE(meanwhile, before);
  EXPECT_EQ(heap.used_bytes(), 2 * kMegabyte);
  heap.release_kept();
  EXPECT_EQ(heap.used_bytes(), kMegabyte);
  const auto after = heap.allocate(kMegabyte, Contents::zero, "a test");
  EXPECT_EQ(after, before);
  EXPECT_TRUE(is_zero(after, kMegabyte));
}

/// The selected word of the system's setting, for example "advise" in "always within_size [advise] never deny force".
std::string huge_pages_for_shared_memory() {
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string word;
  while (setting >> word && word.front() != '[') {
  }
  return word.size() < 2 ? "unknown" : word.substr(1, word.size() - 2);
}

std::size_t huge_page_kilobytes() {
  std::ifstream maps("/proc/self/smaps");
  std::size_t all = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with("ShmemPmdMapped:")) all += std::stoul(line.substr(line.find(':') + 1));
  }
  return all;
}

TEST_F(Heap, KeepsHugePagesWhereTheSystemAllowsThem) {
  const std::string setting = huge_pages_for_shared_memory();
  if (setting != "advise" && setting != "always") GTEST_SKIP() << "shmem_enabled is " << setting;
  os::SharedHeap pinned(segment, 64 * kMegabyte, 64 * kMegabyte, os::SharedHeap::Pages::kept);
  const std::size_t before = huge_page_kilobytes();
  const auto offset = pinned.allocate(33 * kMegabyte + 4096, Contents::zero, "a test");
  EXPECT_TRUE(is_zero(offset, 33 * kMegabyte));
  EXPECT_GT(huge_page_kilobytes(), before);
  EXPECT_LT(resident_bytes(), 36 * kMegabyte) << "none beyond what was asked for";
}

TEST_F(Heap, TellsOfItsGrowthOncePerEightMegabytesAndNotAgainAfterAFree) {
  std::vector<std::size_t> seen;
  heap.watch_growth([&](std::size_t used_bytes) { seen.push_back(used_bytes); });
  static_cast<void>(heap.allocate(7 * kMegabyte, Contents::any, "a"));
  EXPECT_TRUE(seen.empty());
  static_cast<void>(heap.allocate(2 * kMegabyte, Contents::any, "b"));
  for (int round = 0; round < 3; ++round) heap.free(heap.allocate(20 * kMegabyte, Contents::any, "c"), Giveback::now);
  EXPECT_EQ(seen, (std::vector{9 * kMegabyte, 29 * kMegabyte}));
}

TEST_F(Heap, GivesPagesBackToTheSystem) {
  const auto offset = heap.allocate(32 * kMegabyte, Contents::any, "a test");
  EXPECT_GE(resident_bytes(), 32 * kMegabyte) << "reserved when asked for";
  heap.free(offset, Giveback::now);
  EXPECT_LT(resident_bytes(), kMegabyte);
}

TEST_F(Heap, NotesItsChangesInOrder) {
  using Kind = os::HeapChange::Kind;
  os::HeapLog log;
  heap.note_changes(log);
  const auto small = heap.allocate(100, Contents::any, "a test");
  const auto rows = heap.allocate(kMegabyte, Contents::any, "rows");
  heap.send_by_rows(rows);
  heap.note_written(small + 8, 16);
  heap.note_rows_written(rows + 64, 8);
  heap.free(small, Giveback::later);
  std::vector<os::HeapChange> changes;
  log.for_each(0, [&](const os::HeapChange& change) { changes.push_back(change); });
  ASSERT_EQ(changes.size(), 7U);
  const auto is = [&](std::size_t at, Kind kind, std::uint64_t offset, std::uint64_t bytes) {
    return changes[at].kind == kind && changes[at].offset == offset && changes[at].bytes == bytes;
  };
  EXPECT_TRUE(is(0, Kind::reserved, small, 128)) << "a whole number of cache lines";
  EXPECT_TRUE(is(1, Kind::written, small, 100));
  EXPECT_TRUE(is(2, Kind::reserved, rows, kMegabyte));
  EXPECT_TRUE(is(3, Kind::mirrored, rows, kMegabyte));
  EXPECT_TRUE(is(4, Kind::written, small + 8, 16));
  EXPECT_TRUE(is(5, Kind::rows_written, rows + 64, 8));
  EXPECT_TRUE(is(6, Kind::freed, small, 128));
}

TEST_F(Heap, NotesNothingToSendOfAnExtentThatEachNodeMakes) {
  using Kind = os::HeapChange::Kind;
  os::HeapLog log;
  heap.note_changes(log);
  const auto rows = heap.allocate(kMegabyte, Contents::any, "rows");
  heap.leave_to_nodes(rows);
  heap.note_rows_there(rows + 64, 8);
  heap.free(rows, Giveback::later);
  std::vector<Kind> kinds;
  log.for_each(0, [&](const os::HeapChange& change) { kinds.push_back(change.kind); });
  EXPECT_EQ(kinds, (std::vector<Kind>{Kind::mirrored, Kind::rows_there, Kind::freed}));
}

TEST(HeapLog, ForgetsWhatNobodyAsksForAnyMore) {
  os::HeapLog log;
  for (std::uint64_t i = 0; i < 4; ++i) log.add({os::HeapChange::Kind::written, 64 * i, 1});
  log.forget(3);
  EXPECT_EQ(log.end(), 4U);
  std::vector<std::uint64_t> offsets;
  log.for_each(3, [&](const os::HeapChange& change) { offsets.push_back(change.offset); });
  EXPECT_EQ(offsets, std::vector<std::uint64_t>{192});
  log.forget(4);
  EXPECT_EQ(log.end(), 4U);
}

}  // namespace

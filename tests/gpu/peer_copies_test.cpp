// Copies from the memory of another process's GPU. Requires one GPU: both processes use it.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "common/os/segment.hpp"
#include "common/os/shared_heap.hpp"
#include "tests/support/gpus.hpp"
#include "worker/devices/cuda/check.hpp"
#include "worker/devices/cuda/memory_pool.hpp"
#include "worker/devices/cuda/peer_copies.hpp"

namespace syncrun::detail {
namespace {

constexpr std::size_t kHeapBytes = std::size_t{1} << 20U;
constexpr int kRounds = 3;

/// What the two processes tell each other, at the beginning of the segment.
struct Talk {
  std::atomic<int> exported;  // how many rounds the child has exported
  std::atomic<int> copied;    // how many rounds the parent has copied
  std::atomic<int> failed;
  struct {
    std::uint64_t exported;
    std::uint64_t address;
  } places[4];
};

const std::vector<std::size_t> kElements{1, 2, 1000, 5'000'000};
constexpr std::size_t kChunks = 3;  // the first two blocks have the same size, so they lie in one chunk

int value_of(int round, std::size_t block, std::size_t element) {
  return static_cast<int>(element * 7 + block * 100 + static_cast<std::size_t>(round));
}

void await(const std::atomic<int>& word, int value, const std::atomic<int>& failed) {
  for (int i = 0; i < 20'000 && word.load() < value && failed.load() == 0; ++i) usleep(1000);
  if (word.load() < value) throw std::runtime_error("the other process does not answer");
}

constexpr int kLastRound = kRounds + 1;  // in it, the parent copies from a block that it has not mapped yet

/// Exports blocks with values, round by round. The blocks keep their memory.
void export_rounds(const Segment& segment, Talk& talk) {
  SharedHeap arena(segment, sizeof(Talk) + 64 * 64, kHeapBytes / 2);
  PeerCopies copies(segment, arena, 0, 2);
  MemoryPool pool([&](void* chunk) { return copies.take_back(chunk); });
  const auto tell = [&](std::size_t place, void* block) {
    talk.places[place] = {copies.export_memory(pool.chunk_of(block)), reinterpret_cast<std::uint64_t>(block)};
  };
  std::vector<void*> blocks;
  for (const std::size_t elements : kElements) blocks.push_back(pool.allocate(elements * sizeof(int), "a test"));
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t block = 0; block < blocks.size(); ++block) {
      std::vector<int> values(kElements[block]);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(round, block, i);
      check_cuda(cudaMemcpy(blocks[block], values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice), "copy");
      tell(block, blocks[block]);
    }
    check_cuda(cudaDeviceSynchronize(), "a test");
    talk.exported = round + 1;
    await(talk.copied, round + 1, talk.failed);
  }
  const std::size_t free_in_used_chunks = pool.free_bytes();
  pool.release(blocks.back());
  pool.trim();
  if (pool.allocate(kElements.back() * sizeof(int), "a test") != blocks.back()) {
    throw std::runtime_error("a block that the other process has mapped went back to the device");
  }
  pool.release(blocks.back());
  pool.trim();  // asks for it
  void* const fresh = pool.allocate(std::size_t{4} << 20U, "a test");
  check_cuda(cudaMemset(fresh, 1, sizeof(int)), "a test");
  tell(0, fresh);
  talk.exported = kLastRound;
  await(talk.copied, kLastRound, talk.failed);
  pool.trim();
  if (pool.free_bytes() != free_in_used_chunks) {
    throw std::runtime_error("the other process still has a block that was asked for");
  }
}

void copy_rounds(const Segment& segment, Talk& talk) {
  SharedHeap arena(segment, kHeapBytes, kHeapBytes / 2);
  PeerCopies copies(segment, arena, 1, 2);
  const Stream stream = Stream::make();
  for (int round = 0; round < kRounds; ++round) {
    await(talk.exported, round + 1, talk.failed);
    for (std::size_t block = 0; block < kElements.size(); ++block) {
      const std::size_t bytes = kElements[block] * sizeof(int);
      void* memory = nullptr;
      ASSERT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
      const GpuMemory own(memory);
      copies.copy(memory, talk.places[block].exported, talk.places[block].address, bytes, stream.get());
      std::vector<int> values(kElements[block]);
      ASSERT_EQ(cudaMemcpyAsync(values.data(), memory, bytes, cudaMemcpyDeviceToHost, stream.get()), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
      for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], value_of(round, block, i)) << block;
    }
    EXPECT_EQ(copies.mappings(), kChunks) << "a chunk is mapped once";
    talk.copied = round + 1;
  }
  await(talk.exported, kLastRound, talk.failed);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, sizeof(int)), cudaSuccess);
  const GpuMemory own(memory);
  copies.copy(memory, talk.places[0].exported, talk.places[0].address, sizeof(int), stream.get());
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(copies.mappings(), kChunks) << "one more, and one less that was wanted back";
  talk.copied = kLastRound;
}

TEST(PeerCopies, BringWhatAnotherProcessHasExported) {
  if (test::gpus_present() == 0) GTEST_SKIP() << "no GPU is present";
  const Segment segment = Segment::create(std::size_t{1} << 30U);
  Talk& talk = *segment.at<Talk>(0);
  const pid_t child = fork();  // before this process uses CUDA
  if (child == 0) {
    try {
      export_rounds(segment, talk);
    } catch (const std::exception& error) {
      talk.failed = 1;
      std::fprintf(stderr, "the child: %s\n", error.what());
      _exit(1);
    }
    _exit(0);
  }
  EXPECT_NO_THROW(copy_rounds(segment, talk));
  if (testing::Test::HasFailure()) talk.failed = 1;
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace syncrun::detail

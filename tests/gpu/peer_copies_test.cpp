// Copies from the memory of another process's GPU. Requires one GPU: both processes use it.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
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

constexpr int kRanks = 2;
constexpr std::uint64_t kControlAt = std::uint64_t{64} << 20U;  // in the segment

protocol::ControlBlock control_of(const os::Segment& segment) { return {segment.at<std::byte>(kControlAt), kRanks}; }
void take_rank(const os::Segment& segment, int rank) { control_of(segment).worker(rank).pid = getpid(); }

/// What the two processes tell each other, at the beginning of the segment.
struct Talk {
  std::atomic<int> exported;  // how many rounds the child has exported
  std::atomic<int> copied;    // how many rounds the parent has copied
  std::atomic<int> failed;
  struct {
    std::uint64_t exported;
    std::uint64_t address;
    worker::devices::PeerMemoryPlace as_peer() const { return {.rank = 0, .place = address, .exported = exported}; }
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
void export_rounds(const os::Segment& segment, Talk& talk) {
  take_rank(segment, 0);
  const protocol::ControlBlock control = control_of(segment);
  os::SharedHeap arena(segment, sizeof(Talk) + 64 * 64, kHeapBytes / 2);
  worker::devices::cuda::PeerCopies copies(segment, control, arena, 0);
  worker::devices::cuda::MemoryPool pool([&](void* chunk) { return copies.take_back(chunk); });
  const auto tell = [&](std::size_t place, void* block) {
    talk.places[place] = {copies.export_memory(pool.chunk_of(block)), reinterpret_cast<std::uint64_t>(block)};
  };
  std::vector<void*> blocks;
  for (const std::size_t elements : kElements) blocks.push_back(pool.allocate(elements * sizeof(int), "a test"));
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t block = 0; block < blocks.size(); ++block) {
      std::vector<int> values(kElements[block]);
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(round, block, i);
      worker::devices::cuda::check_cuda(
          cudaMemcpy(blocks[block], values.data(), values.size() * sizeof(int), cudaMemcpyHostToDevice), "copy");
      tell(block, blocks[block]);
    }
    worker::devices::cuda::check_cuda(cudaDeviceSynchronize(), "a test");
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
  worker::devices::cuda::check_cuda(cudaMemset(fresh, 1, sizeof(int)), "a test");
  tell(0, fresh);
  talk.exported = kLastRound;
  await(talk.copied, kLastRound, talk.failed);
  pool.trim();
  if (pool.free_bytes() != free_in_used_chunks) {
    throw std::runtime_error("the other process still has a block that was asked for");
  }
}

void copy_rounds(const os::Segment& segment, Talk& talk) {
  take_rank(segment, 1);
  const protocol::ControlBlock control = control_of(segment);
  os::SharedHeap arena(segment, kHeapBytes, kHeapBytes / 2);
  worker::devices::cuda::PeerCopies copies(segment, control, arena, 1);
  const worker::devices::cuda::Stream stream = worker::devices::cuda::Stream::make();
  for (int round = 0; round < kRounds; ++round) {
    await(talk.exported, round + 1, talk.failed);
    for (std::size_t block = 0; block < kElements.size(); ++block) {
      const std::size_t bytes = kElements[block] * sizeof(int);
      void* memory = nullptr;
      ASSERT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
      const worker::devices::cuda::GpuMemory own(memory);
      copies.copy(memory, talk.places[block].as_peer(), bytes, stream.get());
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
  const worker::devices::cuda::GpuMemory own(memory);
  copies.copy(memory, talk.places[0].as_peer(), sizeof(int), stream.get());
  ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
  EXPECT_EQ(copies.mappings(), kChunks) << "one more, and one less that was wanted back";
  talk.copied = kLastRound;
}

/// Runs `exports` in a child, and `copies` here meanwhile. `talk.failed` tells either of a failure of the other.
template <class Exports, class Copies>
void run_beside_child(Talk& talk, Exports&& exports, Copies&& copies) {
  const pid_t child = fork();  // before this process uses CUDA
  if (child == 0) {
    try {
      exports();
    } catch (const std::exception& error) {
      talk.failed = 1;
      std::fprintf(stderr, "the child: %s\n", error.what());
      _exit(1);
    }
    _exit(0);
  }
  EXPECT_NO_THROW(copies());
  if (testing::Test::HasFailure()) talk.failed = 1;
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(PeerCopies, BringWhatAnotherProcessHasExported) {
  if (test::gpus_present() == 0) GTEST_SKIP() << "no GPU is present";
  const os::Segment segment = os::Segment::create(std::size_t{1} << 30U);
  Talk& talk = *segment.at<Talk>(0);
  run_beside_child(
      talk, [&] { export_rounds(segment, talk); }, [&] { copy_rounds(segment, talk); });
}

/// The child plays a worker that is lost. This process plays its peer, and then writes what the new worker has at the place
/// where the description of the memory was.
TEST(PeerCopies, AreForgottenWhenTheWorkerIsReplaced) {
  if (test::gpus_present() == 0) GTEST_SKIP() << "no GPU is present";
  const os::Segment segment = os::Segment::create(std::size_t{1} << 30U);
  Talk& talk = *segment.at<Talk>(0);
  constexpr std::uint64_t kArenaAt = kHeapBytes;
  // Far more than programs beside this one take and free meanwhile.
  constexpr std::size_t kBytes = std::size_t{2} << 30U;
  const auto export_a_block = [&] {
    take_rank(segment, 0);
    const protocol::ControlBlock control = control_of(segment);
    os::SharedHeap arena(segment, kArenaAt, kHeapBytes / 2);
    worker::devices::cuda::PeerCopies copies(segment, control, arena, 0);
    void* memory = nullptr;
    worker::devices::cuda::check_cuda(cudaMalloc(&memory, kBytes), "cudaMalloc");
    talk.places[0] = {copies.export_memory(memory), reinterpret_cast<std::uint64_t>(memory)};
    talk.exported = 1;
    await(talk.copied, 1, talk.failed);  // then the process ends without freeing anything
  };
  const auto copy_and_forget = [&] {
    take_rank(segment, 1);
    const protocol::ControlBlock control = control_of(segment);
    os::SharedHeap own_arena(segment, 4 * kHeapBytes, kHeapBytes / 2);
    worker::devices::cuda::PeerCopies copies(segment, control, own_arena, 1);
    const worker::devices::cuda::Stream stream = worker::devices::cuda::Stream::make();
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, kBytes), cudaSuccess);
    const worker::devices::cuda::GpuMemory own(memory);
    await(talk.exported, 1, talk.failed);
    const worker::devices::PeerMemoryPlace place = talk.places[0].as_peer();
    copies.copy(memory, place, kBytes, stream.get());
    ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    talk.copied = 1;
    siginfo_t end{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(control.worker(0).pid.load()), &end, WEXITED | WNOWAIT), 0);
    std::size_t before = 0;
    std::size_t total = 0;
    ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
    EXPECT_EQ(copies.mappings(), 1U);

    ++control.worker(0).predecessors;
    std::byte* const arena = segment.at(kArenaAt);
    std::fill_n(arena, kHeapBytes / 2, std::byte{1});
    copies.forget_replaced();
    EXPECT_EQ(copies.mappings(), 0U);
    std::size_t after = 0;
    ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
    EXPECT_GE(after, before + kBytes / 2) << "the memory of the lost worker is free";
    EXPECT_TRUE(std::all_of(arena, arena + kHeapBytes / 2, [](std::byte each) { return each == std::byte{1}; }))
        << "what the new worker has there stays as it is";
  };
  run_beside_child(talk, export_a_block, copy_and_forget);
}

}  // namespace
}  // namespace syncrun::detail

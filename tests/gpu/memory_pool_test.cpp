// Blocks and chunks of a GPU's memory. Requires one GPU.

#include "worker/devices/cuda/memory_pool.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/support/gpus.hpp"

namespace syncrun::detail {
namespace {

constexpr std::size_t kChunk = std::size_t{2} << 20U;

class BlocksOfAGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (test::gpus_present() == 0) GTEST_SKIP() << "no GPU is present";
  }
  std::vector<void*> taken_back_;
  bool may_go_back_ = true;
  worker::devices::cuda::MemoryPool pool_{[this](void* chunk) {
    taken_back_.push_back(chunk);
    return may_go_back_;
  }};
};

TEST_F(BlocksOfAGpu, OfOneSizeShareAChunk) {
  std::set<void*> blocks;
  std::set<void*> chunks;
  constexpr std::size_t kBlocks = kChunk / 512;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    void* const block = pool_.allocate(8, "a test");
    blocks.insert(block);
    chunks.insert(pool_.chunk_of(block));
  }
  EXPECT_EQ(blocks.size(), kBlocks);
  EXPECT_EQ(chunks.size(), 1);
  EXPECT_EQ(pool_.free_bytes(), 0);
  EXPECT_NE(pool_.chunk_of(pool_.allocate(8, "a test")), *chunks.begin()) << "the first chunk is full";
}

TEST_F(BlocksOfAGpu, OfLargeSizesHaveChunksOfTheirOwn) {
  void* const block = pool_.allocate(3 * kChunk - 1, "a test");
  EXPECT_EQ(pool_.chunk_of(block), block);
  pool_.release(block);
  EXPECT_EQ(pool_.free_bytes(), 3 * kChunk);
}

TEST_F(BlocksOfAGpu, AreUsedAgainWhileTheyAreWarm) {
  void* const first = pool_.allocate(100, "a test");
  void* const second = pool_.allocate(100, "a test");
  pool_.release(first);
  pool_.release(second);
  EXPECT_EQ(pool_.allocate(200, "a test"), second) << "the one that was released last";
  EXPECT_EQ(pool_.allocate(200, "a test"), first);
}

TEST_F(BlocksOfAGpu, GoBackWhenNoBlockOfTheirChunkIsUsed) {
  void* const kept = pool_.allocate(100, "a test");
  void* const released = pool_.allocate(100, "a test");
  void* const large = pool_.allocate(kChunk, "a test");
  pool_.release(released);
  pool_.release(large);
  pool_.trim();
  EXPECT_EQ(taken_back_, std::vector<void*>{large}) << "the other chunk has a block that is used";
  EXPECT_EQ(pool_.free_bytes(), kChunk - 512);
  pool_.release(kept);
  may_go_back_ = false;
  pool_.trim();
  EXPECT_EQ(pool_.free_bytes(), kChunk) << "a peer has the chunk mapped";
  EXPECT_EQ(pool_.allocate(100, "a test"), kept);
  pool_.release(kept);
  may_go_back_ = true;
  pool_.trim();
  EXPECT_EQ(pool_.free_bytes(), 0);
}

TEST_F(BlocksOfAGpu, KnowNoOtherMemory) {
  int other = 0;
  EXPECT_EQ(pool_.chunk_of(&other), nullptr);
  pool_.release(&other);  // has no effect
  EXPECT_EQ(pool_.free_bytes(), 0);
}

}  // namespace
}  // namespace syncrun::detail

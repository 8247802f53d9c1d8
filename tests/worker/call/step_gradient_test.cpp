// Division of a gradient into buckets, and the moments at which the averages of the buckets start. The communicator of
// these tests only records which averages it is asked for.

#include "worker/call/step_gradient.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "syncrun/gradient_ready.hpp"
#include "worker/comm/collectives.hpp"

namespace syncrun::detail {
namespace {

std::vector<worker::call::Bucket> all_buckets(std::size_t elements, std::size_t bucket_elements) {
  worker::call::BucketCutter cutter(elements, bucket_elements);
  std::vector<worker::call::Bucket> all;
  while (const auto bucket = cutter.next(0)) all.push_back(*bucket);
  return all;
}

TEST(BucketCutter, GoesFromTheEndToTheBeginningAndLeavesNothingOut) {
  for (const std::size_t elements : {0, 1, 31, 32, 33, 1000, 4096, 99'999}) {
    for (const std::size_t bucket_elements : {0, 1, 32, 33, 1000, 4096, 1'000'000}) {
      std::size_t end = elements;
      for (const worker::call::Bucket& bucket : all_buckets(elements, bucket_elements)) {
        EXPECT_EQ(bucket.end, end);
        EXPECT_LT(bucket.begin, bucket.end);
        EXPECT_EQ(bucket.begin % worker::call::BucketCutter::kAlignment, 0U);
        EXPECT_LE(bucket.count(),
                  std::max(bucket_elements, std::size_t{1}) + worker::call::BucketCutter::kAlignment - 1);
        end = bucket.begin;
      }
      EXPECT_EQ(end, 0U) << elements << " elements by " << bucket_elements;
    }
  }
}

TEST(BucketCutter, CutsWholeBucketsFirstAndTheRestLast) {
  EXPECT_EQ(all_buckets(100, 32), (std::vector<worker::call::Bucket>{{96, 100}, {64, 96}, {32, 64}, {0, 32}}));
  EXPECT_EQ(all_buckets(100, 40), (std::vector<worker::call::Bucket>{{64, 100}, {0, 64}}));
  EXPECT_EQ(all_buckets(1000, 320), (std::vector<worker::call::Bucket>{{704, 1000}, {384, 704}, {64, 384}, {0, 64}}));
  EXPECT_EQ(all_buckets(96, 64), (std::vector<worker::call::Bucket>{{32, 96}, {0, 32}}));
  EXPECT_EQ(all_buckets(64, 64), (std::vector<worker::call::Bucket>{{0, 64}}));
}

/// Records the averages that are started. For example, "36 from 64" means 36 elements from element 64 on.
class WritesDown final : public worker::comm::SoloComm {
 public:
  explicit WritesDown(const float* gradient) : gradient_(gradient) {}
  bool has_background() const noexcept override { return true; }
  void start_average(void* values, std::size_t elements, DType dtype, const worker::comm::RankWeights& weights,
                     std::size_t first) override {
    EXPECT_EQ(weights.own, 7);
    EXPECT_EQ(weights.all, 9);
    EXPECT_EQ(values, gradient_ + first);
    EXPECT_EQ(dtype, DType::float32);
    EXPECT_EQ(depth_, 1) << "outside the phase that a deadline's report would name";
    lines_.push_back(std::to_string(elements) + " from " + std::to_string(first));
  }
  void join_started() override { lines_.emplace_back("join"); }
  void enter() override { ++depth_; }
  void leave() noexcept override { --depth_; }
  /// The records since the last call of taken().
  std::vector<std::string> taken() { return std::exchange(lines_, {}); }

 private:
  const float* gradient_;
  std::vector<std::string> lines_;
  int depth_ = 0;
};

using Lines = std::vector<std::string>;

class GradientInBuckets : public testing::Test {
 protected:
  void begin(std::size_t bucket_elements = 32,
             worker::call::BucketStart start = worker::call::BucketStart::when_ready) {
    gradient_.start_buckets(start);
    gradient_.begin(comm_, {.own = 7, .all = 9}, {values_.data(), values_.size(), DType::float32},
                    bucket_elements * sizeof(float));
  }
  std::vector<float> values_ = std::vector<float>(128);
  WritesDown comm_{values_.data()};
  worker::call::StepGradient gradient_;
  GradientReady ready_{gradient_};
};

TEST_F(GradientInBuckets, StartsABucketWhenAllOfItIsReady) {
  begin();
  EXPECT_TRUE(ready_.is_used());
  ready_.from(128);
  ready_.from(97);
  EXPECT_EQ(comm_.taken(), Lines());
  ready_.from(96);
  EXPECT_EQ(comm_.taken(), Lines{"32 from 96"});
  ready_.from(33);
  EXPECT_EQ(comm_.taken(), Lines{"32 from 64"});
  ready_.from(33);
  EXPECT_EQ(comm_.taken(), Lines());
  ready_.from(0);
  EXPECT_EQ(comm_.taken(), (Lines{"32 from 32", "32 from 0"}));
  EXPECT_TRUE(gradient_.finish());
  EXPECT_EQ(comm_.taken(), Lines{"join"});
}

// All ranks start the same averages. This includes a rank whose body says nothing, and a rank without rows, which runs
// no body.
TEST_F(GradientInBuckets, IsTheSameWhateverTheBodySays) {
  const Lines all{"32 from 96", "32 from 64", "32 from 32", "32 from 0", "join"};
  for (const std::vector<std::int64_t>& said :
       {std::vector<std::int64_t>{}, {0}, {128, 50}, {127, 126, 100, 3}, {96, 64, 32, 0}}) {
    begin();
    for (const auto first : said) ready_.from(first);
    EXPECT_TRUE(gradient_.finish());
    EXPECT_EQ(comm_.taken(), all);
  }
}

TEST_F(GradientInBuckets, StartsNothingBeforeTheBodyIsDoneWhereItIsToldSo) {
  begin(32, worker::call::BucketStart::after_body);
  ready_.from(0);
  EXPECT_EQ(comm_.taken(), Lines());
  EXPECT_TRUE(gradient_.finish());
  EXPECT_EQ(comm_.taken(), (Lines{"32 from 96", "32 from 64", "32 from 32", "32 from 0", "join"}));
}

TEST_F(GradientInBuckets, IsNotCutWhereThatIsOffOrOneBucketWouldDo) {
  for (const std::size_t bucket_elements : {0, 128, 1000}) {
    begin(bucket_elements);
    EXPECT_FALSE(ready_.is_used());
    ready_.from(0);
    EXPECT_FALSE(gradient_.finish());
    EXPECT_EQ(comm_.taken(), Lines());
  }
}

}  // namespace
}  // namespace syncrun::detail

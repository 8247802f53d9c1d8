// all_reduce of every type, operation and length. Small arrays go through the peers' memory in two ways, and large ones
// through NCCL. The results must not depend on the way.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>

#include "tests/gpu/on_gpus.hpp"

namespace gpu_test {
namespace {

/// Reduces the elements from `skip` on, so that they may begin at an address that is not aligned.
template <class T>
void reduce_from(sr::CudaWorker& /*worker*/, sr::Comm& comm, sr::Local<T, 1> values, std::int64_t skip,
                 sr::Reduction reduction) {
  comm.all_reduce(values.span().subspan(static_cast<std::size_t>(skip)), reduction);
}

constexpr std::size_t kLongest = 300'007;  // of 8 bytes: too long to be sent by lines

/// A small number. Every type represents the sums and products of these numbers over the ranks exactly.
template <class T>
T value_of(int rank, std::int64_t element) {
  return static_cast<T>(static_cast<float>((element + rank) % 3 + (rank == 1 ? 1 : 0)));
}

double reduced(sr::Reduction reduction, double a, double b) {
  switch (reduction) {
    case sr::Reduction::min: return std::min(a, b);
    case sr::Reduction::max: return std::max(a, b);
    case sr::Reduction::prod: return a * b;
    default: return a + b;
  }
}

class GpuAllReduce : public OnGpus {
 protected:
  template <class T>
  void set(sr::Shared<T, 1>& variable, std::int64_t size) {
    for (int rank = 0; rank < world_size(); ++rank) {
      std::vector<T> values(static_cast<std::size_t>(size));
      for (std::int64_t i = 0; i < size; ++i) values[static_cast<std::size_t>(i)] = value_of<T>(rank, i);
      variable.set(rank, values, sr::Shape{size});
    }
  }

  template <class T>
  void expect_reduced(const sr::Shared<T, 1>& variable, std::int64_t skip, sr::Reduction reduction) {
    for (int rank = 0; rank < world_size(); ++rank) {
      const auto got = variable.get(rank);
      for (std::int64_t i = 0; i < got.shape()[0]; ++i) {
        double expected = static_cast<double>(value_of<T>(i < skip ? rank : 0, i));
        for (int other = 1; i >= skip && other < world_size(); ++other) {
          expected = reduced(reduction, expected, static_cast<double>(value_of<T>(other, i)));
        }
        ASSERT_EQ(static_cast<double>(got[i]), expected)
            << "element " << i << " of " << got.shape()[0] << " on rank " << rank << ", " << to_string(reduction);
      }
    }
  }

  template <class T>
  void expect_right_for_every_length() {
    const auto f = session().function(reduce_from<T>);
    auto variable = session().shared<T, 1>("values");
    const auto each = static_cast<std::int64_t>(sizeof(T));
    // Sizes where the way changes: each rank sends all it has to every other rank, NCCL reduces, or each rank reduces a
    // share.
    const std::int64_t line_limit = (1 << 20) / std::max(world_size() - 1, 1) / 16 * 16 / each;
    const std::int64_t nccl_limit = (1 << 20) / each;
    for (const std::int64_t size : {std::int64_t{1}, std::int64_t{37}, line_limit - 1, line_limit, line_limit + 1,
                                    nccl_limit, nccl_limit + 1, 3 * nccl_limit + 5}) {
      for (const std::int64_t skip : {0, 1}) {
        if (skip >= size) continue;
        set(variable, size);
        f(variable, skip, sr::Reduction::sum);
        expect_reduced(variable, skip, sr::Reduction::sum);
      }
    }
    for (const auto reduction : {sr::Reduction::min, sr::Reduction::max, sr::Reduction::prod}) {
      for (const std::int64_t size : {std::int64_t{100}, 2 * nccl_limit}) {
        set(variable, size);
        f(variable, 0, reduction);
        expect_reduced(variable, 0, reduction);
      }
    }
  }
};
INSTANTIATE_ON_GPUS(GpuAllReduce);

TEST_P(GpuAllReduce, IsRightForFloat32) { expect_right_for_every_length<float>(); }
TEST_P(GpuAllReduce, IsRightForFloat64) { expect_right_for_every_length<double>(); }
TEST_P(GpuAllReduce, IsRightForFloat16) { expect_right_for_every_length<sr::float16>(); }
TEST_P(GpuAllReduce, IsRightForBfloat16) { expect_right_for_every_length<sr::bfloat16>(); }
TEST_P(GpuAllReduce, IsRightForInt8) { expect_right_for_every_length<std::int8_t>(); }
TEST_P(GpuAllReduce, IsRightForUint8) { expect_right_for_every_length<std::uint8_t>(); }
TEST_P(GpuAllReduce, IsRightForUint32) { expect_right_for_every_length<std::uint32_t>(); }
TEST_P(GpuAllReduce, IsRightForUint64) { expect_right_for_every_length<std::uint64_t>(); }

/// Checks max and min of values of which one has the highest bit set. A kernel for signed integers would choose the
/// other one.
template <class T>
void expect_largest(sr::Session& session, int ranks) {
  const auto f = session.function(reduce_from<T>);
  auto variable = session.shared<T, 1>("values");
  for (const std::int64_t size : {std::int64_t{100}, std::int64_t{1} << 20, std::int64_t{5} << 20}) {
    for (const auto reduction : {sr::Reduction::max, sr::Reduction::min}) {
      for (int rank = 0; rank < ranks; ++rank) {
        const T own = rank == ranks - 1 ? std::numeric_limits<T>::max() : T(rank + 1);
        variable.set(rank, std::vector<T>(static_cast<std::size_t>(size), own), sr::Shape{size});
      }
      f(variable, 0, reduction);
      const T expected = reduction == sr::Reduction::max || ranks == 1 ? std::numeric_limits<T>::max() : T{1};
      for (int rank = 0; rank < ranks; ++rank) {
        const auto got = variable.get(rank);
        ASSERT_EQ(std::count(got.begin(), got.end(), expected), size) << to_string(sr::dtype_of<T>) << " on " << rank;
      }
    }
  }
}

TEST_P(GpuAllReduce, TakesUnsignedIntegersForWhatTheyAre) {
  expect_largest<std::uint8_t>(session(), world_size());
  expect_largest<std::uint32_t>(session(), world_size());
  expect_largest<std::uint64_t>(session(), world_size());
}

TEST_P(GpuAllReduce, IsRightForInt32) { expect_right_for_every_length<std::int32_t>(); }
TEST_P(GpuAllReduce, IsRightForInt64) { expect_right_for_every_length<std::int64_t>(); }

TEST_P(GpuAllReduce, IsRightAboveAndBelowWhatGoesThroughNccl) {
  const auto f = session().function(reduce_from<float>);
  auto variable = session().shared<float, 1>("values");
  const std::int64_t limit = (16 << 20) / 4;
  for (const std::int64_t size : {limit - 3, limit, limit + 1}) {
    set(variable, size);
    f(variable, 0, sr::Reduction::sum);
    expect_reduced(variable, 0, sr::Reduction::sum);
  }
}

TEST_P(GpuAllReduce, IsRightInAnyOrderOfLengths) {
  const auto f = session().function(sr::replayable([](sr::CudaWorker&, sr::Comm& comm, sr::Local<std::int64_t, 1> all) {
    // A max follows each sum. After the sum, all ranks have equal values, so max changes them only if a rank reads too
    // early.
    for (std::size_t begin = 0, length = 1; begin + length < all.span().size();
         begin += length, length = length * 7 % kLongest) {
      comm.all_reduce(all.span().subspan(begin, length), sr::Reduction::sum);
      comm.all_reduce(all.span().subspan(begin, length), sr::Reduction::max);
    }
  }));
  auto variable = session().shared<std::int64_t, 1>("values");
  const std::int64_t size = 6'000'000;
  for (int round = 0; round < 4; ++round) {  // the calls run, are captured, and are replayed
    variable.broadcast(std::vector<std::int64_t>(static_cast<std::size_t>(size), round + 1));
    f(variable);
    for (int rank = 0; rank < world_size(); ++rank) {
      const auto got = variable.get(rank);
      const auto count = std::count(got.span().begin(), got.span().end(), (round + 1) * world_size());
      EXPECT_GT(count, size - static_cast<std::int64_t>(kLongest)) << "rank " << rank << ", round " << round;
      const auto untouched = std::count(got.span().begin(), got.span().end(), round + 1);
      EXPECT_EQ(world_size() == 1 ? count : count + untouched, size);
    }
  }
}

TEST_P(GpuAllReduce, GivesEveryRankTheSameBits) {
  const auto f = session().function(reduce_from<float>);
  auto variable = session().shared<float, 1>("values");
  for (const std::int64_t size : {1000, 100'000, 1'000'000, 5'000'000}) {
    for (int rank = 0; rank < world_size(); ++rank) {
      std::mt19937 random(static_cast<unsigned>(rank));
      std::uniform_real_distribution<float> uniform(-1, 1);
      std::vector<float> values(static_cast<std::size_t>(size));
      for (auto& value : values) value = uniform(random);
      variable.set(rank, values, sr::Shape{size});
    }
    f(variable, 0, sr::Reduction::sum);
    const auto first = variable.get(0);
    for (int rank = 1; rank < world_size(); ++rank) {
      const auto other = variable.get(rank);
      EXPECT_TRUE(std::equal(first.span().begin(), first.span().end(), other.span().begin())) << size;
    }
  }
}

TEST_P(GpuAllReduce, LeavesARankWithoutRowsOutOfAnAverage) {
  const auto f = session().function([](sr::CudaWorker&, sr::Comm& comm, sr::Scattered<const float, 1>,
                                       sr::Local<float, 1> values) { comm.avg(values); });
  const auto x = session().data(std::vector<float>(1));
  auto variable = session().shared<float, 1>("values");
  for (const std::int64_t size : {100, 100'000, 1'000'000, 5'000'000}) {
    variable.broadcast(std::vector<float>(static_cast<std::size_t>(size), std::numeric_limits<float>::quiet_NaN()));
    variable.set(0, std::vector<float>(static_cast<std::size_t>(size), 2.5F), sr::Shape{size});
    f(x, variable);
    const auto got = variable.get(world_size() - 1);
    EXPECT_EQ(std::count(got.span().begin(), got.span().end(), 2.5F), size);
  }
}

template <class T, sr::Reduction kReduction>
void reduce_in_replay(sr::CudaWorker& /*worker*/, sr::Comm& comm, sr::Local<T, 1> values) {
  comm.all_reduce(values, kReduction);
}

/// One rank has NaN in the first and the last element. The sizes take each way: lines, shares, and NCCL.
template <class T>
void expect_nan_in_extremes(sr::Session& session) {
  const auto plain = session.function(reduce_from<T>);
  const auto replayed_min = session.function(sr::replayable(reduce_in_replay<T, sr::Reduction::min>));
  const auto replayed_max = session.function(sr::replayable(reduce_in_replay<T, sr::Reduction::max>));
  auto variable = session.shared<T, 1>("values");
  const int ranks = session.world_size();
  for (const std::size_t bytes :
       {std::size_t{100}, std::size_t{900'000}, std::size_t{3} << 20U, std::size_t{20} << 20U}) {
    const std::size_t size = bytes / sizeof(T);
    for (const auto reduction : {sr::Reduction::min, sr::Reduction::max}) {
      for (int nan_rank = 0; nan_rank < ranks; ++nan_rank) {
        for (int round = 0; round < 4; ++round) {  // plain, and then a call that runs, is captured, and is replayed
          for (int rank = 0; rank < ranks; ++rank) {
            std::vector<T> values(size, T(static_cast<float>(rank - 1)));
            if (rank == nan_rank) values.front() = values.back() = T(std::numeric_limits<float>::quiet_NaN());
            variable.set(rank, values, sr::Shape{static_cast<std::int64_t>(size)});
          }
          if (round == 0) plain(variable, 0, reduction);
          else if (reduction == sr::Reduction::min) replayed_min(variable);
          else replayed_max(variable);
          const auto got = variable.get(ranks - 1);
          const T expected(static_cast<float>(reduction == sr::Reduction::min ? -1 : ranks - 2));
          ASSERT_TRUE(std::isnan(static_cast<float>(got[0]))) << to_string(sr::dtype_of<T>) << ", " << bytes;
          ASSERT_TRUE(std::isnan(static_cast<float>(*(got.span().end() - 1)))) << to_string(sr::dtype_of<T>);
          ASSERT_EQ(std::count(got.span().begin() + 1, got.span().end() - 1, expected),
                    static_cast<std::ptrdiff_t>(size) - 2)
              << to_string(sr::dtype_of<T>) << ", " << bytes << " bytes, round " << round;
        }
      }
    }
  }
}

TEST_P(GpuAllReduce, GivesNanAsExtremeOfFloat32) { expect_nan_in_extremes<float>(session()); }
TEST_P(GpuAllReduce, GivesNanAsExtremeOfFloat64) { expect_nan_in_extremes<double>(session()); }
TEST_P(GpuAllReduce, GivesNanAsExtremeOfFloat16) { expect_nan_in_extremes<sr::float16>(session()); }
TEST_P(GpuAllReduce, GivesNanAsExtremeOfBfloat16) { expect_nan_in_extremes<sr::bfloat16>(session()); }

}  // namespace
}  // namespace gpu_test

// Inputs on a device whose work runs later, in two lanes that FakeLanes puts in a random order. Random calls, with copies
// ahead at random times, must all read their own rows.

#include "worker/devices/staging.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "tests/worker/devices/fake_lanes.hpp"

namespace syncrun::detail {
namespace {

constexpr std::size_t kArguments = 3;
constexpr std::int64_t kRowCounts[] = {0, 1, 100, 3'000, 17'000};  // the longest one is copied at once
constexpr std::size_t kMostBytesOfSet = kArguments * 128 * 1024;

/// One argument of a call. Its values differ from those of all others.
struct Input {
  std::vector<std::int32_t> values;
  std::vector<std::int64_t> indices;  // empty: the rows in their order
  bool is_local = false;              // the values are in device memory
  worker::devices::SharedRows rows() const {
    return {reinterpret_cast<const std::byte*>(values.data()), sizeof(values[0]),
            static_cast<std::int64_t>(values.size())};
  }
};

struct Call {
  std::uint64_t command;  // its number in the session
  std::int64_t slices;
  std::array<Input, kArguments> inputs;
};

class Program {
 public:
  Program(std::uint32_t seed, bool has_little_memory) : lanes_(seed), random_(seed) {
    if (has_little_memory) lanes_.memory().most_bytes = kMostBytesOfSet;
    std::uint64_t command = 0;
    for (int i = 0; i < 30; ++i) calls_.push_back(std::make_unique<Call>(some_call(command += 1 + pick(3))));
  }

  /// Returns how many slices of calls read wrong rows.
  int run() {
    for (next_ = 0; next_ < calls_.size();) {
      const Call& call = *calls_[next_++];
      if (pick(10) == 0) continue;  // it fails before it begins on this rank
      try {
        run_call(call);
      } catch (const Error&) {  // too little memory
        lanes_.abandon_work();
        staging_.abandon();
      }
    }
    finish();
    return wrong_;
  }

 private:
  std::uint32_t pick(std::uint32_t below) { return static_cast<std::uint32_t>(random_() % below); }
  Call some_call(std::uint64_t command) {
    Call call{command, 1 + pick(3), {}};
    for (Input& input : call.inputs) {
      input.values.resize(static_cast<std::size_t>(kRowCounts[pick(std::size(kRowCounts))]));
      for (auto& value : input.values) value = next_value_++;
      input.is_local = pick(6) == 0;
      if (!input.is_local && pick(2) == 0) continue;
      input.indices.resize(input.values.size());
      std::iota(input.indices.begin(), input.indices.end(), 0);
      std::shuffle(input.indices.begin(), input.indices.end(), random_);
    }
    return call;
  }
  void run_call(const Call& call) {
    staging_.begin_command(call.command);
    for (std::int64_t slice = 0; slice < call.slices; ++slice) {
      run_slice(call, slice);
      if (pick(3) == 0) finish();  // the body waits for its device
    }
    if (pick(3) != 0) finish();
  }
  /// Later slices may be longer than the first one.
  static worker::devices::RowsWanted wanted(const Call& call, const Input& input, std::int64_t slice) {
    const auto rows = static_cast<std::int64_t>(input.values.size());
    const std::int64_t begin = rows * slice * slice / (call.slices * call.slices);
    const std::int64_t end = rows * (slice + 1) * (slice + 1) / (call.slices * call.slices);
    if (input.indices.empty()) return {nullptr, begin, end - begin};
    return {input.indices.data() + begin, 0, end - begin};
  }
  void run_slice(const Call& call, std::int64_t slice) {
    std::array<const std::int32_t*, kArguments> places{};
    for (std::size_t i = 0; i < kArguments; ++i) {
      const Input& input = call.inputs[i];
      const worker::devices::RowsWanted rows = wanted(call, input, slice);
      void* const place =
          input.is_local
              ? staging_.gather_local(i, test::device_view(const_cast<std::int32_t*>(input.values.data())),
                                      sizeof(std::int32_t), {rows.indices, static_cast<std::size_t>(rows.rows)})
              : staging_.bring(i, input.rows(), rows);
      places[i] = static_cast<const std::int32_t*>(place);
    }
    staging_.flush();
    lanes_.work().push_back([this, &call, places, slice] {  // the body
      bool is_right = true;
      for (std::size_t i = 0; i < kArguments; ++i) {
        const Input& input = call.inputs[i];
        const worker::devices::RowsWanted rows = wanted(call, input, slice);
        for (std::int64_t row = 0; row < rows.rows; ++row) {
          const std::int64_t from = rows.indices == nullptr ? rows.first + row : rows.indices[row];
          is_right = is_right && test::host_view(places[i])[row] == input.values[static_cast<std::size_t>(from)];
        }
      }
      wrong_ += is_right ? 0 : 1;
    });
  }
  void finish() {
    staging_.flush();
    lanes_.finish([this] {
      if (pick(4) == 0) look_ahead();
    });
  }
  void look_ahead() {
    if (next_ == calls_.size() || looked_at_ == next_) return;
    looked_at_ = next_;
    const Call& call = *calls_[next_];
    try {
      staging_.begin_ahead(call.command);
      for (std::size_t i = 0; i < kArguments; ++i) {
        const Input& input = call.inputs[i];
        if (!input.is_local) static_cast<void>(staging_.bring(i, input.rows(), wanted(call, input, 0)));
      }
      if (pick(8) == 0) throw Error(ErrorKind::system, "a file cannot be read");
      staging_.end_ahead();
    } catch (const Error&) {
      staging_.abandon();
    }
  }

  test::FakeLanes lanes_;
  worker::devices::Staging staging_{lanes_};
  std::minstd_rand random_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::size_t next_ = 0;  // the call after the one that runs
  std::optional<std::size_t> looked_at_;
  std::int32_t next_value_ = 0;
  int wrong_ = 0;
};

TEST(Staging, GivesEveryCallItsOwnRows) {
  for (std::uint32_t seed = 1; seed <= 100; ++seed) ASSERT_EQ(Program(seed, false).run(), 0) << "seed " << seed;
}

TEST(Staging, GivesEveryCallItsOwnRowsIfOnlyOneSetFits) {
  for (std::uint32_t seed = 1; seed <= 100; ++seed) ASSERT_EQ(Program(seed, true).run(), 0) << "seed " << seed;
}

// Numbers count the commands of the session, so those of one rank may all be even.
TEST(Staging, CopiesAheadBesideTheCallThatRunsWhateverTheNumbersAre) {
  const std::vector<std::int32_t> first(1'000, 1);
  const std::vector<std::int32_t> second(1'000, 2);
  const auto rows = [](const auto& values) {
    return worker::devices::SharedRows{reinterpret_cast<const std::byte*>(values.data()), sizeof(std::int32_t), 1'000};
  };
  test::FakeLanes lanes;
  worker::devices::Staging staging(lanes);
  staging.begin_command(2);
  void* const own = staging.bring(0, rows(first), {nullptr, 0, 1'000});
  staging.begin_ahead(4);
  void* const ahead = staging.bring(0, rows(second), {nullptr, 0, 1'000});
  staging.end_ahead();
  EXPECT_NE(own, ahead);
  staging.begin_command(4);
  EXPECT_EQ(staging.bring(0, rows(second), {nullptr, 0, 1'000}), ahead) << "what was copied ahead is used";
  staging.begin_command(10);
  EXPECT_EQ(staging.bring(0, rows(first), {nullptr, 0, 1'000}), own) << "the sets take turns";
}

}  // namespace
}  // namespace syncrun::detail

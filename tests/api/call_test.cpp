// The values and texts that a call passes to the body.

#include <malloc.h>

#include <string>
#include <string_view>

#include "tests/support/on_workers.hpp"

namespace {

class Call : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Call, 1, 3);

struct Options {
  float rate;
  std::int64_t step;
};

TEST_P(Call, PassesValuesAndOnePerWorker) {
  const auto f = session().function(
      [](sr::CpuWorker& worker, Options options, sr::PerWorker<int> own, const double& factor) -> sr::Sum<double> {
        EXPECT_EQ(worker.world_size() > worker.rank(), true);
        return (static_cast<double>(options.rate) + static_cast<double>(options.step)) * own * factor;
      });
  std::vector<int> own(static_cast<std::size_t>(world_size()));
  std::iota(own.begin(), own.end(), 1);
  const int sum_of_own = world_size() * (world_size() + 1) / 2;
  const double expected = (0.5 + 3) * sum_of_own * 2.0;
  EXPECT_EQ(f({0.5F, 3}, own, 2.0), expected);
}

struct alignas(64) Wide {
  std::array<float, 16> values;
};

// Small values lie one after the other in a command, at multiples of 16 bytes.
TEST_P(Call, AlignsADeviceScalarAsItsType) {
  const auto f = session().function([](sr::DeviceScalar<float> a, sr::DeviceScalar<Wide> b, sr::DeviceScalar<float> c,
                                       sr::DeviceScalar<Wide> d) -> sr::Min<int> {
    // On a CPU device, the memory of the device is that of the process.
    const float *const place_a = a.data(), *const place_c = c.data();
    const Wide *const place_b = b.data(), *const place_d = d.data();
    const auto is_aligned = [](const Wide* wide) {
      return reinterpret_cast<std::uintptr_t>(wide) % alignof(Wide) == 0;
    };
    const bool is_right = *place_a == 1 && place_b->values[15] == 2 && *place_c == 3 && place_d->values[15] == 4;
    const bool is_same = a.value() == 1 && b.value().values[15] == 2 && c.value() == 3 && d.value().values[15] == 4;
    return is_right && is_same && is_aligned(place_b) && is_aligned(place_d) ? 1 : 0;
  });
  Wide b{};
  Wide d{};
  b.values[15] = 2;
  d.values[15] = 4;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(f(1.0F, b, 3.0F, d), 1);
}

struct Large {
  std::array<std::int64_t, 1000> values;
};

TEST_P(Call, PassesValuesTooLargeForTheCommandItself) {
  const auto f = session().function([](Large large, sr::PerWorker<Large> own) -> sr::Sum<std::int64_t> {
    return large.values[999] + own.value().values[999];
  });
  Large large{};
  large.values[999] = 5;
  std::vector<Large> own(static_cast<std::size_t>(world_size()));
  for (auto& one : own) one.values[999] = 7;
  for (int i = 0; i < 100; ++i) EXPECT_EQ(f(large, own), 12 * world_size());
}

/// The bytes in use on the heap of each process. With a sanitizer, there is another heap, and this is 0.
sr::Gather<std::int64_t, 1> heap_bytes() { return {std::vector{static_cast<std::int64_t>(mallinfo2().uordblks)}, {1}}; }

TEST_P(Call, LeavesNothingOfFunctionsThatAreDropped) {
  const auto measure = session().function(heap_bytes);
  const auto make_functions = [&](int count) {
    for (int i = 0; i < count; ++i) {
      EXPECT_EQ(session().function([](int value) -> sr::Sum<int> { return value; })(i), i * world_size());
    }
    auto bytes = measure().to_vector();
    bytes.push_back(static_cast<std::int64_t>(mallinfo2().uordblks));
    return bytes;
  };
  const auto before = make_functions(200);
  const auto after = make_functions(2000);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_LT(after[i] - before[i], 8 * 2000) << "process " << i;
}

// ---- texts ------------------------------------------------------------------------------------------------------

class Text : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Text, 1, 3);

/// The bytes of a text as a body sees them.
sr::Gather<std::uint8_t, 1> bytes_of(sr::CpuWorker&, std::string_view text) {
  return {std::vector<std::uint8_t>(text.begin(), text.end()), sr::Shape{text.size()}};
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

std::string to_string(const sr::Gather<std::uint8_t, 1>& bytes) { return {bytes.begin(), bytes.end()}; }

TEST_P(Text, ArrivesOnEveryRank) {
  const auto f = session().function(bytes_of);
  const std::string with_zero("a\0b", 3);
  const std::string_view part = std::string_view("/data/images.npy").substr(6, 6);
  const char* const pointer = "a pointer";
  EXPECT_EQ(to_string(f(with_zero)), repeated(with_zero, world_size()));
  EXPECT_EQ(to_string(f(part)), repeated("images", world_size()));
  EXPECT_EQ(to_string(f("a literal")), repeated("a literal", world_size()));
  EXPECT_EQ(to_string(f(pointer)), repeated("a pointer", world_size()));
  EXPECT_EQ(f("").size() + f(std::string()).size() + f(std::string_view()).size(), 0);
}

TEST_P(Text, IsCopiedWhenTheCallStarts) {
  const auto f = session().function(bytes_of).on_rank(0);
  for (const std::size_t length : {5, 5000, 1 << 20}) {
    std::string text(length, 'x');
    auto future = f.async(text);
    text.assign(length, 'y');
    EXPECT_EQ(to_string(future.get()), std::string(length, 'x'));
  }
}

TEST_P(Text, StandsBesideOtherArguments) {
  const auto x = session().data(std::vector<double>(12, 1.0));
  const auto f = session().function([](const std::string_view& first, sr::Scattered<const double, 1> rows, char middle,
                                       std::string_view second) -> sr::Sum<std::int64_t> {
    return first == "first" && middle == 'm' && second.size() == 2000 ? rows.rows() : 0;
  });
  EXPECT_EQ(f("first", x, 'm', std::string(2000, 's'), {.slices = 2}), 12);
}

/// Counts how often it was asked for its own name.
class Named {
 public:
  explicit Named(std::string_view name) : name_(name) {}
  sr::Sum<int> is_called(std::string_view name) const { return name == name_ ? 1 : 0; }

 private:
  std::string name_;
};

TEST_P(Text, ReachesMethodsOfReplicatedObjects) {
  const auto named = session().replicate<Named>("Ada");
  const auto f = session().function(&Named::is_called, named);
  EXPECT_EQ(f("Ada"), world_size());
  EXPECT_EQ(f("Bob"), 0);
}

TEST_P(Text, IsRefusedIfThereIsNone) {
  const auto f = session().function(bytes_of, "bytes_of");
  const char* const none = nullptr;
  EXPECT_ERROR(f(none), sr::ErrorKind::usage,
               "argument 0 (std::string_view) of 'bytes_of' requires a text, got a null pointer: pass \"\"");
  EXPECT_EQ(to_string(f("fine")), repeated("fine", world_size()));
}

}  // namespace

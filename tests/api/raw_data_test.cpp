// Data that are mapped files without a header. What they share with other mapped files is tested in
// mapped_data_test.cpp.

#include <algorithm>
#include <filesystem>
#include <limits>

#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

constexpr std::int64_t kTokens = 5000;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

sr::Gather<std::uint16_t, 1> copy_tokens(sr::Scattered<const std::uint16_t, 1> x) { return {x, {x.rows()}}; }
/// Each row of `starts` is the place of two elements in `tokens`.
sr::Sum<std::int64_t> sum_of_pairs(sr::Broadcast<const std::uint16_t, 1> tokens,
                                   sr::Scattered<const std::int64_t, 1> starts) {
  std::int64_t sum = 0;
  for (const std::int64_t start : starts) sum += tokens[start] + tokens[start + 1];
  return sum;
}

class RawData : public OnWorkers {
 protected:
  RawData() { write_text(file(), bytes_of(counting<std::uint16_t>(kTokens))); }
  std::filesystem::path file() const { return folder_ / "tokens.bin"; }
  template <std::size_t N>
  auto map(const sr::Shape<N>& shape, std::int64_t offset_bytes = 0) {
    return session().map_raw<std::uint16_t, N>(file(), shape, offset_bytes, "tokens");
  }
  template <std::size_t N>
  void refused(const sr::Shape<N>& shape, std::int64_t offset_bytes, const std::string& why) {
    EXPECT_ERROR(map(shape, offset_bytes), sr::ErrorKind::usage, why);
  }

  TemporaryFolder folder_;
};
INSTANTIATE_ON_WORKERS(RawData, 1, 3);

TEST_P(RawData, IsTheFileAsFarAsItsShapeSays) {
  const auto all = map(sr::Shape{kTokens});
  EXPECT_EQ(all.name(), "tokens");
  EXPECT_EQ(all.capacity_bytes(), 0U) << "no shared memory";
  EXPECT_TRUE(std::ranges::equal(all.span(), counting<std::uint16_t>(kTokens)));
  const auto some = map(sr::Shape{3, 7}, 20);  // bytes before and after it are skipped
  EXPECT_EQ(some.shape(), (sr::Shape{3, 7}));
  EXPECT_TRUE(std::ranges::equal(some.span(), counting<std::uint16_t>(21, 10)));
}

TEST_P(RawData, HasAllRowsOfTheFileIfItsFirstExtentIsMinusOne) {
  EXPECT_EQ(map(sr::Shape{-1}).shape(), sr::Shape{kTokens});
  const auto rows = map(sr::Shape{-1, 2, 5}, 2000);
  EXPECT_EQ(rows.shape(), (sr::Shape{400, 2, 5}));
  EXPECT_EQ(rows.at(399, 1, 4), kTokens - 1);
  EXPECT_EQ(map(sr::Shape{-1}, 2 * kTokens).rows(), 0);
}

TEST_P(RawData, ReachesWorkersWholeByRangeAndByIndex) {
  const auto tokens = map(sr::Shape{-1}, 200);
  const auto copy = session().function(copy_tokens);
  EXPECT_EQ(copy(tokens, {.slices = 3}).to_vector(), counting<std::uint16_t>(kTokens - 100, 100));
  EXPECT_EQ(copy(tokens, {.batch = sr::Slice{10, 13}}).to_vector(), (std::vector<std::uint16_t>{110, 111, 112}));
  const std::vector<std::int64_t> some{4899, 0, 7};
  EXPECT_EQ(copy(tokens, {.batch = some}).to_vector(), (std::vector<std::uint16_t>{4999, 100, 107}));
  const auto starts = session().data(std::vector<std::int64_t>{0, 4898, 9});
  EXPECT_EQ(session().function(sum_of_pairs)(tokens, starts), 201 + 9997 + 219);
}

TEST_P(RawData, ThatIsTruncatedIsRefusedByNameIfElementsAreMissing) {
  const auto tokens = map(sr::Shape{100}, 20);
  const auto copy = session().function(copy_tokens);
  std::filesystem::resize_file(file(), 220);
  EXPECT_ERROR(copy(tokens), sr::ErrorKind::system, file().string() + " was overwritten while it was mapped");
  std::filesystem::resize_file(file(), 218);
  EXPECT_ERROR(copy(tokens), sr::ErrorKind::system,
               file().string() + ": expected the 220 bytes that are mapped, found 218: it was truncated");
  EXPECT_EQ(copy(session().data<std::uint16_t, 1>({3})).rows(), 3) << "the session goes on";
}

TEST_P(RawData, IsRefusedIfTheFileDoesNotHaveWhatIsAskedFor) {
  refused(
      sr::Shape{kTokens + 1}, 0,
      file().string() +
          ": expected 10002 bytes of elements (shape [5001] of uint16) from byte 0 on, found a file of 10000 bytes");
  refused(sr::Shape{1}, 10'000, "expected 2 bytes of elements (shape [1] of uint16) from byte 10000 on, found");
  refused(sr::Shape{0}, 10'002, "from byte 10002 on, found a file of 10000 bytes");
  refused(sr::Shape{-1}, 10'002, "from byte 10002 on, found a file of 10000 bytes");
  refused(sr::Shape{-1, 3}, 0,
          "expected whole rows of 6 bytes (shape [-1, 3] of uint16) from byte 0 to the end, found 10000 bytes");
  refused(sr::Shape{-1, 0}, 0, "expected rows with elements where the first extent is -1, found shape [-1, 0]");
  refused(sr::Shape{-2}, 0, "extents of a shape are at least 0, got [-2]");
  refused(sr::Shape{-1, -1}, 0, "extents of a shape are at least 0, got [1, -1]");
  refused(sr::Shape{std::numeric_limits<std::int64_t>::max()}, 0, "overflows");
  for (const std::int64_t offset : {-2, 3}) {
    refused(sr::Shape{-1}, offset,
            "expected an offset that is at least 0 and a multiple of the 2 bytes of uint16, got " +
                std::to_string(offset) + " bytes");
  }
  EXPECT_ERROR((session().map_raw<std::uint8_t, 1>(folder_ / "absent.bin", {-1})), sr::ErrorKind::system,
               "cannot read " + folder_.at("absent.bin") + ": No such file");
  EXPECT_ERROR((session().map_raw<std::uint8_t, 1>(folder_.path(), {-1})), sr::ErrorKind::usage, "expected a file");
}

TEST_P(RawData, IsScatteredAndSavedAsOtherData) {
  const auto tokens = map(sr::Shape{50}, 40);
  auto copies = session().shared<std::uint16_t, 1>("copies");
  copies.scatter(tokens);
  EXPECT_EQ(copies.gather().to_vector(), counting<std::uint16_t>(50, 20));
  sr::save(folder_ / "tokens.npy", tokens);
  EXPECT_EQ((sr::read_npy<std::uint16_t, 1>(folder_ / "tokens.npy").to_vector()), counting<std::uint16_t>(50, 20));
}

}  // namespace

// Data that are mapped files, with a header or without one. Every worker reads them, and no worker writes them.

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>

#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kRows = 1000;
constexpr std::int64_t kColumns = 37;

sr::Gather<std::int32_t, 2> copy_rows(sr::Scattered<const std::int32_t, 2> x) { return {x, {x.rows(), x.shape(1)}}; }
sr::Sum<std::int64_t> sum_of(sr::Broadcast<const std::int32_t, 2> x) {
  return std::accumulate(x.begin(), x.end(), std::int64_t{0});
}

class MappedData : public OnWorkers {
 protected:
  void SetUp() override {
    OnWorkers::SetUp();
    sr::save(file(), session().data(counting<std::int32_t>(kRows * kColumns), sr::Shape{kRows, kColumns}));
  }
  fs::path file() const { return folder_ / "x.npy"; }
  auto map() { return session().map_npy<std::int32_t, 2>(file(), "x"); }

  TemporaryFolder folder_;
};
INSTANTIATE_ON_WORKERS(MappedData, 1, 3);

TEST_P(MappedData, IsTheFile) {
  const auto x = map();
  EXPECT_EQ(x.shape(), (sr::Shape{kRows, kColumns}));
  EXPECT_EQ(x.name(), "x");
  EXPECT_EQ(x.capacity_bytes(), 0U) << "no shared memory";
  EXPECT_TRUE(std::ranges::equal(x.span(), counting<std::int32_t>(kRows * kColumns)));
  EXPECT_EQ(x.at(999, 36), kRows * kColumns - 1);
  sr::save(file(), session().data<std::int32_t, 2>({0, 4}));
  const auto empty = map();
  EXPECT_EQ(empty.rows(), 0);
  EXPECT_EQ(session().function(sum_of)(empty), 0);
}

TEST_P(MappedData, ReachesWorkersWholeByRangeInSlicesAndByIndex) {
  const auto x = map();
  const auto copy = session().function(copy_rows);
  const auto expect_rows = [](const auto& got, const std::vector<std::int64_t>& rows) {
    ASSERT_EQ(got.rows(), std::ssize(rows));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      ASSERT_EQ(got(row, 0), rows[i] * kColumns) << "row " << i;
      ASSERT_EQ(got(row, kColumns - 1), rows[i] * kColumns + kColumns - 1) << "row " << i;
    }
  };
  expect_rows(copy(x), counting<std::int64_t>(kRows));
  expect_rows(copy(x, {.batch = sr::Slice{100, 110}}), counting<std::int64_t>(10, 100));
  const std::vector<std::int64_t> shuffled{999, 0, 5, 5, 6, 7, 500, 3, 2};
  expect_rows(copy(x, {.batch = shuffled}), shuffled);
  expect_rows(copy(x, {.batch = shuffled, .slices = 3}), shuffled);
  const std::int64_t last = kRows * kColumns - 1;
  EXPECT_EQ(session().function(sum_of)(x), world_size() * last * (last + 1) / 2);
}

TEST_P(MappedData, GoesWithDataInMemory) {
  const auto x = map();
  const auto y = session().data(counting<std::int64_t>(kRows));
  const auto f = session().function([](sr::Scattered<const std::int32_t, 2> files,
                                       sr::Scattered<const std::int64_t, 1> rows) -> sr::Sum<std::int64_t> {
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < files.rows(); ++i) wrong += files(i, 0) != rows[i] * kColumns ? 1 : 0;
    return wrong;
  });
  EXPECT_EQ(f(x, y, {.batch = std::vector<std::int64_t>{7, 3, 998, 1}}), 0);
  auto copies = session().shared<std::int32_t, 2>("copies");
  copies.scatter(x);
  EXPECT_TRUE(std::ranges::equal(copies.gather().to_vector(), x.span()));
  sr::save(folder_ / "copy.npy", x);
  EXPECT_EQ(text_of(folder_ / "copy.npy"), text_of(file()));
}

TEST_P(MappedData, CanOnlyBeRead) {
  auto x = map();
  const std::string refusal = "Data 'x' is mapped from " + file().string() + " and can only be read";
  EXPECT_ERROR(static_cast<void>(x.write()), sr::ErrorKind::usage, refusal);
  EXPECT_ERROR(x.set(std::vector<std::int32_t>{1}, {1, 1}), sr::ErrorKind::usage, refusal);
  EXPECT_ERROR(x.set_rows(0, std::vector<std::int32_t>(kColumns)), sr::ErrorKind::usage, refusal);
  EXPECT_ERROR(x.fill(1), sr::ErrorKind::usage, refusal);
  EXPECT_ERROR(x.resize_rows(1), sr::ErrorKind::usage, refusal);
  EXPECT_ERROR(sr::load(file(), x), sr::ErrorKind::usage, refusal);
  EXPECT_EQ(x.at(1, 0), kColumns);
}

TEST_P(MappedData, IsUnmappedWhenItGoes) {
  const auto is_mapped = [&](int pid) {
    return text_of("/proc/" + std::to_string(pid) + "/maps").find(file().string()) != std::string::npos;
  };
  const auto copy = session().function(copy_rows);
  {
    const auto x = map();
    copy(x);
    for (const int pid : session().worker_pids()) EXPECT_TRUE(is_mapped(pid));
  }
  auto y = map();
  session().wait();
  for (const int pid : session().worker_pids()) EXPECT_FALSE(is_mapped(pid));
  copy(y);
  y.free();
  EXPECT_EQ(y.rows(), 0);
  EXPECT_EQ(session().function(sum_of)(y), 0);
  session().wait();
  for (const int pid : session().worker_pids()) EXPECT_FALSE(is_mapped(pid));
}

TEST_P(MappedData, StaysTheSameFileWhateverBecomesOfItsName) {
  const auto x = map();
  // save() renames a new file to the name of the mapped one.
  sr::save(file(), session().data(counting<std::int32_t>(4, 7), sr::Shape{2, 2}));
  EXPECT_EQ(session().function(copy_rows)(x)(999, 1), 999 * kColumns + 1);
  const auto other = map();
  fs::remove(file());
  EXPECT_EQ(session().function(copy_rows)(other)(1, 1), 10);
}

TEST_P(MappedData, ThatIsTruncatedBeforeACallIsRefusedByName) {
  const auto x = map();
  const auto copy = session().function(copy_rows);
  copy(x);
  fs::resize_file(file(), 5000);
  EXPECT_ERROR(copy(x), sr::ErrorKind::system,
               file().string() + ": expected the 148128 bytes that are mapped, found 5000: it was truncated");
  EXPECT_EQ(copy(session().data<std::int32_t, 2>({3, 2})).rows(), 3) << "the session goes on";
}

/// Truncates the file to `bytes` bytes, and then sums up rows that are in part no longer in it.
sr::Sum<std::int64_t> truncate_and_sum(sr::Scattered<const std::int32_t, 2> x, std::string_view path,
                                       std::int64_t bytes) {
  fs::resize_file(path, static_cast<std::uintmax_t>(bytes));
  return std::accumulate(x.begin(), x.end(), std::int64_t{0});
}

TEST_P(MappedData, ThatIsTruncatedUnderABodyFailsTheCallByNameAndTheSessionGoesOn) {
  const std::string path = file().string();
  const auto f = session().function(truncate_and_sum);
  const auto copy = session().function(copy_rows);
  const std::string bytes = text_of(file());
  // If the file ends in the same page as before, the kernel shows zeros for the rest of it. If whole pages are missing,
  // a read raises a signal.
  for (const std::int64_t left : {148'000, 5000, 0}) {
    write_text(file(), bytes);
    const auto x = map();
    EXPECT_ERROR(f(x, path, left), sr::ErrorKind::system,
                 file().string() + ": expected the 148128 bytes that are mapped, found " + std::to_string(left) +
                     ": it was truncated");
    EXPECT_EQ(copy(session().data<std::int32_t, 2>({3, 2})).rows(), 3);
  }
  write_text(file(), bytes);
  const auto refuse_zeros = session().function([](sr::Scattered<const std::int32_t, 2> x, std::string_view of) {
    fs::resize_file(of, 300);
    if (x.rows() > 0 && x(x.rows() - 1, 36) == 0) throw std::runtime_error("a row of zeros");
  });
  EXPECT_ERROR(refuse_zeros(map(), path), sr::ErrorKind::system, "found 300: it was truncated");
  write_text(file(), bytes);
  EXPECT_EQ(copy(map())(999, 1), 999 * kColumns + 1) << "mapped anew it is whole";
}

/// Truncates the file unless `bytes` is negative. Then computes a gradient from its rows.
sr::Avg<double> gradient_of_truncated(sr::CpuWorker&, sr::Scattered<const std::int32_t, 2> x, std::string_view path,
                                      std::int64_t bytes, sr::Local<float, 1> params, sr::Local<float, 1> gradient) {
  if (bytes >= 0) fs::resize_file(path, static_cast<std::uintmax_t>(bytes));
  const auto sum = static_cast<float>(std::accumulate(x.begin(), x.end(), std::int64_t{0}) % 7);
  std::ranges::fill(gradient.span(), 1 + sum);
  return params[0];
}

TEST_P(MappedData, ThatIsTruncatedUnderATrainStepLeavesParametersAsTheyWere) {
  const std::string path = file().string();
  auto weights = session().shared<float, 1>("weights");
  weights.broadcast(std::vector<float>(5, 1.0F));
  auto step = sr::train_step<sr::Sgd>(session(), gradient_of_truncated, weights);
  for (const std::int64_t left : {148'000, 5000}) {
    const auto x = map();
    EXPECT_ERROR(step(x, path, left, {.learning_rate = 0.5}), sr::ErrorKind::system, "it was truncated");
    for (int rank = 0; rank < world_size(); ++rank)
      EXPECT_EQ(weights.get(rank).to_vector(), std::vector<float>(5, 1.0F));
    sr::save(file(), session().data(counting<std::int32_t>(kRows * kColumns), sr::Shape{kRows, kColumns}));
  }
  step(map(), path, -1, {.learning_rate = 0.5});
  EXPECT_NE(weights.get(0)[0], 1.0F) << "a whole file is learnt from";
}

TEST_P(MappedData, ThatIsTruncatedIsNeitherScatteredNorSaved) {
  auto variable = session().shared<std::int32_t, 2>("variable");
  const auto x = map();
  variable.scatter(x);
  const std::vector<std::int64_t> some{999, 3, 500};
  variable.scatter(x, {.batch = some});
  EXPECT_EQ(variable.gather()(0, 1), 999 * kColumns + 1);
  variable.scatter(x, {.batch = sr::Slice{10, 20}});
  EXPECT_EQ(variable.gather()(0, 0), 10 * kColumns);
  fs::resize_file(file(), 5000);
  EXPECT_ERROR(variable.scatter(x), sr::ErrorKind::system, "it was truncated");
  EXPECT_ERROR(sr::save(folder_ / "copy.npy", x), sr::ErrorKind::system, "it was truncated");
  EXPECT_EQ(variable.gather()(0, 0), 10 * kColumns) << "the session goes on";
}

/// Writes to the file, as `cp` does to a file that is there, and then sums up rows.
sr::Sum<std::int64_t> overwrite_and_sum(sr::Scattered<const std::int32_t, 2> x, std::string_view path,
                                        bool overwrites) {
  if (overwrites) {
    std::fstream file(std::string(path), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-4, std::ios::end);
    file.write("\0\0\0\0", 4);
  }
  return std::accumulate(x.begin(), x.end(), std::int64_t{0});
}

TEST_P(MappedData, ThatIsOverwrittenFailsTheCallThatReadsItAndTheSessionGoesOn) {
  const std::string path = file().string();
  const auto f = session().function(overwrite_and_sum);
  auto variable = session().shared<std::int32_t, 2>("variable");
  const std::string bytes = text_of(file());
  const auto map_older = [&] {  // two writes within a tick of the kernel's clock would have the same time
    write_text(file(), bytes);
    fs::last_write_time(file(), fs::file_time_type::clock::now() - std::chrono::hours(1));
    return map();
  };
  for (const bool is_before : {true, false}) {
    const auto x = map_older();
    f(x, path, false);
    if (is_before) write_text(file(), bytes);  // the same bytes again: nobody knows that without reading all of them
    EXPECT_ERROR(f(x, path, !is_before), sr::ErrorKind::system,
                 file().string() + " was overwritten while it was mapped: expected 148128 bytes, last written ");
    EXPECT_ERROR(f(x, path, false), sr::ErrorKind::system, "renaming a new one");
    EXPECT_ERROR(variable.scatter(x), sr::ErrorKind::system, "was overwritten");
    EXPECT_ERROR(static_cast<void>(session().value(x)), sr::ErrorKind::system, "was overwritten");
    EXPECT_ERROR(sr::save(folder_ / "copy.npy", x), sr::ErrorKind::system, "was overwritten");
  }
  EXPECT_GT(f(map(), path, false), 0) << "mapped anew, the file is read";
}

TEST_P(MappedData, OtherBusErrorsStillEndAWorkerByName) {
  const auto f = session().function([](std::int32_t) { std::raise(SIGBUS); });
  const auto x = map();
  session().function(copy_rows)(x);  // the workers install their signal handler
  try {
    f(1);
    FAIL() << "nothing was thrown";
  } catch (const sr::Error& error) {
    EXPECT_EQ(error.kind(), sr::ErrorKind::worker_lost);
#if !defined(SYNCRUN_ADDRESS_SANITIZER)  // with it, the sanitizer's own handler gets the signal
    EXPECT_NE(std::string(error.what()).find("SIGBUS"), std::string::npos) << error.what();
#if !defined(SYNCRUN_THREAD_SANITIZER)
    EXPECT_FALSE(error.failure().stack.empty() && error.failure().no_stack.empty()) << "the handler before got it";
#endif
#endif
  }
  end_session();
}

TEST_P(MappedData, IsRefusedWhereTheFileIsNotWhatIsAskedFor) {
  EXPECT_ERROR((session().map_npy<float, 2>(file())), sr::ErrorKind::usage,
               file().string() + " is of int32, 2 dimensions, not float32, 2 dimensions");
  EXPECT_ERROR((session().map_npy<std::int32_t, 1>(file())), sr::ErrorKind::usage,
               "is of int32, 2 dimensions, not int32, 1 dimension");
  EXPECT_ERROR((session().map_npy<float, 1>(folder_ / "y.npy")), sr::ErrorKind::system,
               "cannot read " + (folder_ / "y.npy").string() + ": No such file");
  const std::string bytes = text_of(file());
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& why) {
    std::string other = bytes;
    other.replace(other.find(from), from.size(), to);
    write_text(file(), other);
    EXPECT_ERROR(static_cast<void>(map()), sr::ErrorKind::usage, file().string() + ": " + why);
  };
  refused("<i4", ">i4", "expected little-endian floats");
  refused("False", "True ", "expected C order, found fortran_order: True");
  refused("(1000, 37)", "(1000, 38)", "expected 152000 bytes of elements");
  // A header written by hand. Its length is such that the elements are not aligned.
  const std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2)}  ";
  write_text(file(), std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size()) + '\0' + header +
                         std::string(8, '\0'));
  EXPECT_ERROR(static_cast<void>(map()), sr::ErrorKind::usage, "expected elements at a multiple of their 4 bytes");
}

TEST_P(MappedData, IsThereForAWorkerThatTakesALostOnesPlace) {
  end_session();
  sr::SessionOptions options = this->options();
  options.on_worker_lost = sr::OnWorkerLost::respawn;
  sr::Session session(options);
  const auto x = session.map_npy<std::int32_t, 2>(file());
  const auto copy = session.function(copy_rows);
  copy(x);
  fs::remove(file());
  ::kill(session.worker_pids().back(), SIGKILL);
  EXPECT_ERROR(for (int i = 0; i < 1000; ++i) copy(x), sr::ErrorKind::worker_lost, "SIGKILL");
  EXPECT_EQ(copy(x)(999, 1), 999 * kColumns + 1);
  session.close();
}

// ---- files without a header --------------------------------------------------------------------------------------

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

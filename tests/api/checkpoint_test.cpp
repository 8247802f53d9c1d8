// Arrays in files: one array as .npy, or several as a checkpoint. Any number of workers can load what any other number
// saved.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "tests/api/element_types.hpp"
#include "tests/support/full_disk.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;

class ArrayFile : public OnWorkers {
 protected:
  TemporaryFolder folder_;
};
INSTANTIATE_ON_WORKERS(ArrayFile, 1, 3);

TEST_P(ArrayFile, GivesADataBackAsItWas) {
  const auto x = session().data(counting<float>(12), sr::Shape{4, 3});
  sr::save(folder_ / "x.npy", x);
  const auto y = session().load<float, 2>(folder_ / "x.npy", "y");
  EXPECT_EQ(y.shape(), (sr::Shape{4, 3}));
  EXPECT_EQ(y.name(), "y");
  EXPECT_TRUE(std::ranges::equal(y.span(), x.span()));
  const auto sum = session().function([](sr::Scattered<const float, 2> rows) -> sr::Sum<double> {
    double total = 0;
    for (const float value : rows) total += value;
    return total;
  });
  EXPECT_EQ(sum(y), 66) << "workers see it as any other Data";
}

template <class T>
void expect_back(sr::Session& session, const fs::path& file, const std::vector<T>& values) {
  // A copy in an array, because a std::vector<bool> does not contain an array of bool.
  std::unique_ptr<T[]> array(new T[values.size()]);
  std::copy(values.begin(), values.end(), array.get());
  const auto data = session.data(std::span<const T>(array.get(), values.size()));
  sr::save(file, data);
  const auto back = session.load<T, 1>(file);
  ASSERT_EQ(back.size(), data.size());
  EXPECT_EQ(std::memcmp(back.span().data(), data.span().data(), values.size() * sizeof(T)), 0);
}

TEST_P(ArrayFile, KeepsEveryBitOfEveryElementType) {
  const auto file = folder_ / "x.npy";
  for_arithmetic_types([&]<class T> {
    std::vector<T> values(100);
    auto* const bytes = reinterpret_cast<std::uint8_t*>(values.data());
    for (std::size_t i = 0; i < values.size() * sizeof(T); ++i) bytes[i] = static_cast<std::uint8_t>(37 * i + 113);
    expect_back<T>(session(), file, values);
  });
  expect_back<bool>(session(), file, {true, false});
  expect_back<float>(session(), file, {});
}

TEST_P(ArrayFile, TakesAReplicatedVariableFromRankZeroToAll) {
  auto w = session().shared("w", counting<double>(6), sr::Shape{2, 3});
  sr::save(folder_ / "w.npy", w);
  w.broadcast(std::vector<double>(6), {2, 3});
  sr::load(folder_ / "w.npy", w);
  for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(w.get(rank).to_vector(), counting<double>(6));
}

TEST_P(ArrayFile, TakesAScatteredVariableTogetherAndApart) {
  auto w = session().shared<float, 1>("w");
  w.scatter(counting<float>(10));
  const auto lengths = w.lengths();
  sr::save(folder_ / "w.npy", w, sr::Placement::scattered);
  EXPECT_EQ((session().load<float, 1>(folder_ / "w.npy").rows()), 10);
  auto v = session().shared<float, 1>("v");
  sr::load(folder_ / "w.npy", v, sr::Placement::scattered);
  EXPECT_EQ(v.lengths(), lengths);
  EXPECT_EQ(v.gather().to_vector(), counting<float>(10));
}

TEST_P(ArrayFile, IsReplacedAndLeavesNothingBesideIt) {
  auto x = session().data(counting<float>(1000));
  sr::save(folder_ / "x.npy", x);
  x.set(counting<float>(3));
  sr::save(folder_ / "x.npy", x);
  EXPECT_EQ((session().load<float, 1>(folder_ / "x.npy").rows()), 3);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1);
}

TEST_P(ArrayFile, StaysAsItWasWhenTheNewOneCannotBeWritten) {
  sr::save(folder_ / "x.npy", session().data(counting<float>(10)));
  const auto larger = session().data(counting<float>(1000));
  {
    const syncrun::test::FullDisk full(2000);
    EXPECT_ERROR(sr::save(folder_ / "x.npy", larger), sr::ErrorKind::system, "x.npy.tmp: File too large");
  }
  EXPECT_EQ((session().load<float, 1>(folder_ / "x.npy").rows()), 10);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1);
}

TEST_P(ArrayFile, ThatDoesNotFitIsRefusedAndChangesNothing) {
  sr::save(folder_ / "x.npy", session().data(counting<float>(12), sr::Shape{4, 3}));
  const auto load = [&](auto& into) { sr::load(folder_ / "x.npy", into); };
  auto x = session().data(counting<float>(6), sr::Shape{2, 3});
  EXPECT_ERROR(load(x), sr::ErrorKind::usage, "x.npy has shape [4, 3], not [2, 3]");
  EXPECT_TRUE(std::ranges::equal(x.span(), counting<float>(6)));
  auto w = session().shared("w", counting<double>(12), sr::Shape{4, 3});
  EXPECT_ERROR(load(w), sr::ErrorKind::usage, "x.npy is of float32, 2 dimensions, not float64, 2 dimensions");
  EXPECT_ERROR((session().load<float, 1>(folder_ / "x.npy")), sr::ErrorKind::usage,
               "is of float32, 2 dimensions, not float32, 1 dimension");
  auto fitting = session().data(counting<float>(12), sr::Shape{4, 3});
  const auto guard = fitting.write();
  EXPECT_ERROR(load(fitting), sr::ErrorKind::usage, "is open for writing");
}

TEST_P(ArrayFile, ThatIsDamagedOrMissingIsRefusedByName) {
  const auto load = [&] { return session().load<float, 1>(folder_ / "x.npy"); };
  EXPECT_ERROR(load(), sr::ErrorKind::system, "cannot read " + (folder_ / "x.npy").string() + ": No such file");
  write_text(folder_ / "x.npy", "not an array");
  EXPECT_ERROR(load(), sr::ErrorKind::usage, "x.npy: expected a .npy file");
  sr::save(folder_ / "x.npy", session().data(counting<float>(100)));
  fs::resize_file(folder_ / "x.npy", 500);
  EXPECT_ERROR(load(), sr::ErrorKind::usage, "x.npy: expected 400 bytes of elements (shape [100] of float32)");
  fs::remove(folder_ / "x.npy");
  fs::create_directory(folder_ / "x.npy");
  EXPECT_ERROR(load(), sr::ErrorKind::usage, "x.npy: expected a file");
  EXPECT_ERROR(sr::save(folder_ / "no/x.npy", session().data(counting<float>(1))), sr::ErrorKind::system,
               "No such file");
}

TEST_P(ArrayFile, WithBoolsThatAreNoneIsRefused) {
  sr::save(folder_ / "x.npy", session().data(std::vector<std::uint8_t>{1, 0, 7}));
  std::string bytes = text_of(folder_ / "x.npy");
  bytes.replace(bytes.find("|u1"), 3, "|b1");
  write_text(folder_ / "x.npy", bytes);
  EXPECT_ERROR((session().load<bool, 1>(folder_ / "x.npy")), sr::ErrorKind::usage, "expected bools of 0 or 1, found 7");
}

TEST_P(ArrayFile, WantsEqualShapesOfAReplicatedVariable) {
  if (world_size() == 1) GTEST_SKIP() << "one copy";
  auto w = session().shared<float, 1>("w");
  w.scatter(counting<float>(10));
  EXPECT_ERROR(sr::save(folder_ / "w.npy", w), sr::ErrorKind::usage, "of 'w' requires equal shapes on all ranks");
  EXPECT_TRUE(fs::is_empty(folder_.path())) << "nothing is left of it";
}

TEST_P(ArrayFile, IsReadWithoutASessionToo) {
  sr::save(folder_ / "x.npy", session().data(counting<std::int16_t>(6), sr::Shape{2, 3}));
  sr::save(folder_ / "empty.npy", session().data<float, 2>({0, 4}));
  end_session();
  const sr::NpyInfo info = sr::npy_info(folder_ / "x.npy");
  EXPECT_EQ(info.dtype, sr::DType::int16);
  EXPECT_EQ(info.shape, (std::vector<std::int64_t>{2, 3}));
  const auto x = sr::read_npy<std::int16_t, 2>(folder_ / "x.npy");
  EXPECT_EQ(x.shape(), (sr::Shape{2, 3}));
  EXPECT_EQ(x.to_vector(), counting<std::int16_t>(6));
  EXPECT_EQ((sr::read_npy<float, 2>(folder_ / "empty.npy").size()), 0);
  EXPECT_ERROR((sr::read_npy<std::int16_t, 1>(folder_ / "x.npy")), sr::ErrorKind::usage,
               "x.npy is of int16, 2 dimensions, not int16, 1 dimension");
  EXPECT_ERROR(sr::npy_info(folder_ / "y.npy"), sr::ErrorKind::system, "cannot read " + (folder_ / "y.npy").string());
  fs::resize_file(folder_ / "x.npy", fs::file_size(folder_ / "x.npy") - 1);
  EXPECT_ERROR(sr::npy_info(folder_ / "x.npy"), sr::ErrorKind::usage, "x.npy: expected 12 bytes of elements");
}

class SavedCheckpoint : public OnWorkers {
 protected:
  TemporaryFolder folder_;
};
INSTANTIATE_ON_WORKERS(SavedCheckpoint, 1, 3);

TEST_P(SavedCheckpoint, GivesBackArraysAndValues) {
  auto params = session().shared("params", counting<float>(6), sr::Shape{2, 3});
  auto rows = session().shared<std::int32_t, 1>("rows");
  rows.scatter(counting<std::int32_t>(11));
  auto x = session().data(counting<double>(4));
  const std::vector<std::int64_t> order{3, 1, 2};
  sr::save_checkpoint(folder_ / "run",
                      {{"params", params}, {"rows", rows, sr::Placement::scattered}, {"x", x}, {"order", order}},
                      {{"epoch", 3}, {"rate", 0.1}, {"seed", ~std::uint64_t{0}}, {"note", "two\nlines \\ of text"}});
  params.broadcast(std::vector<float>(6), {2, 3});
  rows.scatter(std::vector<std::int32_t>(11));
  x.fill(0);

  const sr::Checkpoint checkpoint(folder_ / "run");
  checkpoint.load({{"params", params}, {"rows", rows}, {"x", x}});
  for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(params.get(rank).to_vector(), counting<float>(6));
  EXPECT_EQ(rows.gather().to_vector(), counting<std::int32_t>(11));
  EXPECT_TRUE(std::ranges::equal(x.span(), counting<double>(4)));
  EXPECT_EQ((checkpoint.array<std::int64_t, 1>("order").to_vector()), order);
  EXPECT_EQ(checkpoint.value<int>("epoch"), 3);
  EXPECT_EQ(checkpoint.value<double>("rate"), 0.1) << "to the bit";
  EXPECT_EQ(checkpoint.value<std::uint64_t>("seed"), ~std::uint64_t{0});
  EXPECT_EQ(checkpoint.text("note"), "two\nlines \\ of text");
  EXPECT_FALSE(checkpoint.has_value("note2"));
}

TEST_P(SavedCheckpoint, FitsAnotherNumberOfWorkers) {
  const auto fill = [&](int workers) {
    sr::SessionOptions options = OnWorkers::options();
    options.processes = std::to_string(workers);
    sr::Session other(options);
    auto rows = other.shared<float, 2>("rows");
    rows.scatter(counting<float>(14), {7, 2});
    const auto params = other.shared("params", counting<float>(5));
    sr::save_checkpoint(folder_ / "run", {{"rows", rows, sr::Placement::scattered}, {"params", params}});
    other.close();
  };
  end_session();
  fill(3);
  sr::Session session(OnWorkers::options());
  auto rows = session.shared<float, 2>("rows");
  auto params = session.shared<float, 1>("params");
  sr::Checkpoint(folder_ / "run").load({{"rows", rows}, {"params", params}});
  EXPECT_EQ(rows.gather().to_vector(), counting<float>(14));
  for (const auto length : rows.lengths()) EXPECT_LE(length, (7 + world_size() - 1) / world_size());
  for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(params.get(rank).to_vector(), counting<float>(5));
  session.close();
}

TEST_P(SavedCheckpoint, ThatDoesNotFitSaysAllThatDiffersAndChangesNothing) {
  sr::save_checkpoint(folder_ / "run",
                      {{"a", counting<float>(3)}, {"b", counting<double>(4)}, {"c", counting<float>(5)}});
  auto a = session().shared("a", std::vector<float>{7, 7, 7});
  auto b = session().shared("b", counting<float>(4));
  auto c = session().data(counting<float>(6));
  const sr::Checkpoint checkpoint(folder_ / "run");
  EXPECT_ERROR(
      checkpoint.load({{"a", a}, {"b", b}, {"c", c}, {"d", a}}), sr::ErrorKind::usage,
      "does not fit: 'b' is of float64, 1 dimension, not float32, 1 dimension; 'c' has shape [5], not [6]; has no "
      "array 'd'; it has 'a' (float32 of shape [3]), 'b' (float64 of shape [4]), 'c' (float32 of shape [5])");
  EXPECT_EQ(a.get(0).to_vector(), (std::vector<float>{7, 7, 7}));
  EXPECT_ERROR((checkpoint.array<float, 1>("b")), sr::ErrorKind::usage, "'b' is of float64, 1 dimension, not float32");
  EXPECT_ERROR((checkpoint.array<float, 1>("d")), sr::ErrorKind::usage, "has no array 'd'");
  EXPECT_ERROR(static_cast<void>(checkpoint.text("epoch")), sr::ErrorKind::usage, "has no value 'epoch'; it has none");
}

TEST_P(SavedCheckpoint, TakesAnyShapeIntoWhatIsEmpty) {
  sr::save_checkpoint(folder_ / "run", {{"x", counting<float>(6), sr::Shape{2, 3}}});
  auto x = session().data<float, 2>({0, 3});
  auto w = session().shared<float, 2>("w");
  const sr::Checkpoint checkpoint(folder_ / "run");
  checkpoint.load({{"x", x}, {"x", w}});
  EXPECT_EQ(x.shape(), (sr::Shape{2, 3}));
  EXPECT_EQ(w.get(world_size() - 1).to_vector(), counting<float>(6));
}

TEST_P(SavedCheckpoint, IsReadAsItWasWhenItWasOpened) {
  sr::save_checkpoint(folder_ / "run", {{"x", counting<float>(3)}}, {{"epoch", 1}});
  const sr::Checkpoint first(folder_ / "run");
  sr::save_checkpoint(folder_ / "run", {{"x", counting<float>(5)}}, {{"epoch", 2}});
  auto x = session().shared<float, 1>("x");
  first.load({{"x", x}});
  EXPECT_EQ(x.lengths()[0], 3);
  EXPECT_EQ(first.value<int>("epoch"), 1);
  EXPECT_EQ(sr::Checkpoint(folder_ / "run").value<int>("epoch"), 2);
}

TEST_P(SavedCheckpoint, WaitsForCallsInFlight) {
  auto w = session().shared("w", std::vector<double>{1});
  const auto twice = session().function([](sr::Local<double, 1> own) { own[0] *= 2; });
  auto future = twice.async(w);
  sr::save_checkpoint(folder_ / "run", {{"w", w}});
  EXPECT_EQ((sr::Checkpoint(folder_ / "run").array<double, 1>("w")[0]), 2);
  future.get();
}

TEST_P(SavedCheckpoint, OfAClosedSessionIsRefused) {
  auto w = session().shared("w", std::vector<double>{1});
  sr::save_checkpoint(folder_ / "run", {{"w", w}});
  session().close();
  EXPECT_ERROR(sr::save_checkpoint(folder_ / "run", {{"w", w}}), sr::ErrorKind::usage, "session");
  EXPECT_ERROR(sr::Checkpoint(folder_ / "run").load({{"w", w}}), sr::ErrorKind::usage, "session");
  EXPECT_EQ((sr::Checkpoint(folder_ / "run").array<double, 1>("w")[0]), 1) << "the one before stays";
  end_session();
}

TEST_P(ArrayFile, ThatAnotherProcessIsWritingIsRefused) {
  const auto x = session().data(counting<float>(6));
  const auto temporary = folder_ / "x.npy.tmp";
  {
    const int other = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    ASSERT_EQ(::flock(other, LOCK_EX), 0);
    EXPECT_ERROR(sr::save(folder_ / "x.npy", x), sr::ErrorKind::usage, "x.npy.tmp: another process is writing it");
    EXPECT_TRUE(std::filesystem::exists(temporary)) << "it is the other's";
    ::close(other);
  }
  sr::save(folder_ / "x.npy", x);  // a file that a killed save has left does not prevent this one
  EXPECT_EQ((sr::read_npy<float, 1>(folder_ / "x.npy").to_vector()), counting<float>(6));
  EXPECT_FALSE(std::filesystem::exists(temporary));
}

TEST_P(ArrayFile, ReplacesAPipeOrALinkThatHasItsTemporaryName) {
  const auto x = session().data(counting<float>(6));
  const auto temporary = folder_ / "x.npy.tmp";
  const auto other = folder_ / "other";
  std::ofstream(other) << "not to be changed";
  for (const std::string kind : {"pipe", "pipe with a reader", "link", "second name"}) {
    int reader = -1;
    if (kind.starts_with("pipe")) {
      ASSERT_EQ(::mkfifo(temporary.c_str(), 0666), 0);
    }
    if (kind == "pipe with a reader") reader = ::open(temporary.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (kind == "link") fs::create_symlink(other, temporary);
    if (kind == "second name") fs::create_hard_link(other, temporary);
    sr::save(folder_ / "x.npy", x);
    EXPECT_EQ((sr::read_npy<float, 1>(folder_ / "x.npy").to_vector()), counting<float>(6)) << kind;
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder_ / "x.npy"))) << kind;
    EXPECT_FALSE(fs::exists(temporary)) << kind;
    EXPECT_EQ(fs::file_size(other), 17) << kind;
    if (reader >= 0) ::close(reader);
  }
}

}  // namespace

// Loaders: data sets of torch::data whose batches producers build. LibTorch's own data loader is the oracle.

#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace loaders {

namespace lt = models::lt;
namespace data = torch::data;
using data::Example;
using data::TensorExample;
using data::transforms::Stack;
using Size = decltype(std::declval<const data::datasets::MNIST&>().size());  // an optional of this version of LibTorch

constexpr std::int64_t kBatchRows = 7;
constexpr std::int64_t kRows = 30;  // five batches, the last one shorter
constexpr std::uint64_t kSeed = 11;

/// Example i is [i, i + 0.5] and the number i.
struct Numbers : data::Dataset<Numbers> {
  Example<> get(std::size_t index) override {
    const auto i = static_cast<double>(index);
    return {torch::tensor({i, i + 0.5}), torch::tensor(static_cast<std::int64_t>(index))};
  }
  Size size() const override { return static_cast<std::size_t>(kRows); }
};
struct Batch {
  sr::Data<float, 2> data;
  sr::Data<std::int64_t, 1> target;
};

/// The values of a batch, to compare.
using Values = std::vector<double>;
template <class T, std::size_t N>
Values values_of(const sr::Data<T, N>& array) {
  const auto view = array.view();
  return {view.begin(), view.end()};
}
Values values_of(const Batch& batch) {
  Values values = values_of(batch.data);
  const Values targets = values_of(batch.target);
  values.insert(values.end(), targets.begin(), targets.end());
  return values;
}
Values values_of(const torch::Tensor& tensor) {
  const auto plain = tensor.to(torch::kFloat64).contiguous();
  return {plain.data_ptr<double>(), plain.data_ptr<double>() + plain.numel()};
}
Values values_of(const Example<>& batch) {
  Values values = values_of(batch.data);
  const Values targets = values_of(batch.target);
  values.insert(values.end(), targets.begin(), targets.end());
  return values;
}

/// The batches of the next epochs.
template <class Loader>
std::vector<std::vector<Values>> epochs_of(Loader& loader, int epochs) {
  std::vector<std::vector<Values>> found(static_cast<std::size_t>(epochs));
  for (auto& epoch : found) {
    for (const auto& batch : loader) epoch.push_back(values_of(batch));
  }
  return found;
}
template <class Loader>
std::vector<std::vector<Values>> epochs_of(Loader&& loader, int epochs) {
  return epochs_of(static_cast<Loader&>(loader), epochs);
}
/// The same by LibTorch's own loader, in this process.
template <class Sampler, class Set>
std::vector<std::vector<Values>> epochs_of_libtorch(const Set& set, int epochs, bool drops_last = false) {
  const auto loader =
      data::make_data_loader<Sampler>(set, data::DataLoaderOptions().batch_size(kBatchRows).drop_last(drops_last));
  std::vector<std::vector<Values>> found(static_cast<std::size_t>(epochs));
  for (std::size_t epoch = 0; epoch < found.size(); ++epoch) {
    torch::manual_seed(kSeed + epoch);
    for (auto& batch : *loader) found[epoch].push_back(values_of(batch));
  }
  return found;
}

/// These tests look at the batches in the master.
class LoaderBatches : public OnSharedWorkers {
 protected:
  static lt::LoaderOptions options(int processes = 1) {
    return {.batch_rows = kBatchRows, .processes = processes, .seed = kSeed};
  }
};
INSTANTIATE_ON_WORKERS(LoaderBatches, 1);

// ---- order --------------------------------------------------------------------------------------------------------

auto make_stacked() { return Numbers().map(Stack<>()); }
auto make_single() { return Numbers(); }
auto make_shared_set() { return data::datasets::make_shared_dataset<Numbers>().map(Stack<>()); }

TEST_P(LoaderBatches, AreThoseOfLibTorchForAnyNumberOfProcesses) {
  const auto expected = epochs_of_libtorch<data::samplers::RandomSampler>(make_stacked(), 3);
  ASSERT_EQ(expected[0].size(), 5U);
  ASSERT_NE(expected[0], expected[1]);
  for (const int processes : {1, 2, 3}) {
    EXPECT_EQ(epochs_of(lt::loader<Batch, make_stacked>(session(), options(processes)), 3), expected) << processes;
  }
  // Without Stack, and shared, it is the same.
  EXPECT_EQ(epochs_of(lt::loader<Batch, make_single>(session(), options()), 3), expected);
  EXPECT_EQ(epochs_of(lt::loader<Batch, make_shared_set>(session(), options()), 3), expected);
}

TEST_P(LoaderBatches, CanBeInSequenceAndWithoutAShortOne) {
  using data::samplers::SequentialSampler;
  lt::LoaderOptions whole = options(2);
  whole.last = lt::LastBatch::drop;
  auto loader = lt::loader<Batch, make_stacked, SequentialSampler>(session(), whole);
  EXPECT_EQ(loader.rows(), kRows);
  EXPECT_EQ(epochs_of(loader, 2), epochs_of_libtorch<SequentialSampler>(make_stacked(), 2, true));
}

/// The sampler of programs for several processes, which takes its order from the epoch. It needs no ranks here.
TEST_P(LoaderBatches, TakeTheEpochOfADistributedSampler) {
  using data::samplers::DistributedRandomSampler;
  const auto found = epochs_of(lt::loader<Batch, make_stacked, DistributedRandomSampler>(session(), options()), 2);
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    DistributedRandomSampler sampler(kRows);
    sampler.set_epoch(epoch);
    sampler.reset();
    for (const auto& batch : found[epoch]) {
      const auto indices = sampler.next(kBatchRows);
      ASSERT_TRUE(indices);
      EXPECT_TRUE(std::equal(indices->begin(), indices->end(), batch.end() - static_cast<int>(indices->size())));
    }
  }
  EXPECT_NE(found[0], found[1]);
}

/// Draws its indices with replacement, and only when they are asked for.
class DrawingSampler : public data::samplers::Sampler<> {
 public:
  explicit DrawingSampler(std::size_t batches) : batches_(batches) {}
  void reset(Size) override { given_ = 0; }
  torch::optional<std::vector<std::size_t>> next(std::size_t rows) override {
    if (given_ == batches_) return torch::nullopt;
    ++given_;
    std::vector<std::size_t> indices(rows);
    for (auto& index : indices) index = static_cast<std::size_t>(torch::randint(kRows, {1}).item<std::int64_t>());
    return indices;
  }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  std::size_t batches_;
  std::size_t given_ = 0;
};

// ---- random numbers -----------------------------------------------------------------------------------------------

torch::Tensor with_noise(const torch::Tensor& tensor) { return tensor + torch::rand({2}); }
auto make_noisy() { return Numbers().map(data::transforms::TensorLambda<>(with_noise)); }
auto make_noisy_batches(std::int64_t batches) {
  using Examples = std::vector<Example<>>;
  auto set = make_noisy().map(data::transforms::BatchLambda<Examples, Example<>>([](Examples examples) {
    auto batch = Stack<>().apply_batch(std::move(examples));
    batch.data += torch::rand({1});  // the same for all of the batch
    return batch;
  }));
  return std::pair(std::move(set), DrawingSampler(static_cast<std::size_t>(batches)));
}

TEST_P(LoaderBatches, HaveTheSameRandomNumbersForAnyNumberOfProcesses) {
  const auto batches = std::int64_t{4};
  const auto alone = epochs_of(lt::loader<Batch, make_noisy_batches>(session(), options(), batches), 2);
  ASSERT_EQ(alone[0].size(), 4U);
  ASSERT_NE(alone[0], alone[1]);
  EXPECT_EQ(epochs_of(lt::loader<Batch, make_noisy_batches>(session(), options(3), batches), 2), alone);
}

TEST_P(LoaderBatches, HaveRandomNumbersOfTheirPlaceInTheEpoch) {
  // The noise of each row, by its place. It does not depend on the rows of a batch, and differs everywhere.
  const auto noise_of = [&](std::int64_t batch_rows) {
    Values noise;
    auto loader = lt::loader<Batch, make_noisy>(session(), {.batch_rows = batch_rows, .seed = kSeed});
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const auto& batch : loader) {
        for (std::int64_t row = 0; row < batch.target.rows(); ++row)
          noise.push_back(batch.data.view()(row, 0) - static_cast<double>(batch.target.view()[row]));
      }
    }
    return noise;
  };
  const auto before = torch::rand({3}, at::detail::createCPUGenerator(5));
  torch::manual_seed(5);
  const auto noise = noise_of(kBatchRows);
  EXPECT_TRUE(torch::rand({3}).equal(before)) << "the generator of the master is as before";
  EXPECT_EQ(noise_of(4), noise);
  EXPECT_EQ(noise.size(), 2 * static_cast<std::size_t>(kRows));
  EXPECT_GT(std::set<double>(noise.begin(), noise.end()).size(), noise.size() - 3);  // rounded to float near 30
}

// ---- positions ----------------------------------------------------------------------------------------------------

/// Saves the position in a checkpoint after each batch of two epochs, and continues at some of them.
TEST_P(LoaderBatches, ContinueAtASavedPosition) {
  const TemporaryFolder folder;
  const auto all = epochs_of(lt::loader<Batch, make_noisy>(session(), options()), 3);
  auto loader = lt::loader<Batch, make_noisy>(session(), options());
  std::vector<lt::LoaderPosition> positions{loader.position()};
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const auto& batch : loader) {
      static_cast<void>(batch);
      positions.push_back(loader.position());
    }
    positions.push_back(loader.position());
  }
  const lt::LoaderPosition in_the_middle{0, 3}, at_the_end{1, 5}, next_epoch{2, 0};
  EXPECT_EQ(positions[3], in_the_middle);
  EXPECT_EQ(positions[11], at_the_end);
  EXPECT_EQ(positions[12], next_epoch);
  for (const auto& position : {in_the_middle, at_the_end, next_epoch}) {
    sr::save_checkpoint(folder.path(), {}, {{"epoch", position.epoch}, {"batch", position.batch}});
    const sr::Checkpoint saved(folder.path());
    lt::LoaderOptions from = options(2);
    from.start = {saved.value<std::int64_t>("epoch"), saved.value<std::int64_t>("batch")};
    auto continued = lt::loader<Batch, make_noisy>(session(), from);
    EXPECT_EQ(continued.position(), position);
    auto rest = std::vector(all.begin() + static_cast<int>(position.epoch), all.end());
    rest[0].erase(rest[0].begin(), rest[0].begin() + static_cast<int>(position.batch));
    EXPECT_EQ(epochs_of(continued, static_cast<int>(rest.size())), rest) << position.epoch << " " << position.batch;
  }
}

TEST_P(LoaderBatches, ContinueAfterALoopThatWasLeftEarly) {
  auto loader = lt::loader<Batch, make_single>(session(), options());
  std::multiset<double> seen;
  for (int part = 0; part < 3; ++part) {
    int batches = 0;
    for (const auto& batch : loader) {
      for (const auto target : batch.target.view()) seen.insert(static_cast<double>(target));
      if (++batches == 2) break;
    }
  }
  EXPECT_EQ(seen, (std::multiset<double>([] {
              const auto all = counting<double>(kRows);
              return std::multiset<double>(all.begin(), all.end());
            }())));
}

// ---- data sets of other kinds -------------------------------------------------------------------------------------

/// Makes whole batches, which have two rows for each index, and tells how many indices it was asked for.
struct Pairs : data::BatchDataset<Pairs, std::tuple<torch::Tensor, torch::Tensor, torch::Tensor>> {
  std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> get_batch(torch::ArrayRef<std::size_t> indices) override {
    const auto i = torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()));
    const auto asked = static_cast<std::int64_t>(indices.size());
    return {torch::stack({i, -i}, 1).flatten(), i.to(torch::kFloat64).unsqueeze(1).expand({-1, 3}),
            torch::full({asked}, asked)};
  }
  Size size() const override { return static_cast<std::size_t>(kRows); }
};
auto make_pairs() { return Pairs(); }
struct PairBatch {
  sr::Data<std::int64_t, 1> pairs;  // twice as many rows as the others
  sr::Data<double, 2> wide;
  sr::Data<std::int64_t, 1> asked;
};

TEST_P(LoaderBatches, OfADataSetOfBatchesAreAskedForAsAWhole) {
  auto loader = lt::loader<PairBatch, make_pairs, data::samplers::SequentialSampler>(session(), options());
  std::int64_t first = 0;
  for (const auto& batch : loader) {
    const std::int64_t rows = std::min(kBatchRows, kRows - first);
    ASSERT_EQ(batch.pairs.rows(), 2 * rows);
    ASSERT_EQ(batch.wide.shape(), (sr::Shape{rows, 3}));
    EXPECT_EQ(batch.asked.view()[rows - 1], rows);
    EXPECT_EQ(batch.pairs.view()[1], -first);
    EXPECT_EQ(batch.wide.view()(rows - 1, 2), static_cast<double>(first + rows - 1));
    first += rows;
  }
  EXPECT_EQ(first, kRows);
}

/// As Numbers, but with a get_batch() of its own.
struct CountingNumbers : data::Dataset<CountingNumbers, TensorExample> {
  TensorExample get(std::size_t) override { throw std::logic_error("get() is not for whole batches"); }
  std::vector<TensorExample> get_batch(torch::ArrayRef<std::size_t> indices) override {
    return std::vector<TensorExample>(indices.size(), torch::full({}, static_cast<double>(indices.size())));
  }
  Size size() const override { return torch::nullopt; }
};
auto make_counting() { return CountingNumbers().map(Stack<TensorExample>()); }

TEST_P(LoaderBatches, OfADataSetWithoutASizeHaveTheRowsOfTheOptions) {
  lt::LoaderOptions sized = options();
  EXPECT_ERROR((lt::loader<sr::Data<float, 1>, make_counting>(session(), sized)), sr::ErrorKind::usage, "epoch_rows");
  sized.epoch_rows = 16;
  auto loader = lt::loader<sr::Data<float, 1>, make_counting>(session(), sized);
  EXPECT_EQ(loader.rows(), std::nullopt);
  const Values seven(7, 7), two(2, 2);
  EXPECT_EQ(epochs_of(loader, 2), (std::vector(2, std::vector{seven, seven, two})));
  EXPECT_ERROR((lt::loader<Batch, make_single>(session(), sized)), sr::ErrorKind::usage, "has 30 examples");
}

/// Counts from 0 to 9 in each epoch, and adds a random number of the epoch.
struct Countdown : data::datasets::StatefulDataset<Countdown, Example<torch::Tensor, float>> {
  torch::optional<Example<torch::Tensor, float>> get_batch(std::size_t rows) override {
    const std::int64_t count = std::min<std::int64_t>(static_cast<std::int64_t>(rows), 10 - next);
    if (count == 0) return torch::nullopt;
    next += count;
    return Example<torch::Tensor, float>(torch::arange(next - count, next), 0);
  }
  Size size() const override { return torch::nullopt; }
  void reset() override { next = torch::randint(3, {1}).item<std::int64_t>(); }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}
  std::int64_t next = 10;
};
auto make_countdown() {
  using Labelled = Example<torch::Tensor, float>;
  return Countdown().map(
      data::transforms::BatchLambda<Labelled, torch::Tensor>([](const Labelled& batch) { return batch.data; }));
}
/// Goes on counting for ever.
struct Stream : data::datasets::StreamDataset<Stream, torch::Tensor> {
  torch::Tensor get_batch(std::size_t rows) override {
    next += static_cast<std::int64_t>(rows);
    return torch::arange(next - static_cast<std::int64_t>(rows), next);
  }
  Size size() const override { return torch::nullopt; }
  std::int64_t next = 0;
};
auto make_stream() { return Stream(); }

TEST_P(LoaderBatches, OfStatefulDataSetsEndWhereTheDataSetSays) {
  using Whole = sr::Data<std::int64_t, 1>;
  lt::LoaderOptions three{.batch_rows = 4, .seed = kSeed};
  const auto all = epochs_of(lt::loader<Whole, make_countdown>(session(), three), 4);
  for (std::size_t epoch = 0; epoch < all.size(); ++epoch) {
    torch::manual_seed(kSeed + epoch);
    Values expected = counting<double>(10);
    expected.erase(expected.begin(), expected.begin() + torch::randint(3, {1}).item<std::int64_t>());
    Values joined;
    for (const auto& batch : all[epoch]) joined.insert(joined.end(), batch.begin(), batch.end());
    EXPECT_EQ(joined, expected);
  }
  three.start = {2, 1};
  const auto rest = epochs_of(lt::loader<Whole, make_countdown>(session(), three), 2);
  EXPECT_EQ(rest[0], std::vector(all[2].begin() + 1, all[2].end()));
  EXPECT_EQ(rest[1], all[3]);
  three.processes = 2;
  EXPECT_ERROR((lt::loader<Whole, make_countdown>(session(), three)), sr::ErrorKind::usage, ".processes = 1");
}

TEST_P(LoaderBatches, OfAStreamContinueWhereItWas) {
  using Whole = sr::Data<std::int64_t, 1>;
  lt::LoaderOptions ten{.batch_rows = 4, .start = {1, 1}, .epoch_rows = 10};
  EXPECT_EQ(
      epochs_of(lt::loader<Whole, make_stream>(session(), ten), 2),
      (std::vector<std::vector<Values>>{{{14, 15, 16, 17}, {18, 19}}, {{20, 21, 22, 23}, {24, 25, 26, 27}, {28, 29}}}));
}

/// Gives twice as many rows as it is asked for, as a crop of each example would.
struct Doubled : data::datasets::StreamDataset<Doubled, torch::Tensor> {
  torch::Tensor get_batch(std::size_t rows) override { return torch::arange(2 * static_cast<std::int64_t>(rows)); }
  Size size() const override { return std::size_t{10}; }
};
auto make_doubled() { return Doubled(); }
/// Its second batch of three is short.
struct ShortInBetween : data::datasets::StatefulDataset<ShortInBetween, torch::Tensor> {
  torch::optional<torch::Tensor> get_batch(std::size_t) override {
    if (given == 3) return torch::nullopt;
    ++given;
    return torch::full({given == 2 ? 1 : 4}, given);
  }
  Size size() const override { return torch::nullopt; }
  void reset() override { given = 0; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}
  std::int64_t given = 0;
};
auto make_short_in_between() { return ShortInBetween(); }

TEST_P(LoaderBatches, OfAStreamCountWhatItIsAskedFor) {
  using Whole = sr::Data<std::int64_t, 1>;
  const auto found = epochs_of(lt::loader<Whole, make_doubled>(session(), {.batch_rows = 4}), 2);
  for (const auto& epoch : found) {
    ASSERT_EQ(epoch.size(), 3U);
    EXPECT_EQ(epoch[2].size(), 4U);
  }
  lt::LoaderOptions whole{.batch_rows = 4, .last = lt::LastBatch::drop};
  EXPECT_EQ(epochs_of(lt::loader<Whole, make_short_in_between>(session(), whole), 2),
            (std::vector(2, std::vector<Values>{{1, 1, 1, 1}, {3, 3, 3, 3}})));
}

/// Its first batch is the shortest.
struct Longer : ShortInBetween {
  torch::optional<torch::Tensor> get_batch(std::size_t) override {
    if (given == 3) return torch::nullopt;
    ++given;
    return torch::full({2 * given}, given);
  }
};
auto make_longer() { return Longer(); }

TEST_P(LoaderBatches, OfAStreamMayBeLongerThanTheFirstIfTheOptionsSaySo) {
  using Whole = sr::Data<std::int64_t, 1>;
  auto first = lt::loader<Whole, make_longer>(session(), {.batch_rows = 2});
  EXPECT_ERROR(epochs_of(first, 1), sr::ErrorKind::function,
               "at least 4 rows, and the memory of a batch 2, as batch_rows or the first batch of epoch 0. Set "
               "LoaderOptions::most_rows");
  EXPECT_EQ(epochs_of(lt::loader<Whole, make_longer>(session(), {.batch_rows = 2, .most_rows = 6}), 2),
            (std::vector(2, std::vector<Values>{{1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3, 3, 3}})));
  EXPECT_ERROR((lt::loader<Whole, make_longer>(session(), {.batch_rows = 2, .most_rows = 1})), sr::ErrorKind::usage,
               "most_rows must be at least batch_rows, 2, got 1");
  EXPECT_ERROR((lt::loader<Whole, make_longer>(session(), {.batch_rows = 1, .most_rows = 1})), sr::ErrorKind::usage,
               "the first batch has 2 rows, and most_rows is 1");
}

/// Does not begin anew in reset().
class OnceSampler : public DrawingSampler {
 public:
  using DrawingSampler::DrawingSampler;
  void reset(Size) override {}
};
auto make_once() { return std::pair(Numbers(), OnceSampler(2)); }
/// Has another size in each process.
struct Growing : Numbers {
  Size size() const override { return static_cast<std::size_t>(::getpid()); }
};
auto make_growing() { return Growing(); }

TEST_P(LoaderBatches, OfAnEmptyEpochOrAnotherSizeAreAnError) {
  auto once = lt::loader<Batch, make_once>(session(), options());
  EXPECT_ERROR(epochs_of(once, 2), sr::ErrorKind::function, "epoch 1 has no batch");
  auto growing = lt::loader<Batch, make_growing, data::samplers::SequentialSampler>(session(), options());
  EXPECT_ERROR(epochs_of(growing, 1), sr::ErrorKind::function, "in the master");
}

// ---- errors -------------------------------------------------------------------------------------------------------

enum class Fault : std::int64_t { throws, torch_error, other_shape, other_type, dies };

struct Faulty : data::Dataset<Faulty> {
  explicit Faulty(Fault fault) : fault(fault) {}
  Example<> get(std::size_t index) override {
    auto example = Numbers().get(index);
    if (index != 23) return example;
    switch (fault) {
      case Fault::throws: throw std::runtime_error("0023.png: no such file");
      case Fault::torch_error: example.data = torch::ones({2, 3}).mm(torch::ones({2, 3})); break;
      case Fault::other_shape: example.data = torch::ones({5}); break;
      case Fault::other_type: example.target = torch::tensor(1.0); break;
      case Fault::dies: ::_exit(3);
    }
    return example;
  }
  Size size() const override { return static_cast<std::size_t>(kRows); }
  Fault fault;
};
auto make_faulty(Fault fault) { return Faulty(fault).map(Stack<>()); }
struct FaultyBatches : data::BatchDataset<FaultyBatches, torch::Tensor> {
  torch::Tensor get_batch(torch::ArrayRef<std::size_t> indices) override {
    if (std::count(indices.begin(), indices.end(), 23U) != 0) throw std::runtime_error("23 is not allowed");
    return torch::ones({static_cast<std::int64_t>(indices.size()), 3}, torch::kFloat64);
  }
  Size size() const override { return static_cast<std::size_t>(kRows); }
};
auto make_faulty_batches() { return FaultyBatches(); }

TEST_P(LoaderBatches, OfAFaultyDataSetNameTheIndexAndTheProducer) {
  using data::samplers::SequentialSampler;
  const auto fails = [&](Fault fault, sr::ErrorKind kind, const std::vector<std::string>& texts, int processes = 1) {
    auto loader = lt::loader<Batch, make_faulty, SequentialSampler>(session(), options(processes), fault);
    try {
      epochs_of(loader, 1);
      ADD_FAILURE() << "no error";
    } catch (const sr::Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      for (const auto& text : texts) EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
    EXPECT_EQ(loader.position(), (lt::LoaderPosition{0, 3})) << "the batches before the fault arrive";
  };
  const std::string place = "index 23 of the data set (batch 3 of epoch 0): ";
  const auto function = sr::ErrorKind::function;
  fails(Fault::throws, function, {"producer 1", "'make_faulty'", place + "0023.png: no such file"}, 2);
  fails(Fault::torch_error, function, {"producer 0", place, "mat1 and mat2"});
  fails(Fault::other_shape, function, {place + "tensor 0 of an example has the shape [5]", "[2]"});
  fails(Fault::other_type, function, {place + "tensor 1 is Float, and was Long"});
  fails(Fault::dies, sr::ErrorKind::worker_lost, {"producer 0"});

  auto whole = lt::loader<sr::Data<double, 2>, make_faulty_batches, SequentialSampler>(session(), options());
  EXPECT_ERROR(epochs_of(whole, 1), function, "batch 3 of epoch 0 (indices 21, 22, 23, 24, 25, 26, 27): 23 is not");
}

auto make_broken() -> decltype(Numbers()) { throw std::runtime_error("no such folder"); }
auto make_negative_sampler() { return std::pair(Numbers(), DrawingSampler(0)); }

TEST_P(LoaderBatches, ThatCannotBeAreRefusedAtOnce) {
  struct WrongType {
    sr::Data<double, 2> data;
    sr::Data<std::int64_t, 1> target;
  };
  struct WrongDimensions {
    sr::Data<float, 3> data;
    sr::Data<std::int64_t, 1> target;
  };
  const auto usage = sr::ErrorKind::usage;
  EXPECT_ERROR((lt::loader<WrongType, make_single>(session(), options())), usage,
               "field 0 of the batch has elements of type Double and 2 dimensions");
  EXPECT_ERROR((lt::loader<WrongDimensions, make_single>(session(), options())), usage, "gives Float and 2 dimensions");
  EXPECT_ERROR((lt::loader<sr::Data<float, 2>, make_single>(session(), options())), usage, "1 field, and");
  EXPECT_ERROR((lt::loader<Batch, make_single>(session(), {.batch_rows = 0})), usage, "at least 1, got 0");
  EXPECT_ERROR((lt::loader<Batch, make_single>(session(), {.start = {0, -1}})), usage, "batch -1");
  EXPECT_ERROR((lt::loader<Batch, make_single>(session(), {.queue = {.order = sr::BatchOrder::arrival}})), usage,
               "round_robin");
  EXPECT_ERROR((lt::loader<Batch, make_negative_sampler>(session(), options())), usage, "got none");
  EXPECT_ERROR((lt::loader<Batch, make_broken>(session(), options())), sr::ErrorKind::function,
               "the factory of the data set: no such folder");
  lt::LoaderOptions late = options();
  late.start = {1, 6};
  auto loader = lt::loader<Batch, make_single>(session(), late);
  EXPECT_ERROR(loader.next(), sr::ErrorKind::function, "the start is batch 6 of epoch 1, and this epoch has 5 batches");
}

}  // namespace loaders
}  // namespace

#pragma once

// loader(): the batches of a data set of LibTorch (torch::data), which producers build in the background. Called by the
// master.

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "syncrun/detail/batch.hpp"
#include "syncrun/detail/batch_iterator.hpp"
#include "syncrun/detail/construct.hpp"
#include "syncrun/detail/fields.hpp"
#include "syncrun/detail/names.hpp"
#include "syncrun/producer.hpp"
#include "syncrun/queue.hpp"
#include "syncrun/session.hpp"
#include "syncrun/torch/data_chain.hpp"
#include "syncrun/torch/loader_interface.hpp"
#include "syncrun/torch/loader_options.hpp"

namespace syncrun::libtorch {

/// The batches of a data set, epoch after epoch. loader() makes it. A loop takes one epoch:
///
///   while (digits.position().epoch < 10) {
///     for (const Digits& batch : digits) step(batch.images, batch.labels, {.learning_rate = 1e-3});
///   }
///
/// The producers already build batches of the next epoch at the end of an epoch. A loop that was left early continues
/// where it was: the next loop takes the rest of the epoch.
template <BatchType Batch>
class Loader {
 public:
  /// Syncrun calls this. A program calls loader().
  Loader(BatchQueue<Batch> queue, const LoaderPosition& start, std::optional<std::int64_t> rows)
      : queue_(std::move(queue)), position_(start), rows_(rows) {}

  /// Returns the next batch of the epoch, or nothing at its end. The call after that begins the next epoch. Throws what
  /// BatchQueue::next() throws. The error of a data set names the producer, the batch, and the index of the example.
  std::optional<Batch> next() {
    auto batch = queue_.next();
    if (batch && rows_of(*batch) != 0) {
      ++position_.batch;
      return batch;
    }
    position_ = {position_.epoch + 1, 0};
    return std::nullopt;
  }

  /// The place of the batch that comes next. LoaderOptions::start continues there. In a loop, it is the place after the
  /// present batch, so save it after the step. After the last batch of an epoch and before the end of its loop, this is
  /// the end of that epoch: the first loop of the new loader is then empty.
  LoaderPosition position() const noexcept { return position_; }
  /// The number of examples of the data set. Nothing if its size() is empty.
  std::optional<std::int64_t> rows() const noexcept { return rows_; }
  /// The queue, for its name, its capacity, and the process ids of the producers.
  const BatchQueue<Batch>& queue() const noexcept { return queue_; }
  /// Ends the producers, as BatchQueue::close() does.
  void close() { queue_.close(); }

  /// An input iterator over the remaining batches of an epoch.
  using Iterator = syncrun::detail::BatchIterator<Loader, Batch>;
  Iterator begin() { return Iterator(*this); }
  std::default_sentinel_t end() const noexcept { return {}; }

 private:
  static std::int64_t rows_of(const Batch& batch) {
    if constexpr (syncrun::detail::DataTraits<Batch>::is_data) return batch.rows();
    else return syncrun::detail::with_fields(batch, [](const auto& first, const auto&...) { return first.rows(); });
  }

  BatchQueue<Batch> queue_;
  LoaderPosition position_;
  std::optional<std::int64_t> rows_;
};

namespace detail {

template <class Made>
struct SourceTypes {
  using Set = Made;
  static constexpr bool kHasSampler = false;
};
template <class First, class Second>
struct SourceTypes<std::pair<First, Second>> {
  using Set = First;
  using OwnSampler = Second;
  static constexpr bool kHasSampler = true;
};

template <class Set>
std::optional<std::int64_t> size_of(const Set& set) {
  const auto size = set.size();
  return size ? std::optional(static_cast<std::int64_t>(*size)) : std::nullopt;
}

/// A data set that gives examples by their indices, in the order of a sampler.
template <class Set, class Sampler>
class IndexedSource {
  static_assert(std::is_same_v<typename Sampler::BatchRequestType, std::vector<std::size_t>>,
                "the sampler of a loader gives lists of indices, as torch::data::samplers::Sampler<> does");

 public:
  using Item = std::vector<std::size_t>;
  static constexpr bool kIsOneProcess = false;

  IndexedSource(Set set, Sampler sampler, const LoaderPlan& plan)
      : set_(std::move(set)), sampler_(std::move(sampler)), plan_(plan) {}

  const Set& set() const noexcept { return set_; }
  static std::int64_t first_epoch(const LoaderPosition& start) noexcept { return start.epoch; }
  void begin_epoch(std::int64_t epoch) {
    seed_cpu(plan_.seed + static_cast<std::uint64_t>(epoch));
    if constexpr (requires { sampler_.set_epoch(std::size_t{}); }) sampler_.set_epoch(static_cast<std::size_t>(epoch));
    sampler_.reset({});
    randomness_.keep();
  }
  std::optional<Item> next(const LoaderPosition& position) {
    return with_place([&] { return "the sampler, for " + text_of_place(position); },
                      [&]() -> std::optional<Item> {
                        randomness_.restore();
                        const auto found = sampler_.next(static_cast<std::size_t>(plan_.batch_rows));
                        randomness_.keep();
                        if (!found) return std::nullopt;
                        const ::torch::ArrayRef<std::size_t> indices(*found);
                        check_indices(indices.size());
                        if (plan_.last == LastBatch::drop && rows(indices) < plan_.batch_rows) return std::nullopt;
                        return Item(indices.begin(), indices.end());
                      });
  }
  static std::int64_t rows(::torch::ArrayRef<std::size_t> indices) noexcept {
    return static_cast<std::int64_t>(indices.size());
  }

  std::vector<std::int64_t> put(std::span<const LoaderArray> arrays, const Item& indices, const BatchPlace& place) {
    if constexpr (kGivesExamples<Set>) return put_examples(set_, arrays, indices, place);
    else if constexpr (kStacksExamples<Set>) return put_examples(source_of(set_), arrays, indices, place);
    else return put_whole(arrays, indices, place);
  }
  /// The first example, or the first batch if the data set makes batches.
  LoadedBatch first(const Item& indices, const BatchPlace& place) {
    if constexpr (kGivesExamples<Set>) return {{tensors_of(example_of(set_, indices.at(0), 0, place))}, {}};
    else if constexpr (kStacksExamples<Set>)
      return {{tensors_of(example_of(source_of(set_), indices.at(0), 0, place))}, {}};
    else return loaded_batch(raw_batch(set_, indices, place));
  }

 private:
  template <class Source>
  static std::vector<std::int64_t> put_examples(Source& source, std::span<const LoaderArray> arrays,
                                                const Item& indices, const BatchPlace& place) {
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const auto number = static_cast<std::int64_t>(i);
      const auto tensors = tensors_of(example_of(source, indices[i], number, place));
      with_place([&] { return text_of_place(place.position, indices[i]); },
                 [&] { put_example(arrays, number, tensors); });
    }
    return std::vector<std::int64_t>(arrays.size(), rows(indices));
  }
  std::vector<std::int64_t> put_whole(std::span<const LoaderArray> arrays, const Item& indices,
                                      const BatchPlace& place) {
    const auto loaded = loaded_batch(raw_batch(set_, indices, place));
    return with_place([&] { return text_of_place(place.position, indices); },
                      [&] { return put_batch(arrays, loaded); });
  }

  Set set_;
  Sampler sampler_;
  LoaderPlan plan_;
  GeneratorState randomness_;  // of the sampler
};

/// A data set that gives its examples in an order of its own: a stream, or a stateful one.
template <class Set>
class StreamSource {
  static_assert(std::is_integral_v<typename Set::BatchRequestType>,
                "a loader asks a data set for a torch::ArrayRef<size_t> of indices, or for a number of examples");

 public:
  using Item = LoadedBatch;
  static constexpr bool kIsOneProcess = true;

  StreamSource(Set set, const LoaderPlan& plan) : set_(std::move(set)), plan_(plan) {
    if constexpr (Set::is_stateful) check_no_epoch_rows(plan);
    else epoch_rows_ = epoch_rows_of(size_of(set_), plan);
  }

  const Set& set() const noexcept { return set_; }
  /// A stream is read from its beginning.
  static std::int64_t first_epoch(const LoaderPosition& start) noexcept { return Set::is_stateful ? start.epoch : 0; }
  void begin_epoch(std::int64_t epoch) {
    if (Set::is_stateful || epoch == 0) seed_cpu(plan_.seed + static_cast<std::uint64_t>(epoch));
    if constexpr (Set::is_stateful) set_.reset();
    asked_ = 0;
  }
  std::optional<Item> next(const LoaderPosition& position) {
    return with_place([&] { return text_of_place(position); }, [&] { return next_batch(); });
  }
  static std::int64_t rows(const Item& batch) { return rows_of(batch); }
  static std::vector<std::int64_t> put(std::span<const LoaderArray> arrays, const Item& batch,
                                       const BatchPlace& place) {
    return with_place([&] { return text_of_place(place.position); }, [&] { return put_batch(arrays, batch); });
  }
  static LoadedBatch first(const Item& batch, const BatchPlace&) { return batch; }

 private:
  std::optional<Item> next_batch() {
    std::int64_t wanted = plan_.batch_rows;
    if constexpr (!Set::is_stateful) {
      wanted = std::min(wanted, epoch_rows_ - asked_);
      if (wanted <= 0 || (plan_.last == LastBatch::drop && wanted < plan_.batch_rows)) return std::nullopt;
      asked_ += wanted;
      return loaded_batch(set_.get_batch(static_cast<std::size_t>(wanted)));
    } else {
      while (auto found = set_.get_batch(static_cast<std::size_t>(wanted))) {
        auto batch = loaded_batch(*found);
        // The data set alone knows which batch is its last one.
        if (plan_.last == LastBatch::keep || rows_of(batch) >= plan_.batch_rows) return batch;
      }
      return std::nullopt;
    }
  }

  Set set_;
  LoaderPlan plan_;
  std::int64_t epoch_rows_ = 0;
  std::int64_t asked_ = 0;  // examples of this epoch so far
};

/// The order is random unless the program chooses a sampler.
struct NoSampler {};
template <class Sampler>
using SamplerOr =
    std::conditional_t<std::is_same_v<Sampler, NoSampler>, ::torch::data::samplers::RandomSampler, Sampler>;

/// Calls the factory of a program, and returns the source of its data set.
template <auto kFactory, class Sampler, class... Arguments>
auto make_source(const LoaderPlan& plan, Arguments&... arguments) {
  seed_cpu(plan.seed);
  auto made = with_place([] { return std::string("the factory of the data set"); },
                         [&] { return kFactory(std::move(arguments)...); });
  using Types = SourceTypes<decltype(made)>;
  using Set = typename Types::Set;
  static_assert(
      requires { typename Set::BatchRequestType; },
      "the factory of a loader returns a data set of torch::data, or a std::pair of one and its sampler");
  constexpr bool kIsIndexed =
      !Set::is_stateful && std::is_same_v<typename Set::BatchRequestType, ::torch::ArrayRef<std::size_t>>;
  constexpr bool kIsChosen = !std::is_same_v<Sampler, NoSampler>;
  static_assert(kIsIndexed || !(Types::kHasSampler || kIsChosen), "only a data set that takes indices has a sampler");
  static_assert(!(Types::kHasSampler && kIsChosen),
                "the factory of this loader returns its own sampler, and the third template argument is another one: "
                "leave one of the two out");
  if constexpr (!kIsIndexed) {
    return StreamSource<Set>(std::move(made), plan);
  } else if constexpr (Types::kHasSampler) {
    check_no_epoch_rows(plan);
    return IndexedSource<Set, typename Types::OwnSampler>(std::move(made.first), std::move(made.second), plan);
  } else {
    const std::int64_t rows = epoch_rows_of(size_of(made), plan);
    return IndexedSource<Set, SamplerOr<Sampler>>(std::move(made), SamplerOr<Sampler>(static_cast<std::size_t>(rows)),
                                                  plan);
  }
}

template <class Batch, std::size_t... I>
void push_rows(Draft<Batch>& draft, const std::vector<std::int64_t>& rows, std::index_sequence<I...>) {
  draft.push(rows[I]...);
}

/// The function of the producers. Each one goes through all places of all epochs, and fills those whose turn is its own.
/// The end of an epoch is a batch without rows.
template <class Batch, auto kFactory, class Sampler, class... Arguments>
void load_batches(Producer<Batch>& out, LoaderPlan plan, Arguments... arguments) {
  constexpr std::make_index_sequence<syncrun::detail::BatchTraits<Batch>::size> kFields;
  use_one_thread();
  const ::torch::NoGradGuard no_gradients;
  auto source = make_source<kFactory, Sampler>(plan, arguments...);
  check_size(size_of(source.set()).value_or(-1), plan);
  std::int64_t turn = 0;
  const auto is_own_turn = [&] { return turn++ % out.count() == out.index(); };
  for (LoaderPosition at{source.first_epoch(plan.start), 0};; at = {at.epoch + 1, 0}) {
    with_place([&] { return "the beginning of epoch " + std::to_string(at.epoch); },
               [&] { source.begin_epoch(at.epoch); });
    std::int64_t first = 0;
    for (; const auto item = source.next(at); ++at.batch) {
      const bool is_before =
          at.epoch < plan.start.epoch || (at.epoch == plan.start.epoch && at.batch < plan.start.batch);
      if (!is_before && is_own_turn()) {
        auto draft = out.next();
        if (!draft) return;
        const auto arrays =
            std::apply([](const auto&... view) { return std::array{loader_array(view)...}; }, draft.arrays());
        push_rows(draft, source.put(arrays, *item, {plan.seed, at, first}), kFields);
      }
      first += source.rows(*item);
    }
    check_has_batches(at);
    if (at.epoch < plan.start.epoch) continue;
    if (at.epoch == plan.start.epoch) check_start(plan, at.batch);
    if (is_own_turn()) {
      auto end = out.next();
      if (!end) return;
      end.push(0);
    }
  }
}

template <class View>
struct FieldOfView;
template <class T, std::size_t N>
struct FieldOfView<ArrayView<T, N>> {
  static constexpr LoaderField kField{ScalarTypeOf<T>::value, N};
};
template <class Views>
struct FieldsOfViews;
template <class... View>
struct FieldsOfViews<std::tuple<View...>> {
  static constexpr std::array<LoaderField, sizeof...(View)> kFields{FieldOfView<View>::kField...};
};

/// What the master finds out about a data set.
struct FoundData {
  std::vector<std::vector<std::int64_t>> extents;
  std::optional<std::int64_t> rows;
};
template <class Batch, auto kFactory, class Sampler, class... Arguments>
FoundData look_at_data(const LoaderOptions& options, Arguments... arguments) {
  const LoaderPlan plan = loader_plan(options);
  const ::torch::NoGradGuard no_gradients;
  GeneratorState before;
  before.keep();
  const auto look = [&]() -> FoundData {
    auto source = make_source<kFactory, Sampler>(plan, arguments...);
    if (source.kIsOneProcess) check_one_process(options);
    source.begin_epoch(0);
    const auto item = source.next({});
    if (!item) refuse_empty();
    const LoadedBatch first = source.first(*item, {plan.seed, {}, 0});
    using Views = typename syncrun::detail::BatchTraits<Batch>::Views;
    return {extents_of(FieldsOfViews<Views>::kFields, first, plan), size_of(source.set())};
  };
  try {
    auto found = look();
    before.restore();
    return found;
  } catch (...) {
    before.restore();
    throw;
  }
}

}  // namespace detail

/// Makes the batches of a data set of LibTorch, in processes of their own (producers):
///
///   auto make_digits(const std::string& folder) {  // every process calls it
///     return torch::data::datasets::MNIST(folder)
///         .map(torch::data::transforms::Normalize<>(0.13, 0.31))
///         .map(torch::data::transforms::Stack<>());
///   }
///   struct Digits { sr::Data<float, 4> images; sr::Data<std::int64_t, 1> labels; };
///   auto digits = sr::libtorch::loader<Digits, make_digits>(session, {.batch_rows = 64, .processes = 2}, "mnist");
///
/// The factory is a function with a name, or a lambda without captures. `arguments` have the types of those of
/// Session::producers. The factory returns a data set that takes indices (with get() or get_batch()), a stream or a
/// stateful data set. The tensors of an example become rows of the fields of `Batch`, in their order. Their types must
/// be those of the fields, and all examples must have the same shape. Stack is optional.
///
/// `Sampler` gives the order, by default that of torch::data::samplers::RandomSampler. Before epoch e, the loader calls
/// LibTorch's manual_seed(seed + e) and the sampler's reset(). So the order depends only on seed and epoch. With
/// RandomSampler, it is LibTorch's, and that of Python's DistributedSampler for one rank. The sampler is made with the
/// number of examples. For another constructor, the factory returns a std::pair of data set and sampler. A sampler must
/// remember nothing of earlier epochs. Use no rank and no number of ranks: a call divides the rows of a batch.
/// DistributedRandomSampler takes its order from the epoch alone, whatever the seed.
///
/// Random numbers of a data set and of its transforms must come from LibTorch's generator. If the data set has get()
/// and LibTorch's get_batch(), and for the first transforms that take single examples, they depend only on the seed,
/// the epoch and the place of the example in the epoch. For transforms of batches, they depend on the batch.
///
/// A generator that an object keeps would make batches depend on LoaderOptions::processes. A data set with threads of its
/// own, such as ChunkDataset, gives the same batches again only with one preloader and without random transforms.
///
/// A loader with LoaderOptions::start asks the sampler for the earlier batches again, and drops them. It calls reset() of
/// a stateful data set once. So reset() must not depend on earlier epochs. The loader reads a stream from its beginning,
/// which may take longer than the queue's timeout.
///
/// The master calls the factory too, looks at the first example or batch, and destroys the data set. Throws Error:
/// usage (options, types or shapes do not fit), function (the data set failed), and the errors of Session::producers.
template <BatchType Batch, auto kFactory, class Sampler = detail::NoSampler, class... Arguments>
Loader<Batch> loader(Session& session, const LoaderOptions& options, const Arguments&... arguments) {
  static_assert(std::is_invocable_v<decltype(kFactory), syncrun::detail::Stored<Arguments>...>,
                "these arguments do not fit the factory (literals arrive as std::string)");
  const auto found =
      detail::look_at_data<Batch, kFactory, Sampler>(options, syncrun::detail::Stored<Arguments>(arguments)...);
  BatchShapes<Batch> shapes;
  std::size_t field = 0;
  const auto set_shape = [&](auto& shape) {
    for (std::size_t i = 0; i < shape.dimensions(); ++i) shape[i] = found.extents[field][i];
    ++field;
  };
  std::apply([&](auto&... shape) { (set_shape(shape), ...); }, shapes);
  detail::LoaderPlan plan = detail::loader_plan(options);
  plan.found_rows = found.rows.value_or(-1);
  QueueOptions queue = options.queue;
  if (queue.name.empty()) queue.name = syncrun::detail::function_name<kFactory>();
  return {session.producers(options.processes,
                            &detail::load_batches<Batch, kFactory, Sampler, syncrun::detail::Stored<Arguments>...>,
                            shapes, queue, plan, arguments...),
          options.start, found.rows};
}

}  // namespace syncrun::libtorch

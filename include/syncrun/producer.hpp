#pragma once

// What a producer's function is given: the queue it fills.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <type_traits>
#include <utility>

#include "syncrun/detail/batch.hpp"
#include "syncrun/detail/helper.hpp"
#include "syncrun/detail/worker_seam.hpp"

namespace syncrun {

template <BatchType Batch>
class Draft;

/// The first parameter of a producer's function, `Producer<Batch>&`: where its batches go. Used in the function's own
/// thread.
template <BatchType Batch>
class Producer {
 public:
  explicit Producer(detail::ProducerCore& core) noexcept : core_(&core) {}
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;

  /// Which of the queue's producers this is, from 0, and how many there are.
  int index() const noexcept { return detail::index_of(*core_); }
  int count() const noexcept { return detail::count_of(*core_); }

  /// A batch to fill. Waits until one of this producer's is free; nothing once the queue is closed. Throws Error (usage) if
  /// the function holds all of them itself.
  [[nodiscard]] Draft<Batch> next() { return {*core_, detail::next_draft(*core_)}; }

  /// Random numbers of this producer, seeded from the session's seed and the index.
  std::mt19937_64& rng() noexcept { return detail::rng_of(*core_); }

 private:
  detail::ProducerCore* core_;
};

/// A batch on its way: memory of the queue to fill in place, and then to push. Dropped without push(), its place is free
/// again.
template <BatchType Batch>
class Draft {
  using Traits = detail::BatchTraits<Batch>;

 public:
  Draft(detail::ProducerCore& producer, const detail::RawDraft& raw) noexcept : producer_(&producer), raw_(raw) {}
  Draft(Draft&& other) noexcept : producer_(other.producer_), raw_(std::exchange(other.raw_, {})) {}
  Draft& operator=(Draft&& other) noexcept {
    std::swap(producer_, other.producer_);
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Draft() {
    if (raw_.batch >= 0) detail::drop_draft(*producer_, raw_.batch);
  }

  /// False once the queue wants no more batches: the function is to return.
  explicit operator bool() const noexcept { return raw_.batch >= 0; }

  /// The arrays to fill, in the order of the batch's fields and in the shapes the queue was made with. They hold what some
  /// batch before left there: `auto [images, labels] = batch.arrays();`
  typename Traits::Views arrays() const noexcept { return Traits::views(raw_.arrays); }

  /// One of them: of a batch that is a single Data, the array.
  template <std::size_t I = 0>
  auto array() const noexcept {
    return std::get<I>(arrays());
  }

  /// Hands it to the consumer, who sees what was written before. With numbers: the first rows of every array, one number
  /// for all of them or one for each. Throws Error (usage) if there are not so many, or if it is pushed already.
  template <std::integral... Rows>
    requires(sizeof...(Rows) <= 1 || sizeof...(Rows) == Traits::size)
  void push(Rows... rows) {
    const std::array<std::int64_t, sizeof...(Rows)> numbers{static_cast<std::int64_t>(rows)...};
    detail::push_draft(*producer_, raw_.batch, numbers);
    raw_ = {};
  }

 private:
  detail::ProducerCore* producer_;
  detail::RawDraft raw_;
};

namespace detail {

/// From a producer's function to its batch and its thunk.
template <class Pointer>
struct ProducerBody {
  static_assert(kAlwaysFalse<Pointer>,
                "a producer is a function or a captureless lambda, void (Producer<Batch>&, arguments...), where Batch "
                "is a Data or a plain struct of them");
};

template <class B, class... P>
struct ProducerBody<void (*)(Producer<B>&, P...)> {
  using Batch = B;
  using Pointer = void (*)(Producer<B>&, P...);
  template <class... Arguments>
  static constexpr bool kTakes = std::is_invocable_v<Pointer, Producer<B>&, Arguments...>;
  template <class... Arguments>
  static void run(HelperCall& call, const BodyPointer& body) {
    Producer<B> producer(call.producer());
    call_with_arguments<void, Arguments...>(call, from_body_pointer<Pointer>(body), producer);
  }
};
template <class B, class... P>
struct ProducerBody<void (*)(Producer<B>&, P...) noexcept> : ProducerBody<void (*)(Producer<B>&, P...)> {};

template <class F>
using ProducerBodyOf = ProducerBody<std::remove_const_t<decltype(as_pointer(std::declval<F>()))>>;

}  // namespace detail
}  // namespace syncrun

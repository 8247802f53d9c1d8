#pragma once

// Producer and Draft: a producer's function uses them to fill its queue.

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
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/options.hpp"

namespace syncrun {

template <BatchType Batch>
class Draft;

/// The type of the first parameter of a producer's function, `Producer<Batch>&`. The function calls next() on this
/// object to get a batch to fill. Only the thread that runs the function may use it.
template <BatchType Batch>
class Producer {
 public:
  explicit Producer(detail::ProducerCore& core) noexcept : core_(&core) {}
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;

  /// index() returns the number of this producer in its queue, from 0. count() returns the number of producers of the
  /// queue.
  int index() const noexcept { return detail::index_of(*core_); }
  int count() const noexcept { return detail::count_of(*core_); }

  /// The number of the node that this producer runs on. 0 on the first one, and in a session on one node.
  int node() const noexcept { return detail::node_of(*core_); }

  /// Returns a batch to fill. Waits until one of this producer's batches is free. If the queue is closed, returns an
  /// empty draft. Throws Error (usage) if the function itself holds all batches of this producer.
  [[nodiscard]] Draft<Batch> next() { return {*core_, detail::next_draft(*core_)}; }

  /// The rows of a batch of `rows` rows that the ranks of this node read in a call that divides the rows evenly among
  /// all ranks of the session. The function need not fill the others if it calls Draft::push_here(). If all producers run
  /// on the first node, or the session has one node, these are all rows. Throws Error (usage) if `rows` is negative.
  Slice rows_here(std::int64_t rows) const { return detail::rows_here_of(*core_, rows); }

  /// A random number generator of this producer. Its seed is derived from the session's seed and the producer's index.
  std::mt19937_64& rng() noexcept { return detail::rng_of(*core_); }

 private:
  detail::ProducerCore* core_;
};

/// A batch that a producer fills. Its arrays are in the queue's memory. The function fills the arrays in place, and
/// then calls push(). If a draft is destroyed before push(), the producer can use its memory for another batch.
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

  /// Returns false if the queue was closed before next() could return a batch. The function must then return. Also
  /// returns false after push().
  explicit operator bool() const noexcept { return raw_.batch >= 0; }

  /// The arrays to fill, in the order of the batch's fields: `auto [images, labels] = batch.arrays();`. Their shapes
  /// are those that were passed to Session::producers. The arrays may still contain the values of an earlier batch.
  typename Traits::Views arrays() const noexcept { return Traits::views(raw_.arrays); }

  /// The array with index I. If a batch is a single Data, array() returns its only array.
  template <std::size_t I = 0>
  auto array() const noexcept {
    return std::get<I>(arrays());
  }

  /// Passes the batch to the consumer. The consumer sees all values that the function wrote before. `rows` is the
  /// number of rows of the batch: either one number for all arrays, or one number for each array. The batch then has
  /// the first `rows` rows of each array. Without `rows`, the batch has all rows. Throws Error (usage) if an array has
  /// fewer rows than `rows`, or if the draft is empty or was already pushed.
  template <std::integral... Rows>
    requires(sizeof...(Rows) <= 1 || sizeof...(Rows) == Traits::size)
  void push(Rows... rows) {
    push_filled(detail::FilledRows::all, rows...);
  }

  /// As push(), but the function has filled only the rows Producer::rows_here(rows) of each array. On another node, the
  /// producer with the same index has filled the others. Calls that divide the rows evenly among all ranks read exactly
  /// these rows. Every other use of the values is an error (usage) in the master: broadcasts, index lists, calls on some
  /// ranks or with weights, and reading or writing the batch in the program.
  template <std::integral... Rows>
    requires(sizeof...(Rows) <= 1 || sizeof...(Rows) == Traits::size)
  void push_here(Rows... rows) {
    push_filled(detail::FilledRows::rows_here, rows...);
  }

 private:
  template <std::integral... Rows>
  void push_filled(detail::FilledRows filled, Rows... rows) {
    const std::array<std::int64_t, sizeof...(Rows)> numbers{static_cast<std::int64_t>(rows)...};
    detail::push_draft(*producer_, raw_.batch, numbers, filled);
    raw_ = {};
  }

  detail::ProducerCore* producer_;
  detail::RawDraft raw_;
};

namespace detail {

/// Derives the batch and the thunk from the type of a producer's function.
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

#pragma once

// Options of loader(), and the place of a batch in the order of a loader.

#include <cstdint>
#include <optional>

#include "syncrun/queue.hpp"

namespace syncrun::libtorch {

/// The place of a batch in the order of a loader. A checkpoint can have its two numbers.
struct LoaderPosition {
  std::int64_t epoch = 0;  ///< The epoch, from 0.
  std::int64_t batch = 0;  ///< The batch in the epoch, from 0.
  friend bool operator==(const LoaderPosition&, const LoaderPosition&) = default;
};

/// What a loader does with the last batch of an epoch if there are fewer rows left than a batch has.
enum class LastBatch : std::uint8_t {
  keep,  ///< The batch has fewer rows.
  drop   ///< There is no such batch.
};

/// Options of loader().
struct LoaderOptions {
  /// The number of examples of a batch, on all ranks together.
  std::int64_t batch_rows = 1;
  /// The number of processes that build batches. The batches and their order do not depend on it. A data set that
  /// gives no example by its index (a stream, or a stateful data set) requires 1.
  int processes = 1;
  /// The seed of the order and of the random numbers of transforms.
  std::uint64_t seed = 0;
  LastBatch last = LastBatch::keep;  ///< What happens to a last batch with fewer rows.
  /// The first batch: a position of an earlier loader with the same options.
  LoaderPosition start{};
  /// The number of examples of an epoch, for a data set whose size() is empty. Left out: its size. A stateful data set
  /// ends its epochs itself.
  std::optional<std::int64_t> epoch_rows{};
  /// The most rows that a batch can have, at least batch_rows: the memory of a batch has room for them. Left out: the rows
  /// of the first batch, or batch_rows if that is more. A data set that makes batches of its own may have larger ones later.
  std::optional<std::int64_t> most_rows{};
  /// Options of the queue. Its order is always BatchOrder::round_robin. With ProducerPlaces::every_node, each node
  /// builds all rows of a batch, from its own files.
  QueueOptions queue{};
};

}  // namespace syncrun::libtorch

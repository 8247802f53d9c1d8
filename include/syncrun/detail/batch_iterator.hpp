#pragma once

// The iterator of what returns batches until there are no more: BatchQueue, and the Loader for LibTorch.

#include <cstddef>
#include <iterator>
#include <optional>

namespace syncrun::detail {

/// An input iterator over what `source.next()` returns.
template <class Source, class Batch>
class BatchIterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using iterator_concept = std::input_iterator_tag;
  BatchIterator() = default;
  /// Takes the first batch, as next() does.
  explicit BatchIterator(Source& source) : source_(&source), batch_(source.next()) {}
  /// The present batch.
  const Batch& operator*() const noexcept { return *batch_; }
  /// A member of the present batch.
  const Batch* operator->() const noexcept { return &*batch_; }
  BatchIterator& operator++() {
    batch_.reset();  // before next(), because the producer may wait for the memory of this batch
    batch_ = source_->next();
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const BatchIterator& at, std::default_sentinel_t) noexcept { return !at.batch_; }

 private:
  Source* source_ = nullptr;
  std::optional<Batch> batch_;
};

}  // namespace syncrun::detail

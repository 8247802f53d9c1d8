#pragma once

// Rows of the data set where the workers can see them: in shared memory, or scattered to the devices.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/mnist/digits.hpp"

namespace mnist {

namespace sr = syncrun;

/// Rows in shared memory, mapped by every worker: pixels from 0 to 1, labels, and the ids 0, 1, 2, ... that
/// name them.
template <class T>
struct SharedRows {
  sr::Data<T, 2> images;  // [rows, pixels]
  sr::Data<std::uint8_t, 1> labels;
  sr::Data<std::int64_t, 1> ids;

  SharedRows(sr::Session& session, const Digits& digits, const LabeledRows& rows)
      : images(session.data<T, 2>({rows.rows(), digits.pixels()})),
        labels(session.data(rows.labels)),
        ids(session.data<std::int64_t, 1>({rows.rows()})) {
    demos::scale_pixels<T>(rows.pixels, digits.brightest(), images.write().span());
    const auto writing = ids.write();
    std::iota(writing.begin(), writing.end(), 0);
  }

  std::int64_t rows() const { return labels.rows(); }
};

/// The same rows on the devices, one shard on each, and where in the shards a row of the whole is.
template <class T>
class Shards {
 public:
  sr::Shared<T, 2> images;
  sr::Shared<std::uint8_t, 1> labels;
  sr::Shared<std::int64_t, 1> ids;

  explicit Shards(sr::Session& session)
      : images(session.shared<T, 2>("images")),
        labels(session.shared<std::uint8_t, 1>("labels")),
        ids(session.shared<std::int64_t, 1>("ids")),
        selected_(static_cast<std::size_t>(session.world_size())) {}

  void scatter(const SharedRows<T>& rows) {
    images.scatter(rows.images);
    labels.scatter(rows.labels);
    ids.scatter(rows.ids);
    begins_.assign(1, 0);
    for (int rank = 0; rank + 1 < static_cast<int>(selected_.size()); ++rank) {
      begins_.push_back(begins_.back() + images.shape(rank).rows());
    }
  }

  /// The rows of a batch by rank, as positions in that rank's shard: an uneven share, or none, for some. The
  /// lists keep their memory and are valid until the next call.
  const std::vector<std::vector<std::int64_t>>& select(std::span<const std::int64_t> batch) {
    for (auto& positions : selected_) positions.clear();
    for (const std::int64_t row : batch) {
      const auto next = std::upper_bound(begins_.begin(), begins_.end(), row);
      const auto rank = static_cast<std::size_t>(next - begins_.begin()) - 1;
      selected_[rank].push_back(row - begins_[rank]);
    }
    return selected_;
  }

 private:
  std::vector<std::int64_t> begins_;  // row of the whole at which each rank's shard begins
  std::vector<std::vector<std::int64_t>> selected_;
};

}  // namespace mnist

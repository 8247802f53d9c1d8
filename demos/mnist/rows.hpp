#pragma once

// Rows of the data set where the workers can read them: in shared memory, or scattered to the devices.

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "demos/mnist/digits.hpp"

namespace mnist {

namespace sr = syncrun;

/// Rows in shared memory, which every worker maps: pixels from 0 to 1, labels, and the ids 0, 1, 2, ... of the rows.
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

/// The same rows on the devices, one shard on each device. Finds the shard that holds a row, and the row's position in
/// it.
template <class T>
class Shards {
 public:
  sr::Shared<T, 2> images;
  sr::Shared<std::uint8_t, 1> labels;
  sr::Shared<std::int64_t, 1> ids;

  Shards(sr::Session& session, const SharedRows<T>& rows)
      : images(session.shared<T, 2>("images")),
        labels(session.shared<std::uint8_t, 1>("labels")),
        ids(session.shared<std::int64_t, 1>("ids")),
        selected_(static_cast<std::size_t>(session.world_size())) {
    images.scatter(rows.images);
    labels.scatter(rows.labels);
    ids.scatter(rows.ids);
    for (int rank = 0; rank + 1 < static_cast<int>(selected_.size()); ++rank) {
      begins_.push_back(begins_.back() + images.shape(rank).rows());
    }
  }

  /// The rows of a batch, as one list for each rank with positions in the shard of that rank. The lists may have
  /// different lengths and may be empty. They are valid until the next call, which reuses their memory.
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
  std::vector<std::int64_t> begins_{0};  // for each rank, the number of the first row of its shard
  std::vector<std::vector<std::int64_t>> selected_;
};

}  // namespace mnist

#include "worker/devices/shared_outputs.hpp"

#include <algorithm>
#include <vector>

#include "common/arrays/reduce.hpp"
#include "common/arrays/rows.hpp"

namespace syncrun::detail {

void reduce_shared_output(const Segment& segment, int rank, const OutputReduction& what) {
  const auto own = std::find(what.ranks.begin(), what.ranks.end(), rank);
  if (own == what.ranks.end()) return;
  const RowRange part = share_of(static_cast<std::int64_t>(what.elements), static_cast<std::int64_t>(what.ranks.size()),
                                 own - what.ranks.begin());
  const std::size_t skipped_bytes = static_cast<std::size_t>(part.begin) * size_of(what.dtype);
  std::vector<const void*> sources;
  sources.reserve(what.offsets.size());
  for (const auto offset : what.offsets) sources.push_back(segment.at(offset) + skipped_bytes);
  void* to = const_cast<void*>(sources.front());
  reduce_elements(what.dtype, what.reduction, {&to, 1}, sources, what.weights, static_cast<std::size_t>(part.count()));
}

}  // namespace syncrun::detail

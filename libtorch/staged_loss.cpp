#include "libtorch/step_scope.hpp"
#include "syncrun/error.hpp"
#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch::detail {

KeptSlice& KeptSlices::add(int slice) {
  if (slice == 0) slices_.clear();  // those of a step that failed
  return slices_.emplace_back(KeptSlice{{}, {}, step_scope()->comm});
}

KeptSlice& KeptSlices::next(int slice) {
  if (slice == 0) next_ = 0;
  if (next_ < slices_.size() && !slices_[next_].later.empty()) return slices_[next_++];
  throw Error(ErrorKind::usage,
              "a stage of the step has no slice of the stage before it, expected the same rows in all stages");
}

void KeptSlices::note_range(std::size_t stage, const ParameterRange& range) {
  if (ranges_.size() <= stage) ranges_.resize(stage + 1);
  ranges_[stage] = range;
}

std::optional<ParameterRange> KeptSlices::changed(std::size_t stage, int slice) const {
  if (slice != 0) return ParameterRange{};
  if (stage == 0) return std::nullopt;
  return ranges_[stage - 1];
}

}  // namespace syncrun::libtorch::detail

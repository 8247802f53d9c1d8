#include "syncrun/torch/weighted_loss.hpp"

#include <c10/util/StringUtil.h>

#include <utility>

#include "syncrun/error.hpp"

namespace syncrun::libtorch {

namespace {

::torch::Tensor checked_count(const ::torch::Tensor& count) {
  if (count.defined() && count.numel() == 1) return count.detach();
  throw Error(ErrorKind::usage, "WeightedLoss: the count is " +
                                    (count.defined() ? "a tensor of shape " + c10::str(count.sizes())
                                                     : std::string("an undefined tensor")) +
                                    ", expected one number: how much of the rows counts. Apply .sum() to weights");
}

::torch::Tensor number_beside(const ::torch::Tensor& sum, double count) {
  if (!sum.defined())
    throw Error(ErrorKind::usage, "WeightedLoss: the sum is an undefined tensor, expected one number");
  return ::torch::full({}, count, ::torch::TensorOptions().dtype(::torch::kFloat64).device(sum.device()));
}

}  // namespace

WeightedLoss::WeightedLoss(::torch::Tensor sum, const ::torch::Tensor& count)
    : sum(std::move(sum)), count(checked_count(count)) {}
WeightedLoss::WeightedLoss(::torch::Tensor sum, double count)
    : sum(std::move(sum)), count(number_beside(this->sum, count)) {}

::torch::Tensor WeightedLoss::mean() const { return sum / count.to(sum.scalar_type()); }

double WeightedMean::value() const {
  if (count.value() != 0) return sum.value() / count.value();
  throw Error(
      ErrorKind::usage,
      "the counts of the loss on all ranks add up to 0, expected more: nothing in these rows counts, for example "
      "because all targets are ignored. If it is the loss of a step, the parameters are as before");
}

}  // namespace syncrun::libtorch

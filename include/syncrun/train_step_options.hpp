#pragma once

// The options of a training step.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace syncrun {

/// Which part of the parameters and of a rule's state each rank holds, and which part of the update it does.
enum class StepForm : std::uint8_t {
  replicated,  ///< All: all_reduce of the gradient, then the update.
  sharded,     ///< Its share: reduce_scatter of the gradient, update of the share, all_gather of parameters.
  /// Also its own part of the parameters and of the gradient, and nothing else: the variables have other values on each
  /// rank. The body has a Comm&, runs on every rank in every slice, gathers what it needs of the parameters, and adds
  /// this rank's part of the reduced gradient to `gradient`, which is zero before the first slice. The step does not
  /// reduce it. Groups are positions in a rank's own part. Not with GradientReady. libtorch::ShardedReplica has such
  /// bodies.
  fully_sharded
};

/// A part of the parameters of a train step: the elements [begin, end). Elements that are in no group have the
/// hyperparameters of the rule.
struct ParameterGroup {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  /// The factor of the rule's learning_rate. 0: the elements are frozen. Neither they nor their state change, and they
  /// do not count in the norm of the gradient.
  double learning_rate = 1;
  /// The factor of the rule's weight_decay and decoupled_weight_decay.
  double weight_decay = 1;
  /// In place of the rule's momentum, from 0 to below 1. An error if the rule has none.
  std::optional<double> momentum{};
  std::optional<double> beta1{};  ///< The same for beta1.
  std::optional<double> beta2{};  ///< The same for beta2.
};

/// What a step does if the norm of its gradient is not finite.
enum class NonFiniteGradient : std::uint8_t {
  /// The step throws Error (function), and the parameters are as before. On a CUDA device, it skips the update instead,
  /// because the host does not wait for the norm.
  error,
  skip  ///< The step skips the update. TrainStep::gradient_norm() tells.
};

/// The elements [begin, end) of a vector of parameters.
struct ParameterRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// Options of a training step.
struct TrainStepOptions {
  StepForm form = StepForm::replicated;  ///< How the state of the rule is divided among the ranks.
  /// The name of the step in error messages. Empty: the name of the body.
  std::string_view name{};
  /// The size of a bucket in bytes. A bucket is a part of the gradient. If the body takes a GradientReady&, the ranks
  /// average finished buckets while the body computes the rest of the gradient. 0: the ranks average the whole gradient
  /// after the body has returned. Between GPUs with NVLink, the copy engines of the GPUs move buckets that are larger
  /// than 1 MiB and at most 16 MiB. For these buckets, the multiprocessors only add the values. So more multiprocessors
  /// are free for the body. Kernels move all other buckets. Kernels also move the last bucket, whatever its size.
  std::size_t bucket_bytes = std::size_t{16} << 20U;
  /// Parts of the parameters with other hyperparameters, in ascending order and without overlaps.
  std::vector<ParameterGroup> groups{};
  /// The largest norm of the whole gradient, over all parameters that are not frozen. A larger gradient is scaled down
  /// to it before the update. The norm of the last step is TrainStep::gradient_norm(). If it is not finite, see
  /// `non_finite`. 0: no clipping.
  double clip_norm = 0;
  /// Only for a step with clip_norm. The norm is then computed: clip_norm can be infinite. A step that skips its update
  /// counts in TrainStep::steps().
  NonFiniteGradient non_finite = NonFiniteGradient::error;
  /// The only elements that the step trains, for example those of one of several networks. Other steps, also with other
  /// rules, can train the rest of the parameters. The body reads all parameters, but its gradient has only these elements,
  /// and so have the state of the rule and the gradient's norm. Groups are within the range.
  std::optional<ParameterRange> range{};
};

}  // namespace syncrun

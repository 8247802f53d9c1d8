#pragma once

// A list that says which of cuDNN's plans computes each convolution. It can be written as text and read again. Plans
// are chosen by timing, so two runs may choose different plans, and plans differ in how they round. A run that takes
// over the choices of another run ends with the same bits. This code needs neither CUDA nor cuDNN.
//
// The text of a list has one entry per line, in this order:
//
//   syncrun-resnet plans 1
//   gpu NVIDIA H200
//   multiprocessors 132
//   cudnn 9.19.0
//   cudnn-frontend 1.32.0
//   convolution pass=forward type=bfloat16 layout=nhwc epilogue=none rows=256 in=64 out=64 size=56 kernel=3 stride=1
//     padding=1 plan=eng31_k2=4_k14=1 workspace=0                              (one line; any number of them, sorted)
//   end

#include <compare>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

#include "demos/resnet/network/conv_shape.hpp"

namespace resnet {

/// The largest workspace of a plan, in bytes.
inline constexpr std::size_t kMostWorkspaceBytes = std::size_t{256} << 20;

/// The GPU and the versions that a list of plans is for. Plans of the same name give the same bits only if all of these
/// are the same.
struct PlanPlace {
  std::string gpu{};  // as CUDA names it
  std::size_t multiprocessors = 0;
  std::string cudnn{};     // versions: "9.19.0"
  std::string frontend{};  // of cudnn-frontend
  bool operator==(const PlanPlace&) const = default;
};

/// "NVIDIA H200 (132 multiprocessors), cuDNN 9.19.0, cudnn-frontend 1.32.0".
std::string describe(const PlanPlace& place);

/// The computation of a plan. Channels come last in arrays ("nhwc"). No other operation is fused with the convolution
/// (epilogue "none").
struct PlanKey {
  ConvPass pass;
  CudaMath math;
  ConvShape shape;
  auto operator<=>(const PlanKey&) const = default;
};

/// A plan: cuDNN's engine with its knobs, as cudnn-frontend names them ("eng31_k2=4_k14=1"), and the size of its
/// workspace.
struct PlanChoice {
  std::string name;
  std::size_t workspace_bytes;
  bool operator==(const PlanChoice&) const = default;
};

/// Returns whether a plan of this name can be written as text. The name may have letters, digits, '_', '=', '-', '.'
/// and ':', and at most 500 characters.
bool is_plan_name(std::string_view name);

/// A text is not a list of plans. The message names the line, what was expected and what was found.
class PlansError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ConvPlans {
 public:
  explicit ConvPlans(PlanPlace place = {}) : place_(std::move(place)) {}

  /// Reads a text that text() has written. Throws PlansError if the text has another version of the format, a line is
  /// incomplete or not as expected, a convolution is listed twice, or `end` is missing.
  static ConvPlans parse(std::string_view text);
  std::string text() const;

  const PlanPlace& place() const noexcept { return place_; }
  std::size_t size() const noexcept { return choices_.size(); }
  const std::map<PlanKey, PlanChoice>& choices() const noexcept { return choices_; }

  /// Null if there is no such plan.
  const PlanChoice* find(const PlanKey& key) const;
  /// Sets the plan of a convolution, and replaces the plan that it had. Throws PlansError if the name of the plan
  /// cannot be written as text.
  void set(const PlanKey& key, const PlanChoice& choice);
  /// Takes over choices for convolutions that this list does not have. Both lists must be for the same place.
  void fill_from(const ConvPlans& other);

  bool operator==(const ConvPlans&) const = default;

 private:
  PlanPlace place_;
  std::map<PlanKey, PlanChoice> choices_;
};

/// The number of convolutions that are in both lists with different plans.
std::size_t count_differences(const ConvPlans& one, const ConvPlans& other);

}  // namespace resnet

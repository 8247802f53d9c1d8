#pragma once

// Which of cuDNN's plans computes each convolution, as a list that can be written down and read again. Plans are chosen by
// timing, so that two runs may choose differently, and plans differ in how they round: a run that takes the choices of
// another one ends with the same bits. This part needs neither CUDA nor cuDNN.
//
// The text of a list, one entry to a line, in this order:
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

#include "demos/resnet/conv_shape.hpp"

namespace resnet {

/// The most that a plan may work in, in bytes.
inline constexpr std::size_t kMostWorkspaceBytes = std::size_t{256} << 20;

/// What a list of plans is for: only where all of it is the same, a plan of the same name gives the same bits.
struct PlanPlace {
  std::string gpu{};  // as CUDA names it
  std::size_t multiprocessors = 0;
  std::string cudnn{};     // versions: "9.19.0"
  std::string frontend{};  // of cudnn-frontend
  bool operator==(const PlanPlace&) const = default;
};

/// "NVIDIA H200 (132 multiprocessors), cuDNN 9.19.0, cudnn-frontend 1.32.0".
std::string describe(const PlanPlace& place);

/// What a plan computes. Arrays lie channels last ("nhwc"), and nothing is fused to a convolution (epilogue "none").
struct PlanKey {
  ConvPass pass;
  CudaMath math;
  ConvShape shape;
  auto operator<=>(const PlanKey&) const = default;
};

/// A plan: cuDNN's engine and its knobs, as cudnn-frontend names them ("eng31_k2=4_k14=1"), and the memory that it works in.
struct PlanChoice {
  std::string name;
  std::size_t workspace_bytes;
  bool operator==(const PlanChoice&) const = default;
};

/// Whether a plan of that name can be written down: letters, digits, '_', '=', '-', '.' and ':', 500 at most.
bool is_plan_name(std::string_view name);

/// A text that is no list of plans: the line, what was expected and what was found.
class PlansError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ConvPlans {
 public:
  explicit ConvPlans(PlanPlace place = {}) : place_(std::move(place)) {}

  /// Reads what text() has written. Throws PlansError: another version of the format, a line that is incomplete or of
  /// something else, a convolution twice, or no `end`.
  static ConvPlans parse(std::string_view text);
  std::string text() const;

  const PlanPlace& place() const noexcept { return place_; }
  std::size_t size() const noexcept { return choices_.size(); }
  const std::map<PlanKey, PlanChoice>& choices() const noexcept { return choices_; }

  /// Null if there is no such plan.
  const PlanChoice* find(const PlanKey& key) const;
  /// In the place of what was there. Throws PlansError where its name cannot be written down.
  void set(const PlanKey& key, const PlanChoice& choice);
  /// Takes over choices for convolutions that this list does not have. Both are for the same place.
  void fill_from(const ConvPlans& other);

  bool operator==(const ConvPlans&) const = default;

 private:
  PlanPlace place_;
  std::map<PlanKey, PlanChoice> choices_;
};

/// How many convolutions are in both lists, with different plans.
std::size_t count_differences(const ConvPlans& one, const ConvPlans& other);

}  // namespace resnet

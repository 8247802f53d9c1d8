#pragma once

// A module that grows, its changes, and the same training in this process by an optimizer of LibTorch.

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/libtorch/models.hpp"

namespace growing {

using models::lt::tensor;
namespace nn = torch::nn;

constexpr std::uint64_t kSeed = 7;
constexpr std::int64_t kStepCount = 50;
constexpr std::int64_t kWidth = 7;

struct Growing : nn::Module {
  Growing() : first(models::kInputs, kWidth), last(kWidth, 1) {
    register_module("first", first);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = torch::tanh(first(x));
    if (middle) y = torch::tanh(middle(y)) + offset;
    return last(y).squeeze(1);
  }
  nn::Linear first, last, middle{nullptr};
  torch::Tensor offset;
};

/// The groups of the biases, which do not decay.
inline std::vector<sr::ParameterGroup> undecayed(sr::Session& session,
                                                 const sr::Replicated<models::lt::Replica<Growing>>& net) {
  std::vector<sr::ParameterGroup> groups;
  for (const auto& part : models::lt::parts(session, net)) {
    if (part.dimensions < 2) groups.push_back({.begin = part.begin, .end = part.end, .weight_decay = 0});
  }
  return groups;
}

inline torch::Tensor loss(Growing& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  return models::mean_square(net.forward(tensor(x)), tensor(y));
}

inline void require_gradient(nn::Module& module, bool on) {
  for (auto& each : module.parameters()) each.requires_grad_(on);
}
inline void freeze_first(Growing& net) { require_gradient(*net.first, false); }
inline void freeze_last_instead(Growing& net) {
  require_gradient(*net.first, true);
  require_gradient(*net.last, false);
}
/// The new layer has the names and shapes of the old one.
inline void replace_last(Growing& net) {
  torch::manual_seed(3);
  net.last = net.replace_module("last", nn::Linear(kWidth, 1));
}
/// With a buffer.
inline void add_middle(Growing& net, std::int64_t width, double offset) {
  torch::manual_seed(4);
  net.middle = net.register_module("middle", nn::Linear(kWidth, width));
  net.offset = net.register_buffer("offset", torch::full({width}, offset));
}

/// Which change comes before a step: its number, or -1.
inline int change_before(std::int64_t step) {
  const std::vector<std::int64_t> steps{4, 9, 18, 30};
  const auto at = std::find(steps.begin(), steps.end(), step);
  return at == steps.end() ? -1 : static_cast<int>(at - steps.begin());
}

inline std::vector<std::int64_t> batch_of(std::int64_t step) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < 9 + step % 5; ++i) rows.push_back((7 * step + 3 * i) % 40);
  return rows;
}

/// An optimizer of LibTorch. Biases of the construction have no weight decay. New parameters are in the group with decay.
template <class Optimizer, class Options>
std::vector<double> train_serially(const Options& options, double clip_norm, const torch::Tensor& x,
                                   const torch::Tensor& y) {
  torch::manual_seed(kSeed);
  Growing net;
  auto without_decay = options;
  without_decay.weight_decay(0);
  Optimizer optimizer({{{net.first->weight, net.last->weight}, std::make_unique<Options>(options)},
                       {{net.first->bias, net.last->bias}, std::make_unique<Options>(without_decay)}},
                      options);
  std::vector<double> losses;
  for (std::int64_t i = 0; i < kStepCount; ++i) {
    for (auto& each : net.parameters()) each.mutable_grad().reset();  // an optimizer leaves out what has no gradient
    switch (change_before(i)) {
      case 0: freeze_first(net); break;
      case 1: freeze_last_instead(net); break;
      case 2:
        replace_last(net);
        for (auto& each : net.last->parameters()) optimizer.param_groups()[0].params().push_back(each);
        break;
      case 3:
        add_middle(net, kWidth, 0.1);
        for (auto& each : net.middle->parameters()) optimizer.param_groups()[0].params().push_back(each);
        break;
      default: break;
    }
    const auto rows = torch::tensor(batch_of(i));
    const auto value = models::mean_square(net.forward(x.index_select(0, rows)), y.index_select(0, rows));
    value.backward();
    std::vector<torch::Tensor> trained;
    for (const auto& each : net.parameters()) {
      if (each.requires_grad()) trained.push_back(each);
    }
    torch::nn::utils::clip_grad_norm_(trained, clip_norm);
    optimizer.step();
    losses.push_back(value.template item<double>());
  }
  return losses;
}

}  // namespace growing

// What tells a worker that a CUDA graph of a step is for other modes of the module.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "tests/libtorch/models.hpp"

namespace {

namespace modes {

using models::lt::detail::BoundModule;

/// So many modules that their bits do not fit into one word.
class LibtorchModes : public testing::Test {
 protected:
  std::vector<std::uint64_t> modes() const {
    const auto now = bound_.modes();
    return {now.begin(), now.end()};
  }

  std::shared_ptr<torch::nn::SequentialImpl> net_ = [] {
    auto net = std::make_shared<torch::nn::SequentialImpl>();
    for (int i = 0; i < 40; ++i) net->push_back(torch::nn::Linear(2, 2));
    return net;
  }();
  BoundModule bound_{net_};
};

TEST_F(LibtorchModes, DifferForEachModuleAndEachParameter) {
  std::set<std::vector<std::uint64_t>> seen{modes()};
  const auto before = modes();
  for (const auto& module : net_->modules()) {
    if (module == net_) continue;
    module->eval();
    EXPECT_TRUE(seen.insert(modes()).second);
    module->train();
    EXPECT_EQ(modes(), before) << "a graph of the former mode is found again";
  }
  for (torch::Tensor& parameter : net_->parameters()) {
    parameter.requires_grad_(false);
    EXPECT_TRUE(seen.insert(modes()).second);
    parameter.requires_grad_(true);
  }
  EXPECT_EQ(modes(), before);
  EXPECT_EQ(seen.size(), 1U + 40U + 80U);
}

TEST_F(LibtorchModes, AreThoseOfTheChangedModuleAfterAChange) {
  bound_.begin_repeated_change();
  const auto added = net_->register_module("added", torch::nn::Linear(2, 2));
  bound_.propose_change();
  bound_.accept_change();
  bound_.end_change();
  const auto before = modes();
  added->eval();
  EXPECT_NE(modes(), before);
}

}  // namespace modes

}  // namespace

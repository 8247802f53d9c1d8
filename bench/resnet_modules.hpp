#pragma once

// ResNet-50 of LibTorch's modules, as bench/comparators/torch_resnet.py has it in Python.
//
// Source: K. He et al., "Deep Residual Learning for Image Recognition", 2015, table 1, with the stride in the second
// convolution of a block (version 1.5).

#include <array>
#include <cstdint>
#include <syncrun/torch.hpp>

namespace resnet_modules {

namespace nn = torch::nn;

inline constexpr std::int64_t kClasses = 1000;
inline constexpr std::int64_t kSide = 224;

inline nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t size, std::int64_t stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

class Bottleneck : public nn::Module {
 public:
  Bottleneck(std::int64_t in, std::int64_t width, std::int64_t out, std::int64_t stride)
      : conv1_(register_module("conv1", convolution(in, width, 1))),
        bn1_(register_module("bn1", nn::BatchNorm2d(width))),
        conv2_(register_module("conv2", convolution(width, width, 3, stride))),
        bn2_(register_module("bn2", nn::BatchNorm2d(width))),
        conv3_(register_module("conv3", convolution(width, out, 1))),
        bn3_(register_module("bn3", nn::BatchNorm2d(out))) {
    if (stride != 1 || in != out)
      downsample_ =
          register_module("downsample", nn::Sequential(convolution(in, out, 1, stride), nn::BatchNorm2d(out)));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto shortcut = downsample_ ? downsample_->forward(x) : x;
    auto y = bn1_(conv1_(x));
    y = bn2_(conv2_(torch::relu_(y)));
    y = bn3_(conv3_(torch::relu_(y))) + shortcut;
    return torch::relu_(y);
  }

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
  nn::Conv2d conv3_;
  nn::BatchNorm2d bn3_;
  nn::Sequential downsample_{nullptr};
};

/// Holds a batch of random images too, so that no step waits for its data.
class ResNet50 : public nn::Module {
 public:
  explicit ResNet50(std::int64_t images) {
    at::globalContext().setBenchmarkCuDNN(true);
    layers_->push_back(convolution(3, 64, 7, 2));
    layers_->push_back(nn::BatchNorm2d(64));
    layers_->push_back(nn::ReLU(nn::ReLUOptions(true)));
    layers_->push_back(nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
    std::int64_t channels = 64;
    constexpr std::array kBlocks{3, 4, 6, 3};
    for (std::size_t stage = 0; stage < kBlocks.size(); ++stage) {
      const std::int64_t width = std::int64_t{64} << stage;
      for (int block = 0; block < kBlocks[stage]; ++block) {
        layers_->push_back(Bottleneck(channels, width, 4 * width, stage > 0 && block == 0 ? 2 : 1));
        channels = 4 * width;
      }
    }
    layers_->push_back(nn::AdaptiveAvgPool2d(1));
    layers_->push_back(nn::Flatten());
    layers_->push_back(nn::Linear(channels, kClasses));
    register_module("layers", layers_);
    images_ = register_buffer("images", torch::randn({images, 3, kSide, kSide}));
    syncrun::libtorch::to_channels_last(*this);
  }
  /// The scores of the first images.
  torch::Tensor forward(std::int64_t images) { return layers_->forward(images_.narrow(0, 0, images)); }

 private:
  nn::Sequential layers_;
  torch::Tensor images_;
};

}  // namespace resnet_modules

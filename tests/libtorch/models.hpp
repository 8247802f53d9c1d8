#pragma once

// Small modules of LibTorch for the tests, their losses, and the rows that they learn.

#include <ATen/record_function.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string_view>
#include <syncrun/torch.hpp>
#include <vector>

#include "common/code/optional_library.hpp"
#include "tests/support/on_workers.hpp"

namespace models {

namespace nn = torch::nn;
namespace lt = syncrun::libtorch;

constexpr std::int64_t kInputs = 6;

/// Two layers. Learns a number for each row.
struct Mlp : nn::Module {
  explicit Mlp(std::int64_t width = 9) : first(kInputs, width), last(width, 1) {
    register_module("first", first);
    register_module("last", last);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(torch::tanh(first(x))).squeeze(1); }

  nn::Linear first;
  nn::Linear last;
};

inline torch::Tensor mean_square(const torch::Tensor& output, const torch::Tensor& y) {
  return torch::mse_loss(output, y);
}
inline torch::Tensor mlp_loss(Mlp& net, sr::Scattered<const float, 2> x, sr::Scattered<const float, 1> y) {
  return mean_square(net.forward(lt::tensor(x)), lt::tensor(y));
}

/// How many arrays LibTorch converts to another type on this thread, during the lifetime of this object.
class ConversionCount {
 public:
  ConversionCount() : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&see))) { count_ = 0; }
  ~ConversionCount() { at::removeCallback(handle_); }
  ConversionCount(const ConversionCount&) = delete;
  ConversionCount& operator=(const ConversionCount&) = delete;
  int count() const { return count_; }

 private:
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function) {
    if (std::string_view(function.name()) == "aten::_to_copy") ++count_;
    return nullptr;
  }

  inline static thread_local int count_ = 0;
  at::CallbackHandle handle_;
};

constexpr std::int64_t kContext = 8;
constexpr std::int64_t kVocabulary = 17;

/// A linear layer whose weight is a tensor of another module.
struct Output : nn::Module {
  explicit Output(const torch::Tensor& tied) : weight(register_parameter("weight", tied)) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight); }

  torch::Tensor weight;
};

/// One block of a transformer whose output layer is the embedding, so two names are one tensor.
struct Transformer : nn::Module {
  explicit Transformer(std::int64_t width, std::int64_t heads)
      : heads(heads),
        token(kVocabulary, width),
        place(kContext, width),
        norm1(nn::LayerNormOptions({width})),
        qkv(width, 3 * width),
        projection(width, width),
        norm2(nn::LayerNormOptions({width})),
        up(width, 2 * width),
        down(2 * width, width) {
    register_module("token", token);
    register_module("place", place);
    register_module("norm1", norm1);
    register_module("qkv", qkv);
    register_module("projection", projection);
    register_module("norm2", norm2);
    register_module("up", up);
    register_module("down", down);
    out = register_module("out", std::make_shared<Output>(token->weight));
  }
  torch::Tensor attend(const torch::Tensor& x) {
    const auto rows = x.size(0);
    const auto width = x.size(2);
    const auto parts = qkv(x).split(width, 2);
    const auto head = [&](const torch::Tensor& t) {
      return t.reshape({rows, kContext, heads, width / heads}).transpose(1, 2);
    };
    const auto mask = torch::full({kContext, kContext}, -1e9, x.options()).triu(1);
    const double scale = 1 / std::sqrt(static_cast<double>(width / heads));
    const auto weights =
        torch::softmax(torch::matmul(head(parts[0]), head(parts[1]).transpose(2, 3)) * scale + mask, 3);
    return projection(torch::matmul(weights, head(parts[2])).transpose(1, 2).reshape({rows, kContext, width}));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    auto x = token(ids) + place(torch::arange(kContext, ids.options()));
    x = x + attend(norm1(x));
    x = x + down(torch::gelu(up(norm2(x))));
    return out->forward(x);
  }

  std::int64_t heads;
  nn::Embedding token, place;
  nn::LayerNorm norm1;
  nn::Linear qkv, projection;
  nn::LayerNorm norm2;
  nn::Linear up, down;
  std::shared_ptr<Output> out;
};

/// The loss of the next token. A row has one token more than the context.
inline torch::Tensor next_token_loss(Transformer& net, const torch::Tensor& rows) {
  const auto ids = rows.to(torch::kInt64);
  const auto logits = net.forward(ids.narrow(1, 0, kContext));
  return torch::cross_entropy_loss(logits.reshape({-1, kVocabulary}), ids.narrow(1, 1, kContext).reshape(-1));
}
inline torch::Tensor transformer_loss(Transformer& net, sr::Scattered<const std::uint8_t, 2> rows) {
  return next_token_loss(net, lt::tensor(rows));
}

constexpr std::int64_t kImageSide = 6;
constexpr std::int64_t kImageChannels = 3;

/// Two convolutions, the second in two groups, BatchNorm and a linear layer. Learns a number for each image.
struct Convnet : nn::Module {
  explicit Convnet(torch::MemoryFormat format)
      : first(nn::Conv2dOptions(kImageChannels, 8, 3).padding(1).bias(false)),
        norm(8),
        second(nn::Conv2dOptions(8, 4, 3).stride(2).groups(2)),
        last(4 * 2 * 2, 1) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
    register_module("last", last);
    if (format == torch::MemoryFormat::ChannelsLast) lt::to_channels_last(*this);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = torch::tanh(second(torch::tanh(norm(first(x)))));
    return last(y.flatten(1)).squeeze(1);
  }

  nn::Conv2d first;
  nn::BatchNorm2d norm;
  nn::Conv2d second;
  nn::Linear last;
};

/// The images are [height, width, channels].
inline torch::Tensor image_loss(Convnet& net, sr::Scattered<const float, 4> x, sr::Scattered<const float, 1> y) {
  return mean_square(net.forward(lt::tensor(x).permute({0, 3, 1, 2})), lt::tensor(y));
}

/// Images of waves, and the length of each wave.
struct Images {
  std::vector<float> x;
  std::vector<float> y;
};
inline Images make_images(std::int64_t count) {
  Images images;
  for (std::int64_t image = 0; image < count; ++image) {
    const float frequency = 0.2F + 0.05F * static_cast<float>(image % 23);
    images.y.push_back(frequency);
    for (std::int64_t i = 0; i < kImageSide * kImageSide * kImageChannels; ++i)
      images.x.push_back(std::sin(frequency * static_cast<float>(i / kImageChannels) + static_cast<float>(i % 3)));
  }
  return images;
}

/// Rows for Mlp: a smooth function of the inputs.
struct Samples {
  std::vector<float> x;
  std::vector<float> y;
};
inline Samples make_samples(std::int64_t rows) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  Samples samples;
  for (std::int64_t row = 0; row < rows; ++row) {
    float sum = 0;
    for (std::int64_t i = 0; i < kInputs; ++i) {
      samples.x.push_back(normal(random));
      sum += samples.x.back() * static_cast<float>(i - 2);
    }
    samples.y.push_back(std::sin(sum / 4));
  }
  return samples;
}

/// Tests of modules that learn `kRows` samples, or compute with them in this process.
template <std::int64_t kRows>
class OnSamples : public OnSharedWorkers {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    OnSharedWorkers::SetUp();
  }
  sr::Data<float, 2> x() { return session().data(samples_.x, sr::Shape{kRows, kInputs}); }
  sr::Data<float, 1> y() { return session().data(samples_.y); }
  torch::Tensor all_x() const { return torch::tensor(samples_.x).reshape({kRows, kInputs}); }
  torch::Tensor all_y() const { return torch::tensor(samples_.y); }

 private:
  const Samples samples_ = make_samples(kRows);
};

/// Rows for Transformer: sequences that a rule makes, with some noise.
inline std::vector<std::uint8_t> make_tokens(std::int64_t rows) {
  std::mt19937 random(5);
  std::vector<std::uint8_t> tokens;
  for (std::int64_t row = 0; row < rows; ++row) {
    auto token = static_cast<std::uint32_t>(random() % kVocabulary);
    for (std::int64_t i = 0; i <= kContext; ++i) {
      tokens.push_back(static_cast<std::uint8_t>(token));
      token = (3 * token + 1 + (random() % 8 == 0 ? 1 : 0)) % kVocabulary;
    }
  }
  return tokens;
}

/// Whether errors of LibTorch can name a line of the program here.
inline bool names_lines() {
#if defined(SYNCRUN_HAVE_LIBDW)
  return syncrun::detail::code::OptionalLibrary("libdw.so.1").has_all();
#else
  return false;
#endif
}

}  // namespace models

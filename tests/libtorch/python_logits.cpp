// Loads ResNet-50 and GPT-2 that Python has saved, and compares their outputs with Python's. Then saves them.
// tests/libtorch/weights/python_models.py says how to run it.

#include <torch/script.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <syncrun/syncrun.hpp>
#include <syncrun/torch.hpp>

#include "bench/resnet_modules.hpp"

namespace {

namespace sr = syncrun;
namespace lt = syncrun::libtorch;
namespace nn = torch::nn;

constexpr double kTolerance = 1e-5;  // of the largest output

/// ResNet-50 with the names of torchvision.
struct ResNet : nn::Module {
  ResNet() {
    lt::use_full_float32();
    stem = register_module("conv1", resnet_modules::convolution(3, 64, 7, 2));
    norm = register_module("bn1", nn::BatchNorm2d(64));
    std::int64_t in = 64;
    std::int64_t width = 64;
    for (const int blocks : {3, 4, 6, 3}) {
      nn::Sequential stage;
      for (int i = 0; i < blocks; ++i) {
        stage->push_back(resnet_modules::Bottleneck(in, width, 4 * width, i == 0 && width > 64 ? 2 : 1));
        in = 4 * width;
      }
      stages.push_back(register_module("layer" + std::to_string(stages.size() + 1), stage));
      width *= 2;
    }
    last = register_module("fc", nn::Linear(in, 1000));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(norm(stem(x))), 3, 2, 1);
    for (auto& stage : stages) x = stage->forward(x);
    return last(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }
  nn::Conv2d stem{nullptr};
  nn::BatchNorm2d norm{nullptr};
  std::vector<nn::Sequential> stages;
  nn::Linear last{nullptr};
};

constexpr std::int64_t kWidth = 768;
constexpr std::int64_t kHeads = 12;
constexpr std::int64_t kLayers = 12;

/// A linear layer whose weight is transposed, as GPT-2 of transformers has it.
struct Conv1D : nn::Module {
  Conv1D(std::int64_t in, std::int64_t out) {
    weight = register_parameter("weight", torch::zeros({in, out}));
    bias = register_parameter("bias", torch::zeros({out}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x.matmul(weight) + bias; }
  torch::Tensor weight, bias;
};
struct Attention : nn::Module {
  Attention() {
    inner = register_module("c_attn", std::make_shared<Conv1D>(kWidth, 3 * kWidth));
    outer = register_module("c_proj", std::make_shared<Conv1D>(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = inner->forward(x).split(kWidth, 2);
    const auto heads = [&](std::size_t which) {
      return parts[which].view({x.size(0), x.size(1), kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    auto scores = heads(0).matmul(heads(1).transpose(2, 3)) / std::sqrt(static_cast<double>(kWidth / kHeads));
    const auto later = torch::ones({x.size(1), x.size(1)}, x.options().dtype(torch::kBool)).triu(1);
    scores = scores.masked_fill(later, -INFINITY).softmax(3);
    return outer->forward(scores.matmul(heads(2)).transpose(1, 2).contiguous().view(x.sizes()));
  }
  std::shared_ptr<Conv1D> inner, outer;
};
struct Mixer : nn::Module {
  Mixer() {
    inner = register_module("c_fc", std::make_shared<Conv1D>(kWidth, 4 * kWidth));
    outer = register_module("c_proj", std::make_shared<Conv1D>(4 * kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) { return outer->forward(torch::gelu(inner->forward(x), "tanh")); }
  std::shared_ptr<Conv1D> inner, outer;
};
struct Layer : nn::Module {
  Layer() {
    register_module("ln_1", norm_1);
    attention = register_module("attn", std::make_shared<Attention>());
    register_module("ln_2", norm_2);
    mixer = register_module("mlp", std::make_shared<Mixer>());
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x + attention->forward(norm_1(x));
    return x + mixer->forward(norm_2(x));
  }
  nn::LayerNorm norm_1{nn::LayerNormOptions({kWidth})}, norm_2{nn::LayerNormOptions({kWidth})};
  std::shared_ptr<Attention> attention;
  std::shared_ptr<Mixer> mixer;
};
/// GPT-2 with the names of transformers.
struct Gpt : nn::Module {
  Gpt() {
    auto body = std::make_shared<nn::Module>();
    body->register_module("wte", tokens);
    body->register_module("wpe", places);
    nn::ModuleList list;
    for (std::int64_t i = 0; i < kLayers; ++i) {
      layers.push_back(std::make_shared<Layer>());
      list->push_back(layers.back());
    }
    body->register_module("h", list);
    body->register_module("ln_f", norm);
    register_module("transformer", body);
    // The table of tokens is also the last layer, without a bias.
    auto last = std::make_shared<nn::Module>();
    last->register_parameter("weight", tokens->weight);
    register_module("lm_head", last);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = tokens(x) + places(torch::arange(x.size(1), x.options()));
    for (const auto& layer : layers) y = layer->forward(y);
    return norm(y).matmul(tokens->weight.t());
  }
  nn::Embedding tokens{50257, kWidth}, places{1024, kWidth};
  std::vector<std::shared_ptr<Layer>> layers;
  nn::LayerNorm norm{nn::LayerNormOptions({kWidth})};
};

struct Outputs {
  sr::Gather<float, 2> values;
};
Outputs rows_of(const torch::Tensor& output) {
  const auto rows = output.reshape({output.size(0), -1}).cpu().contiguous();
  return {{std::span<const float>(rows.data_ptr<float>(), static_cast<std::size_t>(rows.numel())),
           sr::Shape{rows.size(0), rows.size(1)}}};
}
using Images = sr::Scattered<const float, 4>;
using Tokens = sr::Scattered<const std::int64_t, 2>;
Outputs resnet_outputs(ResNet& net, Images x) { return rows_of(net.forward(lt::tensor(x))); }
Outputs gpt_outputs(Gpt& net, Tokens x) { return rows_of(net.forward(lt::tensor(x))); }
template <class Input>
Outputs script_outputs(torch::jit::Module& net, Input x) {
  return rows_of(net.forward({lt::tensor(x)}).toTensor());
}

/// The rows and the outputs of one model of Python.
template <class T, std::size_t N>
struct PythonRows {
  PythonRows(sr::Session& session, const std::filesystem::path& file)
      : x(lt::map_tensor<T, N>(session, file, "inputs")), wanted(lt::Safetensors(file).tensor("outputs")) {}
  sr::Data<T, N> x;
  torch::Tensor wanted;
};

/// Compares outputs, and returns whether they are near enough.
bool are_near(const std::string& what, const std::vector<float>& found, const torch::Tensor& wanted) {
  const auto difference = ((torch::tensor(found) - wanted.flatten()).abs().max() / wanted.abs().max()).item<double>();
  std::printf("%s: differs by %.1e of the largest output\n", what.c_str(), difference);
  return difference <= kTolerance;
}

template <auto kOutputs, class Net, class Rows>
bool check_module(sr::Session& session, const Rows& rows, const std::filesystem::path& folder, const std::string& name,
                  const std::vector<std::pair<std::string, lt::LoadOptions>>& files) {
  bool is_good = true;
  for (const auto& [file, options] : files) {
    const auto net = session.replicate<lt::Replica<Net>>(7);
    auto params = lt::parameters(session, net);
    lt::load(session, net, params, folder / file, options);
    is_good &= are_near(file, lt::evaluation<kOutputs>(session, net, params)(rows.x).values.to_vector(), rows.wanted);
    lt::save(session, net, params, folder / (name + "_saved.safetensors"));
  }
  return is_good;
}
template <auto kOutputs, class Rows>
bool check_script(sr::Session& session, const Rows& rows, const std::filesystem::path& folder,
                  const std::string& name) {
  const auto file = std::filesystem::absolute(folder / (name + "_script.pt")).string();
  const auto net = session.replicate<lt::Replica<torch::jit::Module>>(7, file);
  auto params = lt::parameters(session, net);
  const bool is_good = are_near("replica of " + name + "_script.pt",
                                lt::evaluation<kOutputs>(session, net, params)(rows.x).values.to_vector(), rows.wanted);
  lt::save(session, net, params, folder / (name + "_script_saved.pt"));
  return is_good;
}

void compare_with_python(sr::Session& session, const std::filesystem::path& folder) {
  const lt::LoadOptions of_checkpoint{.part = "model", .prefixes = {{"module.", ""}}};
  bool is_good = true;
  {
    const PythonRows<float, 4> rows(session, folder / "resnet50_rows.safetensors");
    is_good &= check_module<resnet_outputs, ResNet>(
        session, rows, folder, "resnet50",
        {{"resnet50.pt", {}}, {"resnet50_checkpoint.pt", of_checkpoint}, {"resnet50_script.pt", {}}});
    is_good &= check_script<script_outputs<Images>>(session, rows, folder, "resnet50");
  }
  const PythonRows<std::int64_t, 2> rows(session, folder / "gpt2_rows.safetensors");
  is_good &= check_module<gpt_outputs, Gpt>(session, rows, folder, "gpt2",
                                            {{"gpt2.pt", {}},
                                             {"gpt2_checkpoint.pt", of_checkpoint},
                                             {"gpt2_script.pt", {.part = "net"}},
                                             {"gpt2/model.safetensors.index.json", {}}});
  is_good &= check_script<script_outputs<Tokens>>(session, rows, folder, "gpt2");
  if (!is_good) throw std::runtime_error("the outputs differ from Python's");
}

}  // namespace

int main(int argc, char** argv) {
  return sr::run(argc, argv, [&](sr::Session& session) {
    if (argc != 2) throw std::runtime_error("usage: python_logits FOLDER");
    compare_with_python(session, argv[1]);
  });
}

// Files of modules: those of torch::save and safetensors files, which replace each other as a whole. A file that does
// not fit changes nothing, and the error names the first difference.

#include <torch/torch.h>

#include <algorithm>
#include <fstream>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

using models::lt::load;
using models::lt::parameters;
using models::lt::Replica;
using models::lt::Safetensors;
using models::lt::save;
using models::lt::save_safetensors;
using models::lt::tensor;
namespace nn = torch::nn;

/// Has parameters, buffers of two types, a frozen layer, and a module without tensors.
struct Model : nn::Module {
  explicit Model(std::int64_t width) : first(4, width), norm(width), frozen(width, 2) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("drop", drop);
    register_module("frozen", frozen);
    for (auto& each : frozen->parameters()) each.requires_grad_(false);
  }
  torch::Tensor forward(const torch::Tensor& x) { return frozen(drop(norm(first(x)))); }

  nn::Linear first;
  nn::BatchNorm1d norm;
  nn::Dropout drop{0.1};
  nn::Linear frozen;
};
torch::Tensor loss(Model& net, sr::Scattered<const float, 2> x) { return net.forward(tensor(x)).pow(2).mean(); }
/// What each rank's module computes in evaluation mode: its parameters and buffers, in one number per output.
struct Outputs {
  sr::Gather<float, 2> values;
};
Outputs outputs(Model& net) {
  const auto out = net.forward(torch::arange(4).to(torch::kFloat32).reshape({1, 4})).contiguous();
  return {{std::span<const float>(out.data_ptr<float>(), 2), sr::Shape{1, 2}}};
}
std::vector<float> alone(Model& net) {
  const torch::NoGradGuard no_gradients;
  net.eval();
  const auto out = net.forward(torch::arange(4).to(torch::kFloat32).reshape({1, 4})).contiguous();
  return {out.data_ptr<float>(), out.data_ptr<float>() + 2};
}

constexpr std::int64_t kWidth = 3;

class LibtorchFile : public OnSharedWorkers {
 protected:
  struct Trained {
    sr::Replicated<Replica<Model>> net;
    sr::Shared<float, 1> params;
  };
  /// A module after some steps, whose buffers are equal on all ranks.
  Trained trained(std::uint64_t seed = 7, std::int64_t width = kWidth, int steps = 3) {
    const auto net = session().replicate<Replica<Model>>(seed, width);
    auto params = parameters(session(), net);
    auto step = models::lt::train_step<sr::Sgd, loss>(session(), net, params);
    const auto x = session().data(counting<float>(48), sr::Shape{12, 4});
    for (int i = 0; i < steps; ++i) step(x, {.learning_rate = 1e-3});
    models::lt::sync_buffers(session(), net);
    return {net, params};
  }
  std::vector<float> outputs_of(const Trained& trained) {
    return models::lt::evaluation<outputs>(session(), trained.net, trained.params)().values.to_vector();
  }
  /// Expects that every rank computes these two numbers.
  void expect_outputs(const Trained& trained, const std::vector<float>& wanted) {
    const auto found = outputs_of(trained);
    ASSERT_EQ(found.size(), 2 * static_cast<std::size_t>(world_size()));
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_FLOAT_EQ(found[i], wanted[i % 2]);
  }
  /// Expects that loading fails with these words, and that the module is as before.
  void expect_refused(const std::filesystem::path& file, const std::string& words,
                      sr::ErrorKind kind = sr::ErrorKind::function) {
    auto other = trained(9);
    const auto before = outputs_of(other);
    EXPECT_ERROR(load(session(), other.net, other.params, file), kind, words);
    EXPECT_EQ(outputs_of(other), before);
  }

  TemporaryFolder folder_;
};
INSTANTIATE_ON_WORKERS(LibtorchFile, 1, 3);

TEST_P(LibtorchFile, OfEitherFormatGivesTheModuleBack) {
  auto first = trained();
  const auto wanted = outputs_of(first);
  for (const char* name : {"model.pt", "model.safetensors"}) {
    save(session(), first.net, first.params, folder_ / name);
    auto second = trained(8);
    load(session(), second.net, second.params, folder_ / name);
    expect_outputs(second, {wanted[0], wanted[1]});
  }
}

TEST_P(LibtorchFile, IsThatOfTorchSaveAndTorchLoad) {
  auto first = trained();
  save(session(), first.net, first.params, folder_ / "model.pt");
  const auto wanted = outputs_of(first);
  auto loaded = std::make_shared<Model>(kWidth);
  torch::load(loaded, folder_.at("model.pt"));
  const auto found = alone(*loaded);
  EXPECT_FLOAT_EQ(found[0], wanted[0]);
  EXPECT_FLOAT_EQ(found[1], wanted[1]);

  torch::manual_seed(21);
  const auto other = std::make_shared<Model>(kWidth);
  torch::save(other, folder_.at("other.pt"));
  load(session(), first.net, first.params, folder_ / "other.pt");
  expect_outputs(first, alone(*other));
}

TEST_P(LibtorchFile, OfSafetensorsHasTheNamesOfTheModule) {
  auto first = trained();
  save(session(), first.net, first.params, folder_ / "model.safetensors");
  const Safetensors saved(folder_ / "model.safetensors");
  EXPECT_EQ(saved.names(), (std::vector<std::string>{"first.weight", "first.bias", "norm.weight", "norm.bias",
                                                     "frozen.weight", "frozen.bias", "norm.running_mean",
                                                     "norm.running_var", "norm.num_batches_tracked"}));
  EXPECT_EQ(saved.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(saved.tensor("norm.num_batches_tracked").item<std::int64_t>(), 3);
  const auto weight = saved.tensor("first.weight");
  EXPECT_EQ(weight.sizes().vec(), (std::vector<std::int64_t>{kWidth, 4}));
  EXPECT_EQ(weight.flatten()[5].item<float>(), first.params.get(0)[5]);
  EXPECT_ERROR(static_cast<void>(saved.tensor("last.weight")), sr::ErrorKind::usage, "has no tensor 'last.weight'");
}

TEST_P(LibtorchFile, OfSafetensorsKeepsEveryTypeAndRefusesOthers) {
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
  for (const auto type : {torch::kBool, torch::kUInt8, torch::kInt8, torch::kInt16, torch::kInt32, torch::kInt64,
                          torch::kFloat16, torch::kBFloat16, torch::kFloat32, torch::kFloat64})
    tensors.emplace_back(c10::toString(type), torch::arange(7).remainder(2).to(type));
  tensors.emplace_back("none", torch::empty({0, 3}));
  tensors.emplace_back("scalar", torch::tensor(2.5F));
  tensors.emplace_back("transposed", torch::arange(6).reshape({2, 3}).t());
  save_safetensors(folder_ / "types.safetensors", tensors, {{"by", "a test"}});
  const Safetensors saved(folder_ / "types.safetensors");
  EXPECT_EQ(saved.metadata().at("by"), "a test");
  for (const auto& [name, tensor] : tensors) {
    const auto found = saved.tensor(name);
    EXPECT_EQ(found.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(found, tensor)) << name;
  }
  EXPECT_ERROR(save_safetensors(folder_ / "no", {{"z", torch::zeros({2}, torch::kComplexFloat)}}), sr::ErrorKind::usage,
               "'z' has the type ComplexFloat");
  EXPECT_ERROR(save_safetensors(folder_ / "no", {{"z", torch::zeros({2})}, {"z", torch::zeros({2})}}),
               sr::ErrorKind::usage, "got 'z' twice");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "no"));
  const std::string header = R"({"flags":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})";
  write_text(folder_ / "flags", std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header +
                                    std::string("\x01\x02"));
  EXPECT_ERROR(static_cast<void>(Safetensors(folder_ / "flags").tensor("flags")), sr::ErrorKind::usage,
               "expected bools of 0 or 1 in 'flags'");
}

sr::Sum<std::int64_t> sum_of_rows(sr::Scattered<const std::int16_t, 2> rows) {
  std::int64_t sum = 0;
  for (std::int64_t row = 0; row < rows.rows(); ++row) sum += rows(row, 0) * 1000 + rows(row, 1);
  return sum;
}

TEST_P(LibtorchFile, OfSafetensorsIsMappedAsData) {
  const auto file = folder_ / "data.safetensors";
  const auto rows = torch::arange(20, torch::kInt16).reshape({10, 2});
  save_safetensors(file, {{"labels", torch::zeros({3}, torch::kInt64)}, {"rows", rows}});
  const auto data = models::lt::map_tensor<std::int16_t, 2>(session(), file, "rows");
  EXPECT_EQ(data.rows(), 10);
  const auto sum = session().function(sum_of_rows);
  EXPECT_EQ(sum(data), 90 * 1000 + 100);
  const std::vector<std::int64_t> some{1, 1, 9};
  EXPECT_EQ(sum(data, {.batch = some}), (2 + 2 + 18) * 1000 + 3 + 3 + 19);
  EXPECT_EQ(Safetensors(file).offset_of("rows") - Safetensors(file).offset_of("labels"), 24);

  EXPECT_ERROR((models::lt::map_tensor<std::int16_t, 2>(session(), file, "images")), sr::ErrorKind::usage,
               "has no tensor 'images'");
  EXPECT_ERROR((models::lt::map_tensor<std::int32_t, 2>(session(), file, "rows")), sr::ErrorKind::usage,
               "expected 'rows' with Int elements and 2 dimensions, found Short and 2");
  EXPECT_ERROR((models::lt::map_tensor<std::int16_t, 1>(session(), file, "rows")), sr::ErrorKind::usage,
               "1 dimensions, found Short and 2");
  EXPECT_ERROR((models::lt::map_tensor<std::int16_t, 2>(session(), folder_ / "none", "rows")), sr::ErrorKind::system,
               "none");
}

TEST_P(LibtorchFile, OfAnotherFloatingPointTypeIsConverted) {
  auto first = trained();
  save(session(), first.net, first.params, folder_ / "model.safetensors");
  const Safetensors saved(folder_ / "model.safetensors");
  std::vector<std::pair<std::string, torch::Tensor>> halves;
  for (const auto& name : saved.names()) {
    const auto values = saved.tensor(name);
    halves.emplace_back(name, values.is_floating_point() ? values.to(torch::kBFloat16) : values);
  }
  save_safetensors(folder_ / "half.safetensors", halves);
  auto second = trained(8);
  load(session(), second.net, second.params, folder_ / "half.safetensors");
  const auto wanted = saved.tensor("first.weight").to(torch::kBFloat16).to(torch::kFloat32).flatten();
  const auto params = second.params.get(world_size() - 1);
  for (std::int64_t i = 0; i < wanted.numel(); ++i) EXPECT_EQ(params[i], wanted[i].item<float>());
}

TEST_P(LibtorchFile, OfAnotherArchitectureIsRefusedByTheFirstDifference) {
  const auto wider = trained(7, kWidth + 1);
  for (const char* name : {"wider.pt", "wider.safetensors"}) {
    save(session(), wider.net, wider.params, folder_ / name);
    expect_refused(
        folder_ / name,
        std::string(name) + " is of another module: expected 'first.weight' Float [3, 4], found Float [4, 4]");
  }
  const auto first = trained();
  save(session(), first.net, first.params, folder_ / "model.safetensors");
  const Safetensors saved(folder_ / "model.safetensors");
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
  for (const auto& name : saved.names()) tensors.emplace_back(name, saved.tensor(name));
  const auto with = [&](const auto& change) {
    auto changed = tensors;
    change(changed);
    save_safetensors(folder_ / "changed.safetensors", changed);
    return folder_ / "changed.safetensors";
  };
  expect_refused(with([](auto& t) { t.emplace_back("head.weight", torch::zeros({2})); }),
                 "found 'head.weight' Float [2], expected no tensor of this name");
  expect_refused(with([](auto& t) { t.pop_back(); }),
                 "expected 'norm.num_batches_tracked' Long [], found no tensor of this name");
  expect_refused(with([](auto& t) { t.front().second = t.front().second.to(torch::kInt32); }),
                 "expected 'first.weight' Float [3, 4], found Int [3, 4]");

  torch::save(std::make_shared<models::Mlp>(), folder_.at("mlp.pt"));
  expect_refused(folder_ / "mlp.pt", "expected 'first.weight' Float [3, 4], found Float [9, 6]");
}

TEST_P(LibtorchFile, ThatIsDamagedOrMissingIsRefused) {
  const auto first = trained();
  save(session(), first.net, first.params, folder_ / "model.pt");
  save(session(), first.net, first.params, folder_ / "model.safetensors");
  const std::string archive = text_of(folder_ / "model.pt");
  const std::string safetensors = text_of(folder_ / "model.safetensors");

  write_text(folder_ / "short.pt", archive.substr(0, archive.size() / 2));
  expect_refused(folder_ / "short.pt", "expected the directory of a zip archive at the end of the file, found none");
  write_text(folder_ / "text.pt", "hello");
  expect_refused(folder_ / "text.pt", "expected a zip archive, which begins with 'PK'");
  write_text(folder_ / "short.safetensors", safetensors.substr(0, safetensors.size() - 1));
  expect_refused(folder_ / "short.safetensors", "bytes of elements, as the header says, found ");
  write_text(folder_ / "empty.safetensors", "");
  expect_refused(folder_ / "empty.safetensors", "expected at least 8 bytes, found 0");
  expect_refused(folder_ / "none.pt", "No such file or directory", sr::ErrorKind::system);
  expect_refused(folder_ / "none.safetensors", "No such file or directory", sr::ErrorKind::system);
}

TEST_P(LibtorchFile, IsReplacedAsAWhole) {
  const auto first = trained();
  for (const char* name : {"model.pt", "model.safetensors"}) {
    save(session(), first.net, first.params, folder_ / name);
    const std::string saved = text_of(folder_ / name);
    save(session(), first.net, first.params, folder_ / name);
    EXPECT_EQ(text_of(folder_ / name), saved);
    EXPECT_ERROR(save(session(), first.net, first.params, folder_ / "no" / name), sr::ErrorKind::system,
                 "cannot open " + (folder_ / "no").string() + ": No such file or directory");
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 2) << "nothing is left beside them";
}

/// Parameters, state and the number of steps, in a checkpoint, and buffers in a file. Dropout is off, because a generator
/// is not saved.
torch::Tensor loss_without_dropout(Model& net, sr::Scattered<const float, 2> x) {
  return net.frozen(net.norm(net.first(tensor(x)))).pow(2).mean();
}
TEST_P(LibtorchFile, AndACheckpointContinueATrainingBitByBit) {
  const auto x = session().data(counting<float>(52), sr::Shape{13, 4});
  const auto train = [&](auto& step, int steps) {
    for (int i = 0; i < steps; ++i) step(x, {.learning_rate = 0.01}, {.slices = 2});
  };
  const auto net = session().replicate<Replica<Model>>(7, kWidth);
  const auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Adam, loss_without_dropout>(session(), net, params, {.clip_norm = 0.5});
  train(step, 4);
  models::lt::sync_buffers(session(), net);
  const auto [m, v] = step.state();
  sr::save_checkpoint(folder_ / "run", {{"params", params}, {"m", m}, {"v", v}}, {{"steps", step.steps()}});
  save(session(), net, params, folder_ / "model.pt");
  train(step, 3);

  const auto again = session().replicate<Replica<Model>>(9, kWidth);
  auto resumed = parameters(session(), again);
  auto second = models::lt::train_step<sr::Adam, loss_without_dropout>(session(), again, resumed, {.clip_norm = 0.5});
  auto [second_m, second_v] = second.state();
  load(session(), again, resumed, folder_ / "model.pt");
  const sr::Checkpoint checkpoint(folder_ / "run");
  checkpoint.load({{"params", resumed}, {"m", second_m}, {"v", second_v}});
  second.set_steps(checkpoint.value<std::int64_t>("steps"));
  train(second, 3);
  EXPECT_EQ(resumed.get(0).to_vector(), params.get(0).to_vector());
  EXPECT_EQ(outputs_of({again, resumed}), outputs_of({net, params}));
}

/// Tied tensors: `out.weight` is `token.weight`.
TEST_P(LibtorchFile, OfTiedTensorsHasThemOnceOrTwice) {
  const auto net = session().replicate<Replica<models::Transformer>>(7, 8, 2);
  auto params = parameters(session(), net);
  const auto wanted = params.get(0).to_vector();
  for (const char* name : {"tied.pt", "tied.safetensors"}) {
    save(session(), net, params, folder_ / name);
    params.broadcast(std::vector<float>(wanted.size()));
    load(session(), net, params, folder_ / name);
    for (int rank = 0; rank < world_size(); ++rank) EXPECT_EQ(params.get(rank).to_vector(), wanted);
  }
  const auto names = Safetensors(folder_ / "tied.safetensors").names();
  EXPECT_EQ(std::ranges::count(names, "token.weight"), 1);
  EXPECT_EQ(std::ranges::count(names, "out.weight"), 0);
}

}  // namespace

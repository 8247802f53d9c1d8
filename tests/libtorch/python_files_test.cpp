// Files that Python wrote, in tests/libtorch/weights: make_weights.py there says what they contain.

#include <torch/torch.h>

#include <filesystem>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

using models::lt::FileFormat;
using models::lt::LoadForm;
using models::lt::LoadOptions;
using models::lt::Replica;

const std::filesystem::path kWeights = SYNCRUN_WEIGHTS_FOLDER;
constexpr std::array kPyTorchVersions{"1.13", "2.11"};

/// The class Model of make_weights.py.
struct KnownModel : torch::nn::Module {
  KnownModel() : first(4, 3), norm(3), frozen(3, 2) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("frozen", frozen);
    for (auto& each : frozen->parameters()) each.requires_grad_(false);
  }
  torch::Tensor forward(const torch::Tensor& x) { return frozen(norm(first(x))); }

  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear frozen;
};

/// All numbers of a module, in the order of a state_dict of KnownModel.
struct AllNumbers {
  sr::Gather<double, 2> values;
};
AllNumbers gathered(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> flat;
  for (const auto& each : tensors) flat.push_back(each.detach().flatten().to(torch::kFloat64));
  const auto all = torch::cat(flat).contiguous();
  return {{std::span<const double>(all.data_ptr<double>(), static_cast<std::size_t>(all.numel())),
           sr::Shape{1, all.numel()}}};
}
AllNumbers all_numbers(KnownModel& net) {
  return gathered({net.first->weight, net.first->bias, net.norm->weight, net.norm->bias, net.norm->running_mean,
                   net.norm->running_var, net.norm->num_batches_tracked, net.frozen->weight, net.frozen->bias});
}
/// Those of the files.
std::vector<double> known_numbers() {
  std::vector<double> numbers;
  int tensor = 0;
  for (const int elements : {12, 3, 3, 3, 3, 3, 1, 6, 2}) {
    for (int k = 0; k < elements; ++k) numbers.push_back((10.0 * tensor + k) / 8);
    ++tensor;
  }
  numbers[27] = 7;  // num_batches_tracked is a whole number: 60 / 8
  return numbers;
}

struct Tied : torch::nn::Module {
  Tied() {
    register_parameter("first", weight);
    register_parameter("second", weight);
  }
  torch::Tensor weight = torch::zeros({3, 3});
};

class LibtorchPythonFile : public OnSharedWorkers {
 protected:
  template <class Net>
  struct Made {
    sr::Replicated<Replica<Net>> net;
    sr::Shared<float, 1> params;
  };
  template <class Net>
  static Made<Net> make() {
    const auto net = session().replicate<Replica<Net>>(5);
    auto params = models::lt::parameters(session(), net);
    return {net, params};
  }
  template <auto kNumbers, class Net>
  static std::vector<double> numbers_of(const Made<Net>& made) {
    return models::lt::evaluation<kNumbers>(session(), made.net, made.params)().values.to_vector();
  }
  /// Loads a file, and expects that every rank has the numbers of the Python model.
  static void expect_known(const std::filesystem::path& file, const LoadOptions& options = {}) {
    SCOPED_TRACE(file);
    auto made = make<KnownModel>();
    const auto report = models::lt::load(session(), made.net, made.params, file, options);
    EXPECT_TRUE(report.missing.empty() && report.additional.empty());
    std::vector<double> wanted;
    for (int rank = 0; rank < world_size(); ++rank) {
      const auto one = known_numbers();
      wanted.insert(wanted.end(), one.begin(), one.end());
    }
    EXPECT_EQ(numbers_of<all_numbers>(made), wanted);
  }
  /// Expects that loading fails with these words, and that the module is as before.
  static void expect_refused(const std::filesystem::path& file, const std::string& words,
                             const LoadOptions& options = {}) {
    SCOPED_TRACE(file);
    auto made = make<KnownModel>();
    const auto before = numbers_of<all_numbers>(made);
    EXPECT_ERROR(models::lt::load(session(), made.net, made.params, file, options), sr::ErrorKind::function, words);
    EXPECT_EQ(numbers_of<all_numbers>(made), before);
  }
  static LoadOptions of_checkpoint() { return {.part = "state.model", .prefixes = {{"module.", ""}}}; }

  TemporaryFolder folder_;
};
INSTANTIATE_ON_WORKERS(LibtorchPythonFile, 1, 3);

TEST_P(LibtorchPythonFile, OfEachVersionAndFormatIsLoaded) {
  for (const char* version : kPyTorchVersions) {
    expect_known(kWeights / version / "state_dict.pt");
    expect_known(kWeights / version / "checkpoint.pt", of_checkpoint());
    expect_known(kWeights / version / "script.pt");
  }
  expect_known(kWeights / "2.11" / "model.safetensors.index.json");
}

/// The tensors of kinds.pt, in the order of its names.
struct Kinds : torch::nn::Module {
  Kinds() {
    const auto with_type = [](torch::ScalarType type) { return torch::zeros({3, 4}, type); };
    kept.push_back(register_buffer("bfloat16", with_type(torch::kBFloat16)));
    kept.push_back(register_buffer("bool", torch::zeros({2}, torch::kBool)));
    kept.push_back(
        register_parameter("channels_last", torch::zeros({1, 2, 3, 4}).contiguous(torch::MemoryFormat::ChannelsLast)));
    kept.push_back(register_parameter("empty", torch::zeros({0, 3})));
    kept.push_back(register_parameter("expanded", torch::zeros({3, 2})));
    kept.push_back(register_buffer("float16", with_type(torch::kFloat16)));
    kept.push_back(register_buffer("float64", with_type(torch::kFloat64)));
    kept.push_back(register_parameter("parameter", torch::zeros({3, 4})));
    kept.push_back(register_parameter("part", torch::zeros({2, 2})));
    kept.push_back(register_buffer("scalar", torch::zeros({}, torch::kInt64)));
    kept.push_back(register_parameter("transposed", torch::zeros({4, 3})));
    kept.push_back(register_parameter("own", torch::ones({2})));
  }
  std::vector<torch::Tensor> kept;
};
AllNumbers all_of_kinds(Kinds& net) { return gathered(net.kept); }
/// It has a tensor of a kind that is not read.
struct Sparse : torch::nn::Module {
  Sparse() { register_parameter("sparse", torch::zeros({2, 2})); }
};

TEST_P(LibtorchPythonFile, OfAllKindsOfTensorsIsLoadedInPart) {
  const auto counted = counting<double>(12);
  std::vector<double> wanted = counted;  // bfloat16
  const auto add = [&](const std::vector<double>& more) { wanted.insert(wanted.end(), more.begin(), more.end()); };
  add({1, 0});                        // bool
  add(counting<double>(24));          // channels_last
  add(std::vector<double>(6, 1));     // expanded
  add(counted);                       // float16
  add(counted);                       // float64
  add(counted);                       // parameter
  add({6, 7, 10, 11});                // part
  add({7});                           // scalar
  add({0, 4, 8, 1, 5, 9, 2, 6, 10});  // transposed
  add({3, 7, 11});
  add({1, 1});  // own
  for (const char* version : kPyTorchVersions) {
    const auto file = kWeights / version / "kinds.pt";
    auto made = make<Kinds>();
    const auto report = models::lt::load(session(), made.net, made.params, file, {.form = LoadForm::partial});
    EXPECT_EQ(report.missing, std::vector<std::string>{"own"});
    EXPECT_EQ(report.additional, (std::vector<std::string>{"complex", "sparse"}));
    const auto found = numbers_of<all_of_kinds>(made);
    ASSERT_EQ(found.size(), wanted.size() * static_cast<std::size_t>(world_size()));
    EXPECT_EQ(std::vector<double>(found.end() - static_cast<std::ptrdiff_t>(wanted.size()), found.end()), wanted);
    auto sparse = make<Sparse>();
    EXPECT_ERROR(models::lt::load(session(), sparse.net, sparse.params, file, {.form = LoadForm::partial}),
                 sr::ErrorKind::function,
                 "expected 'sparse' Float [2, 2], found a tensor of _rebuild_sparse_tensor, which cannot be read");
  }
}

TEST_P(LibtorchPythonFile, WithOtherNamesIsRefusedByTheFirstDifferenceAndWithAdvice) {
  const auto checkpoint = kWeights / "2.11" / "checkpoint.pt";
  expect_refused(checkpoint,
                 "expected 'first.weight' Float [3, 4], found no tensor of this name. It has "
                 "'state.model.module.first.weight': name the part 'state.model.module' (LoadOptions::part), or map "
                 "the prefix 'state.model.module.' to '' (LoadOptions::prefixes). In all, tensors that are missing "
                 "are 9: 'first.weight', 'first.bias', ");
  expect_refused(checkpoint, "expected tensors in a part 'models', found only the parts 'optimizer', 'state'",
                 {.part = "models"});
  expect_refused(checkpoint, "found none of their names", {.form = LoadForm::partial, .part = "optimizer"});
  expect_refused(kWeights / "1.13" / "state_dict.pt",
                 "expected different names, but 'first.bias' and 'frozen.bias' both become 'last.bias'",
                 {.prefixes = {{"first.", "last."}, {"frozen.", "last."}}});
  expect_refused(kWeights / "1.13" / "state_dict.pt", "map the prefix '' to 'first.'",
                 {.part = "first", .prefixes = {{"weight", "weight"}}});

  // The module may have one tensor twice. In the file, both must have the same values.
  auto tied = session().replicate<Replica<models::Transformer>>(7, 8, 2);
  auto params = models::lt::parameters(session(), tied);
  models::lt::save(session(), tied, params, folder_ / "tied.safetensors");
  const models::lt::Safetensors saved(folder_ / "tied.safetensors");
  std::vector<std::pair<std::string, torch::Tensor>> tensors;
  for (const auto& name : saved.names()) tensors.emplace_back(name, saved.tensor(name));
  tensors.emplace_back("out.weight", saved.tensor("token.weight").clone());
  models::lt::save_safetensors(folder_ / "twice.safetensors", tensors);
  models::lt::load(session(), tied, params, folder_ / "twice.safetensors");
  tensors.back().second = tensors.back().second + 1;
  models::lt::save_safetensors(folder_ / "two.safetensors", tensors);
  EXPECT_ERROR(models::lt::load(session(), tied, params, folder_ / "two.safetensors"), sr::ErrorKind::function,
               "expected equal values of 'token.weight' and 'out.weight', because they are one tensor");

  // Two tensors of a file can have the same elements in another order.
  torch::jit::Module transposed("Transposed");
  transposed.register_parameter("first", torch::arange(9.0F).reshape({3, 3}), false);
  transposed.register_parameter("second", transposed.attr("first").toTensor().t(), false);
  transposed.save(folder_.at("transposed.pt"));
  auto square = make<Tied>();
  EXPECT_ERROR(models::lt::load(session(), square.net, square.params, folder_ / "transposed.pt"),
               sr::ErrorKind::function, "expected equal values of 'first' and 'second'");
}

TEST_P(LibtorchPythonFile, WithCodeOrDamagedIsRefused) {
  for (const char* version : kPyTorchVersions) {
    expect_refused(kWeights / version / "code.pt", "it contains code. It calls '__builtin__.print', expected only");
    expect_refused(kWeights / version / "old.pt", "has the format of torch.save before PyTorch 1.6");
    const std::string whole = text_of(kWeights / version / "state_dict.pt");
    write_text(folder_ / "short.pt", whole.substr(0, whole.size() / 2));
    expect_refused(folder_ / "short.pt",
                   "expected the directory of a zip archive at the end of the file, found none. The file may be cut");
  }
  const auto index = [&](const std::string& text) {
    write_text(folder_ / "w.index.json", text);
    return folder_ / "w.index.json";
  };
  models::lt::save_safetensors(folder_ / "a.safetensors", {{"a", torch::zeros({1})}, {"b", torch::zeros({1})}});
  expect_refused(index("{"), "w.index.json is not an index of weights, or is damaged: expected JSON");
  expect_refused(index("{}"), "expected an object with 'weight_map'");
  expect_refused(index(R"({"weight_map": {"a": "../a.safetensors"}})"), "expected a file beside the index for 'a'");
  expect_refused(index(R"({"weight_map": {"a": "a.safetensors"}})"), "found 'b' in a.safetensors, expected it nowhere");
  expect_refused(index(R"({"weight_map": {"a": "a.safetensors", "b": "a.safetensors", "c": "a.safetensors"}})"),
                 "expected 'c' in a.safetensors, found no such tensor");
  auto made = make<KnownModel>();
  EXPECT_ERROR(models::lt::save(session(), made.net, made.params, folder_ / "w.index.json"), sr::ErrorKind::function,
               "save writes one file");
}

}  // namespace

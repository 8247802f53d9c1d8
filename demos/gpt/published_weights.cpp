#include "demos/gpt/published_weights.hpp"

#include <set>
#include <string>

#include "demos/common/usage_error.hpp"

namespace gpt {
namespace {

namespace lt = syncrun::libtorch;

/// A file, and the names of its tensors.
class WeightsFile {
 public:
  explicit WeightsFile(const std::filesystem::path& path) : path_(path), file_(path) {
    for (const std::string& name : file_.names()) names_.insert(name);
    if (!has("wte.weight")) prefix_ = "transformer.";
  }
  const std::string& prefix() const noexcept { return prefix_; }
  bool has(const std::string& name) const { return names_.contains(prefix_ + name) || names_.contains(name); }
  /// The sizes of a matrix.
  torch::IntArrayRef sizes(const std::string& name) const {
    if (!has(name)) refuse("expected the weights of a GPT-2, found no tensor '" + name + "'");
    const auto sizes = tensor(name).sizes();
    if (sizes.size() != 2) refuse("expected '" + name + "' to be a matrix");
    return sizes;
  }
  torch::Tensor tensor(const std::string& name) const {
    return file_.tensor(names_.contains(name) ? name : prefix_ + name);
  }
  [[noreturn]] void refuse(const std::string& what) const {
    throw demos::UsageError("--init-from: " + what + " in " + path_.string());
  }

 private:
  std::filesystem::path path_;
  lt::Safetensors file_;
  std::set<std::string> names_;
  std::string prefix_;
};

WeightsFile opened(const std::filesystem::path& path) {
  try {
    return WeightsFile(path);
  } catch (const syncrun::Error& error) {
    throw demos::UsageError(std::string("--init-from: ") + error.what());
  }
}

ModelConfig sizes_of(const WeightsFile& file, const ModelConfig& model) {
  ModelConfig found = model;
  found.vocab_size = file.sizes("wte.weight")[0];
  found.n_embd = file.sizes("wte.weight")[1];
  found.block_size = file.sizes("wpe.weight")[0];
  found.n_layer = 0;
  while (file.has("h." + std::to_string(found.n_layer) + ".ln_1.weight")) ++found.n_layer;
  return found;
}

void check_has_all(const WeightsFile& file, const ModelConfig& model) {
  const auto check = [&](const std::string& layer) {
    for (const char* const part : {".weight", ".bias"}) {
      if (!file.has(layer + part)) file.refuse("expected '" + layer + part + "', found no such tensor");
    }
  };
  for (std::int64_t i = 0; i < model.n_layer; ++i) {
    for (const char* const layer : {"ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"})
      check("h." + std::to_string(i) + "." + layer);
  }
  check("ln_f");
  if (model.last_layer == LastLayer::kOwn && !file.has("lm_head.weight"))
    file.refuse("expected 'lm_head.weight', found no such tensor: GPT-2's last layer is its embedding (--size 1.5b)");
  if (model.last_layer == LastLayer::kTied && file.has("lm_head.weight") &&
      !torch::equal(file.tensor("lm_head.weight"), file.tensor("wte.weight")))
    file.refuse(
        "expected a model whose last layer is its embedding, found another 'lm_head.weight' (--size 1.64b or 6.86b)");
}

}  // namespace

lt::LoadOptions how_to_load(const std::filesystem::path& path, const ModelConfig& model) {
  const WeightsFile file = opened(path);
  const ModelConfig found = sizes_of(file, model);
  if (describe(found) != describe(model)) {
    file.refuse("expected the sizes of this model (" + describe(model) +
                "; --size sets them, and --data the vocabulary), found " + describe(found));
  }
  check_has_all(file, model);
  lt::LoadOptions options{
      .format = lt::FileFormat::safetensors, .form = lt::LoadForm::partial, .prefixes = {{file.prefix(), ""}}};
  // nn::Linear has a row for each output.
  if (file.sizes("h.0.attn.c_attn.weight")[0] == model.n_embd)
    options.transposed = {"c_attn.weight", "c_proj.weight", "c_fc.weight"};
  return options;
}

}  // namespace gpt

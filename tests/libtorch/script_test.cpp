// Replicas of TorchScript: from a file, trained, evaluated, saved.

#include <torch/script.h>
#include <torch/torch.h>

#include <filesystem>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

using models::lt::tensor;
using Script = torch::jit::Module;
using ScriptReplica = models::lt::Replica<Script>;

constexpr std::int64_t kScriptRows = 12;

/// A linear layer in a submodule, a running sum of the inputs in a buffer that is assigned anew, a frozen parameter, and attributes that are
/// neither. In training mode, the outputs are `factor` times as large. `seen` is what is assigned.
Script scripted(const std::string& seen = "self.seen + x.detach().sum(0)", double factor = 2) {
  Script layer("Layer");
  layer.register_parameter("weight", torch::arange(4.0F).div(4), false);
  layer.register_buffer("seen", torch::zeros({4}));
  layer.register_attribute("training", c10::BoolType::get(), true);
  layer.define(R"(
    def forward(self, x):
      if self.training:
        self.seen = )" +
               seen + R"(
      return x.matmul(self.weight)
  )");
  Script net("Net");
  net.register_module("layer", layer);
  net.register_parameter("frozen", torch::ones({1}), false);
  net.register_attribute("training", c10::BoolType::get(), true);
  net.register_attribute("factor", c10::FloatType::get(), factor);
  net.register_attribute("plain", c10::TensorType::get(), torch::zeros({1}));
  net.define(R"(
    def forward(self, x):
      y = self.layer.forward(x) * self.frozen + self.plain
      if self.training:
        y = y * self.factor
      return y
  )");
  net.attr("layer").toModule().attr("weight").toTensor().set_requires_grad(true);
  return net;
}
torch::Tensor script_loss(Script& net, sr::Scattered<const float, 2> x) {
  return (net.forward({tensor(x)}).toTensor() - 1).square().mean();
}
double serial_loss(Script& net, const torch::Tensor& x) {
  return (net.forward({x}).toTensor() - 1).square().mean().item<double>();
}

class LibtorchScript : public OnSharedWorkers {
 protected:
  static sr::Data<float, 2> rows() {
    return session().data(counting<float>(kScriptRows * 4), sr::Shape{kScriptRows, 4});
  }
  std::string saved(Script script) const {
    script.save(folder_.at("script.pt"));
    return folder_.at("script.pt");
  }
  TemporaryFolder folder_;
};
INSTANTIATE_ON_WORKERS(LibtorchScript, 1, 3);

TEST_P(LibtorchScript, IsTrainedEvaluatedAndSavedAsSerially) {
  auto serial = scripted();
  const std::string file = folder_.at("script.pt");
  serial.eval();  // a replica is in training mode all the same
  serial.save(file);
  serial.train();
  const auto inputs = torch::arange(kScriptRows * 4).remainder(7).to(torch::kFloat32).div(7).reshape({kScriptRows, 4});
  const auto x =
      session().data(std::vector<float>(inputs.data_ptr<float>(), inputs.data_ptr<float>() + kScriptRows * 4),
                     sr::Shape{kScriptRows, 4});

  const auto net = session().replicate<ScriptReplica>(3, file);
  auto params = models::lt::parameters(session(), net);
  EXPECT_EQ(params.shape(0)[0], 4) << "the frozen parameter is none of them";
  auto step = models::lt::train_step<sr::Sgd, script_loss>(session(), net, params);
  auto weight = serial.attr("layer").toModule().attr("weight").toTensor();
  torch::optim::SGD optimizer({weight}, 0.05);
  const auto serial_step = [&] {
    optimizer.zero_grad();
    const auto loss = (serial.forward({inputs}).toTensor() - 1).square().mean();
    loss.backward();
    optimizer.step();
    return loss.item<double>();
  };
  const auto evaluated = [&] { return double(models::lt::evaluation<script_loss>(session(), net, params)(x)); };
  for (int i = 0; i < 5; ++i) EXPECT_NEAR(step(x, {.learning_rate = 0.05}), serial_step(), 1e-6);
  // In evaluation mode, the outputs are not doubled and the buffer stays. Then the module trains on.
  serial.eval();
  const double wanted = serial_loss(serial, inputs);
  EXPECT_NEAR(evaluated(), wanted, 1e-6);
  EXPECT_EQ(evaluated(), evaluated());
  serial.train();
  EXPECT_NEAR(step(x, {.learning_rate = 0.05}), serial_step(), 1e-6);
  EXPECT_NEAR(params.get(0)[3], weight[3].item<float>(), 1e-6);

  models::lt::sync_buffers(session(), net);
  const auto seen = serial.attr("layer").toModule().attr("seen").toTensor();
  for (const char* name : {"saved.pt", "saved.safetensors"}) {
    models::lt::save(session(), net, params, folder_ / name);
    const auto again = session().replicate<ScriptReplica>(4, file);
    auto loaded = models::lt::parameters(session(), again);
    models::lt::load(session(), again, loaded, folder_ / name);
    EXPECT_EQ(loaded.get(world_size() - 1).to_vector(), params.get(0).to_vector());
  }
  Script saved = torch::jit::load(folder_.at("saved.pt"));
  serial.eval();
  EXPECT_NEAR(serial_loss(saved, inputs), serial_loss(serial, inputs), 1e-6);
  // The mean over the ranks of the sums over each rank's rows.
  EXPECT_NEAR(saved.attr("layer").toModule().attr("seen").toTensor()[1].item<double>() * world_size(),
              seen[1].item<double>(), 1e-4);
  serial.train();
  EXPECT_NEAR(step(x, {.learning_rate = 0.05}), serial_step(), 1e-6) << "save left the module in training mode";
}

TEST_P(LibtorchScript, HasTheSameBuffersAfterVerify) {
  const std::string file = saved(scripted());
  const auto x = rows();
  const auto trained = [&](bool is_verified) {
    const auto net = session().replicate<ScriptReplica>(3, file);
    const auto params = models::lt::parameters(session(), net);
    auto step = models::lt::train_step<sr::Sgd, script_loss>(session(), net, params);
    step(x, {.learning_rate = 0.01});
    if (is_verified) static_cast<void>(session().verify(step)(x, {.learning_rate = 0.01}));
    // Each rank has seen its own rows.
    EXPECT_EQ(models::lt::verify_replicas(session(), net).is_same(), world_size() == 1);
    step(x, {.learning_rate = 0.01});
    models::lt::sync_buffers(session(), net);
    models::lt::save(session(), net, params, folder_ / "trained.safetensors");
    const auto seen = models::lt::Safetensors(folder_ / "trained.safetensors").tensor("layer.seen").clone();
    return std::vector<float>(seen.data_ptr<float>(), seen.data_ptr<float>() + 4);
  };
  EXPECT_EQ(trained(true), trained(false));
}

TEST_P(LibtorchScript, ThatAssignsAnotherShapeOrTypeToABufferIsAnError) {
  const auto refused = [&](const char* seen, const char* words) {
    const auto net = session().replicate<ScriptReplica>(3, saved(scripted(seen)));
    const auto params = models::lt::parameters(session(), net);
    auto step = models::lt::train_step<sr::Sgd, script_loss>(session(), net, params);
    EXPECT_ERROR(step(rows(), {.learning_rate = 0.01}), sr::ErrorKind::function, words);
    models::lt::sync_buffers(session(), net);
    EXPECT_TRUE(models::lt::verify_replicas(session(), net).is_same());
  };
  refused("x.detach().sum()", "expected 'layer.seen' Float [4], found Float []");
  refused("self.seen.double()", "expected 'layer.seen' Float [4], found Double [4]");
}

TEST(LibtorchScriptFile, ThatDiffersBetweenRanksIsAnError) {
  const TemporaryFolder folder;
  const auto layout = [&](double factor) {
    scripted("self.seen", factor).save(folder.at("script.pt"));
    namespace detail = models::lt::detail;
    const detail::BoundModule bound(detail::ScriptAdapter::from_file(folder.at("script.pt")));
    return bound.layout(bound.parameters()) + '\0';
  };
  const auto compare = [](const std::string& layouts) {
    models::lt::detail::check_layouts("parameters",
                                      {reinterpret_cast<const std::uint8_t*>(layouts.data()), layouts.size()});
  };
  compare(layout(2) + layout(2));
  EXPECT_ERROR(compare(layout(2) + layout(3)), sr::ErrorKind::usage,
               "the modules differ: rank 0 has a file of TorchScript with the checksum ");
}

/// What each rank's module computes for one row.
struct ScriptOutputs {
  sr::Gather<float, 2> values;
};
ScriptOutputs script_outputs(Script& net) {
  const auto out = net.forward({torch::arange(4.0F).reshape({1, 4})}).toTensor().contiguous();
  return {{std::span<const float>(out.data_ptr<float>(), 2), sr::Shape{1, 2}}};
}

TEST_P(LibtorchScript, OfEachVersionOfPythonIsEvaluatedWithoutDropout) {
  for (const char* version : {"1.13", "2.11"}) {
    const std::string file = std::filesystem::path(SYNCRUN_WEIGHTS_FOLDER) / version / "script.pt";
    auto serial = torch::jit::load(file);
    serial.eval();
    const auto wanted = serial.forward({torch::arange(4.0F).reshape({1, 4})}).toTensor();
    const auto net = session().replicate<ScriptReplica>(3, file);
    auto params = models::lt::parameters(session(), net);
    const auto evaluate = models::lt::evaluation<script_outputs>(session(), net, params);
    const auto first = evaluate().values.to_vector();
    EXPECT_EQ(evaluate().values.to_vector(), first);
    for (std::size_t i = 0; i < first.size(); ++i)
      EXPECT_FLOAT_EQ(first[i], wanted.flatten()[static_cast<std::int64_t>(i % 2)].item<float>());
  }
}

TEST_P(LibtorchScript, OfAnotherFileIsRefused) {
  const auto refused = [&](const std::filesystem::path& file, sr::ErrorKind kind, const char* words) {
    const auto net = session().replicate<ScriptReplica>(3, file.string());
    EXPECT_ERROR(models::lt::parameters(session(), net), kind, words);
  };
  refused(std::filesystem::path(SYNCRUN_WEIGHTS_FOLDER) / "2.11" / "state_dict.pt", sr::ErrorKind::function,
          "state_dict.pt: expected a file of torch.jit.save, found '");
  refused(folder_ / "none.pt", sr::ErrorKind::system, "none.pt: No such file");
}

}  // namespace

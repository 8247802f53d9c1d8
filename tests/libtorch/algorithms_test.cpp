// The settings of LibTorch that a module chooses in its constructor. Tests on GPUs show what they are for.

#include <torch/torch.h>

#include <cstdlib>
#include <string_view>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

struct Chosen : torch::nn::Module {
  Chosen() : last(2, 1) {
    models::lt::use_deterministic_algorithms();
    models::lt::use_full_float32();
    register_module("last", last);
  }
  torch::nn::Linear last;
};

struct Settings {
  sr::Min<int> is_deterministic;
  sr::Min<int> allows_tf32;
  sr::Min<int> has_variable;
};
Settings settings_of_worker(Chosen&) {
  const auto& context = at::globalContext();
  const char* const variable = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  return {context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly(), context.allowTF32CuDNN(),
          variable != nullptr && std::string_view(variable) == ":4096:8"};
}

// A session of its own, because the settings stay until the worker ends.
TEST(LibtorchAlgorithms, AreChosenByTheConstructorOfAModule) {
  sr::Session session(options_of_computing(1));
  const auto net = session.replicate<models::lt::Replica<Chosen>>(std::uint64_t{1});
  const auto params = models::lt::parameters(session, net);
  const Settings found = models::lt::evaluation<settings_of_worker>(session, net, params)();
  EXPECT_EQ(found.is_deterministic, 1);
  EXPECT_EQ(found.allows_tf32, 0);
  EXPECT_EQ(found.has_variable, 1);
  session.close();
}

}  // namespace

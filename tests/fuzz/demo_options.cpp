// The command line of the MNIST demo, and the model that it names.

#include "demos/mnist/options.hpp"
#include "tests/fuzz/fuzzing.hpp"

namespace {

/// For every model that a user can name, the layers can be planned without a size that overflows.
void check_model(const demos::ModelSpec& model) {
  const demos::LayerPlan plan = demos::plan_layers(model, 28, 28, 10);
  fuzzing::expect(!plan.layers.empty() && plan.parameter_count > 0, "a model has layers and parameters");
  fuzzing::expect(plan.parameter_count < std::size_t{1} << 40U, "parameters that can be counted");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzzing::CommandLine line(fuzzing::text_of(data, size));
  try {
    const auto options = mnist::parse_options(line.count(), line.pointers());
    if (!options) return 0;
    fuzzing::expect(options->batch_size >= 1 && options->epochs >= 1, "counts from 1");
    fuzzing::expect(options->learning_rate > 0 && options->momentum >= 0 && options->momentum < 1, "rates in range");
    check_model(options->model);
  } catch (const mnist::UsageError& error) {
    fuzzing::expect(*error.what() != '\0', "an error without words");
  }
  return 0;
}

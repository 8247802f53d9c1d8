// The list of plans that syncrun-resnet keeps in a file and in checkpoints.

#include "demos/resnet/network/conv_plans.hpp"

#include "tests/fuzz/fuzzing.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text = fuzzing::text_of(data, size);
    const resnet::ConvPlans plans = resnet::ConvPlans::parse(text);
    const std::string written = plans.text();
    fuzzing::expect(resnet::ConvPlans::parse(written) == plans, "it is read as it was written");
    fuzzing::expect(written.size() == text.size(), "nothing is lost or added");
  } catch (const resnet::PlansError& error) {
    fuzzing::expect(*error.what() != '\0', "an error without words");
  }
  return 0;
}

#pragma once

// What runs on the workers: the loss of a step, and the scores for a sample.

#include <cstdint>
#include <syncrun/syncrun.hpp>
#include <syncrun/torch.hpp>

#include "demos/gpt/model.hpp"

namespace gpt {

namespace sr = syncrun;
namespace lt = syncrun::libtorch;

/// Determines the dropout of a step, so that a resumed run continues with the same one.
struct StepKey {
  std::uint64_t seed = 0;
  std::int64_t step = 0;
};

/// The mean loss in nats per token of some windows of a text. `tokens` is all of the text, `starts` the first tokens of
/// the windows. A window has one token more than the model reads. No parameter is a plain value, so GPUs can replay it.
torch::Tensor loss(Gpt& net, sr::Broadcast<const std::uint16_t, 1> tokens, sr::Scattered<const std::int64_t, 1> starts,
                   sr::DeviceScalar<StepKey> key);
/// The same for a text of which every device has a copy, as GPUs need it.
torch::Tensor loss_of_copy(Gpt& net, sr::Local<const std::uint16_t, 1> tokens,
                           sr::Scattered<const std::int64_t, 1> starts, sr::DeviceScalar<StepKey> key);

/// The scores of the token that follows each row of tokens: [rows, vocab_size].
sr::Gather<float, 2> next_scores(Gpt& net, sr::Scattered<const std::int64_t, 2> context);

}  // namespace gpt

#include "demos/gpt/losses.hpp"

#include <span>
#include <stdexcept>
#include <string>

#include "demos/common/philox.hpp"

namespace gpt {
namespace {

/// Copies windows of the text to a tensor [rows, block_size + 1] of int64, the type that LibTorch requires of indices.
torch::Tensor copy_windows(const ModelConfig& config, sr::Broadcast<const std::uint16_t, 1> tokens,
                           sr::Scattered<const std::int64_t, 1> starts) {
  const std::int64_t length = config.block_size + 1;
  auto windows = torch::empty({starts.rows(), length}, torch::kInt64);
  auto* to = windows.data_ptr<std::int64_t>();
  for (const std::int64_t start : starts) {
    for (std::int64_t i = start; i < start + length; ++i) {
      const std::int64_t token = tokens[i];
      if (token >= config.vocab_size) {
        throw std::runtime_error("expected tokens below " + std::to_string(config.vocab_size) + ", found " +
                                 std::to_string(token) + " at position " + std::to_string(i) +
                                 ": vocab.txt is of other tokens");
      }
      *to++ = token;
    }
  }
  return windows;
}

/// Seeds the generator that dropout uses. Each slice of each rank has a seed of its own, by its first window.
void seed_dropout(const StepKey& key, std::int64_t first_start) {
  constexpr std::uint32_t kPurpose = 0x64726f70;  // keeps these draws apart from others with the same seed
  const auto words =
      demos::philox4x32_10({static_cast<std::uint32_t>(key.step), static_cast<std::uint32_t>(first_start),
                            static_cast<std::uint32_t>(first_start >> 32), kPurpose},
                           key.seed);
  torch::manual_seed((std::uint64_t{words[0]} << 32U) | words[1]);
}

}  // namespace

torch::Tensor loss(Gpt& net, sr::Broadcast<const std::uint16_t, 1> tokens, sr::Scattered<const std::int64_t, 1> starts,
                   StepKey key) {
  if (net.is_training() && net.config().dropout > 0) seed_dropout(key, starts[0]);
  return net.loss(copy_windows(net.config(), tokens, starts));
}

sr::Gather<float, 2> next_scores(Gpt& net, sr::Scattered<const std::int64_t, 2> context) {
  const auto scores = net.next(lt::tensor(context)).contiguous();
  return {std::span(scores.data_ptr<float>(), static_cast<std::size_t>(scores.numel())),
          sr::Shape<2>(scores.size(0), scores.size(1))};
}

}  // namespace gpt

#include "demos/gpt/losses.hpp"

#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "demos/common/philox.hpp"

namespace gpt {
namespace {

using Tokens = sr::ArrayView<const std::uint16_t, 1>;
using Starts = sr::ArrayView<const std::int64_t, 1>;

/// Copies windows of a text in host memory to a tensor [rows, block_size + 1] of int64, the type that LibTorch requires of
/// indices.
torch::Tensor copy_windows(const ModelConfig& config, const Tokens& tokens, const Starts& starts) {
  const std::int64_t length = config.block_size + 1;
  auto windows = torch::empty({starts.rows(), length}, torch::kInt64);
  auto* to = windows.data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < starts.rows(); ++row) {
    for (std::int64_t i = starts[row]; i < starts[row] + length; ++i) {
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

/// The same for a text in a GPU's memory.
torch::Tensor gather_windows(const ModelConfig& config, const Tokens& tokens, const Starts& starts) {
  // Not every version of LibTorch has uint16. So the tokens are read as int16.
  const sr::ArrayView<const std::int16_t, 1> same_bits(reinterpret_cast<const std::int16_t*>(tokens.data()),
                                                       tokens.shape());
  const auto first = lt::tensor(starts);
  const auto positions = first.unsqueeze(1) + torch::arange(config.block_size + 1, first.options());
  const auto windows = lt::tensor(same_bits).index_select(0, positions.flatten()).view(positions.sizes());
  return windows.to(torch::kInt64).bitwise_and(0xffff);
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

torch::Tensor loss_of_windows(Gpt& net, const Tokens& tokens, const Starts& starts,
                              const sr::DeviceScalar<StepKey>& key) {
  const auto first = lt::tensor(starts);  // empty on a rank without windows, which only gathers units
  if (net.is_training() && net.config().dropout > 0 && starts.rows() != 0)
    seed_dropout(key.value(), first[0].item<std::int64_t>());
  const auto windows =
      first.is_cpu() ? copy_windows(net.config(), tokens, starts) : gather_windows(net.config(), tokens, starts);
  std::optional<lt::Autocast> autocast;
  if (net.config().precision == Precision::kBfloat16) autocast.emplace(torch::kBFloat16);
  return net.loss(windows);
}

}  // namespace

torch::Tensor loss(Gpt& net, sr::Broadcast<const std::uint16_t, 1> tokens, sr::Scattered<const std::int64_t, 1> starts,
                   sr::DeviceScalar<StepKey> key) {
  return loss_of_windows(net, tokens, starts, key);
}

torch::Tensor loss_of_copy(Gpt& net, sr::Local<const std::uint16_t, 1> tokens,
                           sr::Scattered<const std::int64_t, 1> starts, sr::DeviceScalar<StepKey> key) {
  return loss_of_windows(net, tokens, starts, key);
}

sr::Gather<float, 2> next_scores(Gpt& net, sr::Scattered<const std::int64_t, 2> context) {
  const auto scores = net.next(lt::tensor(context)).to(torch::kCPU, torch::kFloat32).contiguous();
  return {std::span(scores.data_ptr<float>(), static_cast<std::size_t>(scores.numel())),
          sr::Shape<2>(scores.size(0), scores.size(1))};
}

}  // namespace gpt

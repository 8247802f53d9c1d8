#pragma once

// StagedLoss: the losses of several networks that one step trains one after the other, such as those of a GAN.

#include <torch/torch.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "syncrun/arguments.hpp"
#include "syncrun/detail/export.hpp"
#include "syncrun/torch/torch_interface.hpp"
#include "syncrun/train_step_options.hpp"

namespace syncrun::libtorch {

/// The losses of a step that trains several networks. A loss function of a module that contains the networks returns it:
///
///   lt::StagedLoss<2> gan_loss(Gan& net, sr::Scattered<const float, 4> images, sr::Scattered<const float, 2> noise) {
///     const auto fake = net.generator->forward(lt::tensor(noise));
///     const auto real_score = net.discriminator->forward(lt::tensor(images));
///     const auto fake_score = net.discriminator->forward(fake.detach());
///     return {cross_entropy(real_score, 1) + cross_entropy(fake_score, 0),
///             {[&net, fake] { return cross_entropy(net.discriminator->forward(fake), 1); }}};
///   }
///
/// The step computes the gradient of `first`, averages it, and updates the first network. Then it calls `later[0]`, whose
/// loss updates the second network, and so on. So `later` sees the updated networks, and shares what the loss function has
/// computed, here the generator's forward pass. A stage computes the gradient of its own network only. Each loss is the
/// mean over the rows that the function received. The inputs are valid until the last stage is over. A later stage must not
/// use what was computed with a network that has been updated meanwhile: LibTorch's backward pass then throws.
template <std::size_t kStages>
struct StagedLoss {
  static_assert(kStages >= 2, "a StagedLoss has at least two stages. A loss with one is a torch::Tensor");
  ::torch::Tensor first;                                            ///< The loss of the first network.
  std::array<std::function<::torch::Tensor()>, kStages - 1> later;  ///< The losses of the others.
};

namespace detail {

/// Graphs of the first stage use the collectives of the call that runs, during the lifetime of this object.
class CommAgain {
 public:
  CommAgain(StepComm* kept, Comm* comm) noexcept : kept_(kept) {
    if (kept_ != nullptr) kept_->comm = comm;
  }
  ~CommAgain() {
    if (kept_ != nullptr) kept_->comm = nullptr;
  }
  CommAgain(const CommAgain&) = delete;
  CommAgain& operator=(const CommAgain&) = delete;

 private:
  StepComm* kept_;
};

/// The elements of an input in memory of their own, which `kept` owns. The memory of an input is used again after a call.
template <class T, std::size_t N>
ArrayView<T, N> copy_of(const ArrayView<T, N>& view, std::vector<::torch::Tensor>& kept) {
  const auto bytes = static_cast<std::int64_t>(view.span().size_bytes());
  auto* const data = const_cast<std::remove_const_t<T>*>(view.data());
  kept.push_back(
      ::torch::from_blob(data, {bytes}, ::torch::TensorOptions().dtype(::torch::kUInt8).device(device_here())).clone());
  return {static_cast<T*>(kept.back().data_ptr()), view.shape()};
}

/// An input for a function whose graph lives longer than the call.
template <class P>
struct KeptInput {
  static P& of(P& input, std::vector<::torch::Tensor>&) { return input; }
};
template <class C>
struct KeptInput<C&> {
  static C& of(C& input, std::vector<::torch::Tensor>&) { return input; }
};
template <class T, std::size_t N>
struct KeptInput<Scattered<T, N>> {
  static Scattered<T, N> of(const Scattered<T, N>& input, std::vector<::torch::Tensor>& kept) {
    return {copy_of(input, kept), input.first_row()};
  }
};
template <class T, std::size_t N>
struct KeptInput<Broadcast<T, N>> {
  static Broadcast<T, N> of(const Broadcast<T, N>& input, std::vector<::torch::Tensor>& kept) {
    return Broadcast<T, N>(copy_of(input, kept));
  }
};
template <class T, std::size_t N>
struct KeptInput<Sliced<T, N>> {
  static Sliced<T, N> of(const Sliced<T, N>& input, std::vector<::torch::Tensor>& kept) {
    return Sliced<T, N>(copy_of(input, kept));
  }
};

template <class T>
struct KeptInput<DeviceScalar<T>> {
  static DeviceScalar<T> of(const DeviceScalar<T>& input, std::vector<::torch::Tensor>& kept) {
    return DeviceScalar<T>(copy_of(ArrayView<const T, 1>(input.data(), Shape{1}), kept).data());
  }
};
template <>
struct KeptInput<std::string_view> {
  static std::string_view of(const std::string_view& input, std::vector<::torch::Tensor>& kept) {
    kept.push_back(::torch::empty({static_cast<std::int64_t>(input.size())}, ::torch::kUInt8));  // in host memory
    auto* const text = static_cast<char*>(kept.back().data_ptr());
    std::memcpy(text, input.data(), input.size());
    return {text, input.size()};
  }
};
/// Each stage would write the value anew, and only the first one runs the loss function.
template <class Op, class T, std::size_t N>
struct KeptInput<Update<Op, T, N>> {
  static_assert(sizeof(T) == 0, "the loss function of a staged step cannot take an Update");
};

/// The number of stages of what a loss function returns. 0: no StagedLoss.
template <class R>
inline constexpr std::size_t kStagesOf = 0;
template <std::size_t kStages>
inline constexpr std::size_t kStagesOf<StagedLoss<kStages>> = kStages;

}  // namespace detail
}  // namespace syncrun::libtorch

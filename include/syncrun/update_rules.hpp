#pragma once

// Update rules: how a gradient changes parameters. A rule is a plain struct of hyperparameters. update() applies a rule
// in a body. train_step() makes a whole training step with a rule. A body can take a rule by value, or as
// DeviceScalar<Rule>.
//
// In the formulas, p is a parameter, and g is its gradient plus weight_decay p (L2 regularisation). The other letters
// are hyperparameters and state. `kState` has the names of the state vectors, which are zero at first. All operations are
// element by element, in the type of the parameters.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace syncrun {

/// Stochastic gradient descent:  p -= learning_rate g.
struct Sgd {
  static constexpr std::array<std::string_view, 0> kState{};
  double learning_rate = 0.01;
  double weight_decay = 0;
};

/// Heavy-ball momentum:  v = momentum v - learning_rate g,  p += v.
/// Source: I. Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013,
/// equations 1 and 2.
struct Momentum {
  static constexpr std::array<std::string_view, 1> kState{"v"};
  double learning_rate = 0.01;
  double momentum = 0.9;
  double weight_decay = 0;
};

/// Nesterov's accelerated gradient, written so that the gradient is taken at the parameters themselves:
/// v = momentum v - learning_rate g,  p += momentum v - learning_rate g.
/// Source: Y. Bengio, N. Boulanger-Lewandowski, R. Pascanu, "Advances in Optimizing Recurrent Networks", arXiv
/// 1212.0901, equations 6 and 7.
struct Nesterov {
  static constexpr std::array<std::string_view, 1> kState{"v"};
  double learning_rate = 0.01;
  double momentum = 0.9;
  double weight_decay = 0;
};

/// s += g^2,  p -= learning_rate g / (sqrt(s) + epsilon).
/// Source: J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient Methods", JMLR 12 (2011), figure 1, diagonal form.
/// The article calls epsilon "delta".
struct Adagrad {
  static constexpr std::array<std::string_view, 1> kState{"s"};
  double learning_rate = 0.01;
  double epsilon = 1e-10;
  double weight_decay = 0;
};

/// s = decay s + (1 - decay) g^2,  p -= learning_rate g / (sqrt(s) + epsilon).
/// Source: T. Tieleman, G. Hinton, Coursera "Neural Networks for Machine Learning", lecture 6e (2012), slide 29.
struct RmsProp {
  static constexpr std::array<std::string_view, 1> kState{"s"};
  double learning_rate = 0.001;
  double decay = 0.9;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

/// s = decay s + (1 - decay) g^2,  d = sqrt(u + epsilon) / sqrt(s + epsilon) g,  u = decay u + (1 - decay) d^2,
/// p -= learning_rate d.
/// Source: M. Zeiler, "ADADELTA", arXiv 1212.5701, algorithm 1, which has learning_rate 1.
struct Adadelta {
  static constexpr std::array<std::string_view, 2> kState{"s", "u"};
  double learning_rate = 1;
  double decay = 0.95;
  double epsilon = 1e-6;
  double weight_decay = 0;
};

/// m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2,
/// p -= learning_rate / (1 - beta1^step) m / (sqrt(v / (1 - beta2^step)) + epsilon).
/// Source: D. Kingma, J. Ba, "Adam", arXiv 1412.6980, algorithm 1.
/// If decoupled_weight_decay is not 0, the first operation is p *= 1 - learning_rate decoupled_weight_decay. Source:
/// I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization" (AdamW), arXiv 1711.05101, algorithm 2, scaled as
/// in PyTorch.
struct Adam {
  static constexpr std::array<std::string_view, 2> kState{"m", "v"};
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double decoupled_weight_decay = 0;
  /// The number of this update, from 1. A train step sets it.
  std::int64_t step = 0;
};

/// m = beta1 m + (1 - beta1) g,  u = max(beta2 u, |g| + epsilon),  p -= learning_rate / (1 - beta1^step) m / u.
/// Source: arXiv 1412.6980, algorithm 2. As in PyTorch, epsilon avoids a division by zero if a gradient has always been
/// zero.
struct Adamax {
  static constexpr std::array<std::string_view, 2> kState{"m", "u"};
  double learning_rate = 0.002;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  /// The number of this update, from 1. A train step sets it.
  std::int64_t step = 0;
};

namespace detail {
enum class UpdateKind : std::uint8_t { sgd, momentum, nesterov, adagrad, rmsprop, adadelta, adam, adamax };

template <class Rule>
struct UpdateKindOf;
// clang-format off
template <> struct UpdateKindOf<Sgd>      { static constexpr UpdateKind value = UpdateKind::sgd; };
template <> struct UpdateKindOf<Momentum> { static constexpr UpdateKind value = UpdateKind::momentum; };
template <> struct UpdateKindOf<Nesterov> { static constexpr UpdateKind value = UpdateKind::nesterov; };
template <> struct UpdateKindOf<Adagrad>  { static constexpr UpdateKind value = UpdateKind::adagrad; };
template <> struct UpdateKindOf<RmsProp>  { static constexpr UpdateKind value = UpdateKind::rmsprop; };
template <> struct UpdateKindOf<Adadelta> { static constexpr UpdateKind value = UpdateKind::adadelta; };
template <> struct UpdateKindOf<Adam>     { static constexpr UpdateKind value = UpdateKind::adam; };
template <> struct UpdateKindOf<Adamax>   { static constexpr UpdateKind value = UpdateKind::adamax; };
// clang-format on
}  // namespace detail

/// One of the rules above. `Rule::kState` has the names of the rule's state vectors. Each state vector is as long as
/// the parameters.
template <class Rule>
concept UpdateRule = requires { detail::UpdateKindOf<Rule>::value; };

}  // namespace syncrun

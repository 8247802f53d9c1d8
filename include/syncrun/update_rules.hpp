#pragma once

// Update rules: how a gradient changes parameters. A rule is a plain struct of hyperparameters. update() applies a rule
// in a body. train_step() makes a whole training step with a rule. A body can take a rule by value, or as
// DeviceScalar<Rule>.
//
// In the formulas, p is a parameter, and g is its gradient plus weight_decay p (L2 regularisation). The other letters
// are hyperparameters and state. `kState` has the names of the state vectors, which are zero at first. All operations
// are element by element, in the type of the parameters.
//
// `step` is the number of the update, from 1. A train step sets it. Rules with decoupled_weight_decay first compute
// p *= 1 - learning_rate decoupled_weight_decay. Source: I. Loshchilov, F. Hutter, "Decoupled Weight Decay
// Regularization" (AdamW), arXiv 1711.05101, algorithm 2, scaled as in PyTorch.
//
// All rules but Momentum and Nesterov, with the same hyperparameters, compute what the rules of PyTorch's torch.optim
// do. NAdam does so only if beta1 and momentum_decay are the same in all steps. Defaults can differ.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace syncrun {

/// Stochastic gradient descent:  p -= learning_rate g.
struct Sgd {
  static constexpr std::array<std::string_view, 0> kState{};
  double learning_rate = 0.01;
  double weight_decay = 0;
};

/// Momentum as in PyTorch's torch.optim.SGD:  b = momentum b + (1 - dampening) g, and b = g in step 1. Then
/// p -= learning_rate b, or if nesterov is true, p -= learning_rate (g + momentum b). Nesterov requires a momentum
/// above 0 and no dampening. Unlike the velocities of Momentum and Nesterov, b does not contain the learning rate, so a
/// new rate takes effect at once. Source: documentation of torch.optim.SGD, PyTorch 2.
struct SgdMomentum {
  static constexpr std::array<std::string_view, 1> kState{"b"};
  double learning_rate = 0.01;
  double momentum = 0.9;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  /// Only dampening needs it.
  std::int64_t step = 0;
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

/// s += g^2,  p -= learning_rate / (1 + (step - 1) learning_rate_decay) g / (sqrt(s) + epsilon).
/// An element of s that is 0 is set to initial_accumulator first.
/// Source: J. Duchi, E. Hazan, Y. Singer, "Adaptive Subgradient Methods", JMLR 12 (2011), figure 1, diagonal form.
/// The article calls epsilon "delta". It has neither learning_rate_decay nor initial_accumulator, which are PyTorch's.
struct Adagrad {
  static constexpr std::array<std::string_view, 1> kState{"s"};
  double learning_rate = 0.01;
  double epsilon = 1e-10;
  double weight_decay = 0;
  double learning_rate_decay = 0;
  double initial_accumulator = 0;
  /// Only learning_rate_decay needs it.
  std::int64_t step = 0;
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

/// RmsProp with momentum, as in PyTorch:  b = momentum b + g / (sqrt(s) + epsilon),  p -= learning_rate b.
/// Source: documentation of torch.optim.RMSprop, PyTorch 2. It calls decay "alpha".
struct RmsPropMomentum {
  static constexpr std::array<std::string_view, 2> kState{"s", "b"};
  double learning_rate = 0.001;
  double decay = 0.9;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double momentum = 0.9;
};

/// RmsProp divided by an estimate of the standard deviation:  a = decay a + (1 - decay) g, and s - a^2 in place of s
/// under the root, or 0 if rounding makes it negative.
/// Source: A. Graves, "Generating Sequences With Recurrent Neural Networks", arXiv 1308.0850, equations 38 to 40, with
/// epsilon outside of the root, as in PyTorch.
struct CenteredRmsProp {
  static constexpr std::array<std::string_view, 2> kState{"s", "a"};
  double learning_rate = 0.001;
  double decay = 0.9;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

/// s and a are those of CenteredRmsProp, which says what decay does. With the momentum of RmsPropMomentum:
/// b = momentum b + g / (sqrt(s - a^2) + epsilon),  p -= learning_rate b.
struct CenteredRmsPropMomentum {
  static constexpr std::array<std::string_view, 3> kState{"s", "a", "b"};
  double learning_rate = 0.001;
  double decay = 0.9;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double momentum = 0.9;
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
struct Adam {
  static constexpr std::array<std::string_view, 2> kState{"m", "v"};
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double decoupled_weight_decay = 0;
  std::int64_t step = 0;
};

/// Adam that divides by the largest v so far. m and v are those of Adam, with beta1 and beta2.
/// largest_v = max(largest_v, v),
/// p -= learning_rate / (1 - beta1^step) m / (sqrt(largest_v / (1 - beta2^step)) + epsilon).
/// Source: S. Reddi, S. Kale, S. Kumar, "On the Convergence of Adam and Beyond", arXiv 1904.09237, algorithm 2, with
/// the corrections of Adam, as in PyTorch (amsgrad=True).
struct AmsGrad {
  static constexpr std::array<std::string_view, 3> kState{"m", "v", "largest_v"};
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double decoupled_weight_decay = 0;
  std::int64_t step = 0;
};

/// Adam with Nesterov's momentum. m and v are those of Adam. With f(i) = beta1 (1 - 0.96^(i momentum_decay) / 2), and
/// F(i) = f(1) f(2) ... f(i):
/// p -= learning_rate (f(step + 1) m / (1 - F(step + 1)) + (1 - f(step)) g / (1 - F(step))) /
///      (sqrt(v / (1 - beta2^step)) + epsilon).
/// F is computed from the hyperparameters of this step. If beta1 or momentum_decay changes, PyTorch differs, which
/// multiplies F step by step.
/// Source: T. Dozat, "Incorporating Nesterov Momentum into Adam", ICLR 2016 workshop, as in torch.optim.NAdam.
struct NAdam {
  static constexpr std::array<std::string_view, 2> kState{"m", "v"};
  double learning_rate = 0.002;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double decoupled_weight_decay = 0;
  double momentum_decay = 0.004;
  std::int64_t step = 0;
};

/// Adam whose rate is rectified in the first steps. m and v are those of Adam. With l = 2 / (1 - beta2) - 1 and
/// t = l - 2 step beta2^step / (1 - beta2^step):
/// p -= learning_rate / (1 - beta1^step) m r / (sqrt(v) + epsilon), with
/// r = sqrt((1 - beta2^step) (t - 4) (t - 2) l / ((l - 4) (l - 2) t)). While t is at most 5, r and the divisor are 1.
/// Source: L. Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", arXiv 1908.03265, algorithm 2, as
/// in torch.optim.RAdam.
struct RAdam {
  static constexpr std::array<std::string_view, 2> kState{"m", "v"};
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double decoupled_weight_decay = 0;
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
  std::int64_t step = 0;
};

/// p -= learning_rate sign(beta1 m + (1 - beta1) g),  m = beta2 m + (1 - beta2) g. The sign of 0 is 0.
/// Source: X. Chen et al., "Symbolic Discovery of Optimization Algorithms", arXiv 2302.06675, algorithm 2. The weight
/// decay of the article is decoupled_weight_decay.
struct Lion {
  static constexpr std::array<std::string_view, 1> kState{"m"};
  double learning_rate = 0.0001;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
  double decoupled_weight_decay = 0;
};

namespace detail {
/// The rule of AveragedWeights:  p += learning_rate (g - p). Here p is the average, and g are the parameters.
struct MovingAverage {
  static constexpr std::array<std::string_view, 0> kState{};
  double learning_rate = 1;
  double weight_decay = 0;
};

enum class UpdateKind : std::uint8_t {
  sgd,
  sgd_momentum,
  momentum,
  nesterov,
  adagrad,
  rmsprop,
  rmsprop_momentum,
  centered_rmsprop,
  centered_rmsprop_momentum,
  adadelta,
  adam,
  amsgrad,
  nadam,
  radam,
  adamax,
  lion,
  moving_average
};

template <class... Rules>
struct RuleList {
  template <class Rule>
  static constexpr bool kHas = (std::is_same_v<Rule, Rules> || ...);
  /// The position of a rule in the list.
  template <class Rule>
  static constexpr std::size_t position() noexcept {
    std::size_t at = 0;
    static_cast<void>(((std::is_same_v<Rule, Rules> ? false : (++at, true)) && ...));
    return at;
  }
};
/// In the order of UpdateKind.
using AllRules = RuleList<Sgd, SgdMomentum, Momentum, Nesterov, Adagrad, RmsProp, RmsPropMomentum, CenteredRmsProp,
                          CenteredRmsPropMomentum, Adadelta, Adam, AmsGrad, NAdam, RAdam, Adamax, Lion, MovingAverage>;

template <class Rule>
  requires AllRules::kHas<Rule>
struct UpdateKindOf {
  static constexpr auto value = static_cast<UpdateKind>(AllRules::position<Rule>());
};
}  // namespace detail

/// One of the rules above. `Rule::kState` has the names of the rule's state vectors. Each state vector is as long as
/// the parameters.
template <class Rule>
concept UpdateRule = detail::AllRules::kHas<Rule>;

}  // namespace syncrun

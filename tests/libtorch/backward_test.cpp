// Options of the backward pass: reports of final gradients, and the check of gradients. The first tests run in one
// process, with a report that writes down what it is told.

#include <torch/torch.h>

#include <csignal>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/libtorch/models.hpp"
#include "tests/support/on_workers.hpp"

namespace {

namespace watched {

using models::lt::BackwardOptions;
using models::lt::FiniteCheck;
using models::lt::GradientAverage;
using models::lt::parameters;
using models::lt::Replica;
using models::lt::tensor;
using models::lt::detail::BoundModule;

using Rows = sr::Scattered<const float, 2>;
using Targets = sr::Scattered<const float, 1>;

constexpr BackwardOptions kReports{.average = GradientAverage::during_backward};
constexpr BackwardOptions kChecks{.check = FiniteCheck::gradients};
constexpr BackwardOptions kBoth{.average = GradientAverage::during_backward, .check = FiniteCheck::gradients};

/// Runs backward passes of a module, and keeps what each report has said.
template <class Net>
class Passes {
 public:
  explicit Passes(std::shared_ptr<Net> net)
      : net_(std::move(net)),
        bound_(net_),
        params_(static_cast<std::size_t>(bound_.elements())),
        gradient_(params_.size()) {
    bound_.store(params_);
  }

  struct Reported {
    std::int64_t first;
    std::vector<float> gradient;  // from this element on, at the time of the report
  };

  template <class Loss>
  void run(const Loss& loss, FiniteCheck check = FiniteCheck::loss) {
    reports_.clear();
    bound_.bind(params_, gradient_);
    bound_.backward(loss(*net_), {.check = check, .report = [&](std::int64_t first) {
                                    if (fails_) throw std::out_of_range("the report had enough");
                                    reports_.push_back({first, {gradient_.begin() + first, gradient_.end()}});
                                  }});
  }
  template <class Loss>
  std::vector<float> gradient_without_reports(const Loss& loss) {
    bound_.bind(params_, gradient_);
    bound_.backward(loss(*net_));
    return gradient_;
  }
  /// Reports go from the end to the beginning, all of the gradient is reported, and what was reported did not change.
  void expect_right() const {
    ASSERT_FALSE(reports_.empty());
    auto before = bound_.elements();
    for (const Reported& each : reports_) {
      EXPECT_LT(each.first, before);
      before = each.first;
      EXPECT_TRUE(std::equal(each.gradient.begin(), each.gradient.end(), gradient_.begin() + each.first)) << each.first;
    }
    EXPECT_EQ(before, 0);
  }
  std::vector<std::int64_t> firsts() const {
    std::vector<std::int64_t> firsts;
    for (const Reported& each : reports_) firsts.push_back(each.first);
    return firsts;
  }
  void fail_from_now_on(bool fails) { fails_ = fails; }
  const std::vector<float>& gradient() const { return gradient_; }

 private:
  std::shared_ptr<Net> net_;
  BoundModule bound_;
  std::vector<float> params_;
  std::vector<float> gradient_;
  std::vector<Reported> reports_;
  bool fails_ = false;
};

torch::Tensor square(models::Mlp& net) { return net.forward(torch::ones({5, models::kInputs})).pow(2).mean(); }

TEST(LibtorchReports, GrowFromTheEndAndAreFinal) {
  torch::manual_seed(3);
  Passes passes(std::make_shared<models::Mlp>());
  const auto wanted = passes.gradient_without_reports(square);
  for (int i = 0; i < 3; ++i) {
    passes.run(square);
    passes.expect_right();
    EXPECT_GE(passes.firsts().size(), 2U) << "the last layer is reported before the first";
    EXPECT_EQ(passes.gradient(), wanted);
  }
}

TEST(LibtorchReports, WaitForTheLastContributionToATiedParameter) {
  torch::manual_seed(3);
  Passes passes(std::make_shared<models::Transformer>(16, 2));
  const auto tokens = models::make_tokens(6);
  const auto rows = torch::tensor(std::vector<std::int64_t>(tokens.begin(), tokens.end())).reshape({6, -1});
  const auto loss = [&](models::Transformer& net) { return models::next_token_loss(net, rows); };
  const auto wanted = passes.gradient_without_reports(loss);
  passes.run(loss);
  passes.expect_right();
  EXPECT_GE(passes.firsts().size(), 4U);
  EXPECT_EQ(passes.gradient(), wanted);
}

TEST(LibtorchReports, AreNotStalledByUnusedParameters) {
  Passes passes(std::make_shared<models::Mlp>());
  // The last layer is not used: its elements begin at 63. They are final before the backward pass.
  passes.run([](models::Mlp& net) { return net.first(torch::ones({2, models::kInputs})).pow(2).mean(); });
  passes.expect_right();
  EXPECT_EQ(passes.firsts().front(), 63);
  // The first layer is not used.
  passes.run([](models::Mlp& net) { return net.last(torch::ones({2, 9})).pow(2).mean(); });
  passes.expect_right();
  EXPECT_EQ(passes.firsts().back(), 0);
  // The loss is a parameter itself.
  passes.run([](models::Mlp& net) { return net.last->bias; });
  passes.expect_right();
}

TEST(LibtorchReports, DoNotIncludeBackwardPassesOfTheProgram) {
  Passes passes(std::make_shared<models::Mlp>());
  passes.run([](models::Mlp& net) {
    square(net).backward();
    return square(net);
  });
  passes.expect_right();
  auto once = passes.gradient_without_reports(square);
  passes.run([](models::Mlp& net) {
    square(net).backward();
    return square(net);
  });
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_FLOAT_EQ(passes.gradient()[i], 2 * once[i]);
}

TEST(LibtorchReports, ThatThrowEndTheBackwardPassWithTheirException) {
  Passes passes(std::make_shared<models::Mlp>());
  passes.fail_from_now_on(true);
  EXPECT_THROW(passes.run(square), std::out_of_range);
  passes.fail_from_now_on(false);
  passes.run(square);
  passes.expect_right();
}

/// A backward pass inside of a backward pass, as that of checkpointed activations.
class Inner : public torch::autograd::Function<Inner> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x, models::Mlp* net) {
    context->save_for_backward({x});
    context->saved_data["net"] = reinterpret_cast<std::int64_t>(net);
    return net->forward(x).pow(2).mean();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto& net = *reinterpret_cast<models::Mlp*>(context->saved_data["net"].toInt());
    const torch::AutoGradMode grad_mode(true);
    const auto x = context->get_saved_variables()[0].detach();
    (net.forward(x).pow(2).mean() * gradients[0].item<float>()).backward();
    return {torch::zeros_like(x), {}};
  }
};
torch::Tensor loss_with_an_inner_pass(models::Mlp& net) {
  return Inner::apply(torch::ones({4, models::kInputs}, torch::requires_grad()), &net) + square(net);
}

TEST(LibtorchReports, RefuseABackwardPassInsideOfAnother) {
  Passes passes(std::make_shared<models::Mlp>());
  EXPECT_ERROR(passes.run(loss_with_an_inner_pass), sr::ErrorKind::usage,
               "was added to after it was final: the backward pass contains another backward pass");
  passes.run(square);
  passes.expect_right();
  passes.gradient_without_reports(loss_with_an_inner_pass);  // works, as before
}

TEST(LibtorchReports, RefuseAGradientInOtherMemory) {
  Passes passes(std::make_shared<models::Mlp>());
  EXPECT_ERROR(passes.run([](models::Mlp& net) {
    net.last->weight.mutable_grad() = torch::zeros({1, 9});
    return square(net);
  }),
               sr::ErrorKind::usage, "the gradient of parameter 'last.weight' was replaced during the backward pass");
}

// ---- in workers ----

class LibtorchBackward : public OnSharedWorkers {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    OnSharedWorkers::SetUp();
    samples_ = models::make_samples(23);
  }
  sr::Data<float, 2> x() { return session().data(samples_.x, sr::Shape{23, models::kInputs}); }
  sr::Data<float, 1> y() { return session().data(samples_.y); }

  /// The error of a step with this loss. The parameters stay as they were.
  template <auto kLoss, BackwardOptions kOptions>
  sr::Error error_of() {
    const auto net = session().replicate<Replica<models::Mlp>>(7);
    auto params = parameters(session(), net);
    const auto before = params.get(0).to_vector();
    auto step = models::lt::train_step<sr::Sgd, kLoss, kOptions>(session(), net, params);
    try {
      step(x(), y(), {.learning_rate = 0.1});
      ADD_FAILURE() << "the step did not throw";
    } catch (const sr::Error& error) {
      EXPECT_EQ(error.kind(), sr::ErrorKind::function);
      EXPECT_EQ(params.get(0).to_vector(), before);
      auto good = models::lt::train_step<sr::Sgd, models::mlp_loss, kOptions>(session(), net, params);
      EXPECT_TRUE(std::isfinite(good(x(), y(), {.learning_rate = 0.1})));
      return error;
    }
    return {sr::ErrorKind::usage, ""};
  }

 private:
  models::Samples samples_;
};
INSTANTIATE_ON_WORKERS(LibtorchBackward, 1, 2, 3, 4);

/// Runs 20 steps, and returns the losses and the parameters.
template <auto kLoss, BackwardOptions kOptions, class Net, class... Arguments>
auto losses_of(sr::Session& session, sr::StepForm form, const sr::Data<std::uint8_t, 2>& data,
               const Arguments&... arguments) {
  const auto net = session.replicate<Replica<Net>>(7, arguments...);
  auto params = parameters(session, net);
  auto step =
      models::lt::train_step<sr::Adam, kLoss, kOptions>(session, net, params, {.form = form, .bucket_bytes = 256});
  std::vector<double> losses;
  for (int i = 0; i < 20; ++i) losses.push_back(step(data, {.learning_rate = 0.01}, {.slices = 1 + i % 3}));
  return std::pair(losses, params.get(session.world_size() - 1).to_vector());
}

TEST_P(LibtorchBackward, WithReportsAndChecksHasTheSameBits) {
  const auto tokens = models::make_tokens(23);
  const auto data = session().data(tokens, sr::Shape{23, models::kContext + 1});
  const auto with = [&]<BackwardOptions kOptions>(sr::StepForm form) {
    return losses_of<models::transformer_loss, kOptions, models::Transformer>(session(), form, data, std::int64_t{16},
                                                                              std::int64_t{2});
  };
  const auto plain = with.operator()<BackwardOptions{}>(sr::StepForm::replicated);
  EXPECT_LT(plain.first.back(), plain.first.front());
  EXPECT_EQ(with.operator()<kBoth>(sr::StepForm::replicated), plain);
  const auto sharded = with.operator()<BackwardOptions{}>(sr::StepForm::sharded);
  EXPECT_EQ(with.operator()<BackwardOptions{.check = FiniteCheck::gradients}>(sr::StepForm::sharded), sharded);
}

TEST_P(LibtorchBackward, AShardedStepDoesNotAverageMeanwhile) {
  const auto net = session().replicate<Replica<models::Mlp>>(7);
  const auto params = parameters(session(), net);
  EXPECT_ERROR((models::lt::train_step<sr::Sgd, models::mlp_loss, kReports>(session(), net, params,
                                                                            {.form = sr::StepForm::sharded})),
               sr::ErrorKind::usage, "during_backward is for the replicated form, and this step is sharded");
}

torch::Tensor loss_with_a_throwing_hook(models::Mlp& net, Rows x, Targets y) {
  auto output = net.forward(tensor(x));
  output.register_hook([](const torch::Tensor&) { throw std::out_of_range("the hook had enough"); });
  return models::mean_square(output, tensor(y));
}
/// LibTorch itself fails in a hook of the program.
constexpr int kHookLine = __LINE__ + 1;
torch::Tensor wrong_product(const torch::Tensor& gradient) { return torch::mm(gradient, gradient); }
torch::Tensor loss_with_a_wrong_hook(models::Mlp& net, Rows x, Targets y) {
  auto output = net.forward(tensor(x));
  if (x.first_row() != 0 || x.rows() == 23)
    output.register_hook([](const torch::Tensor& gradient) { return wrong_product(gradient); });
  return models::mean_square(output, tensor(y));
}

TEST_P(LibtorchBackward, AnExceptionInAHookIsTheStepsErrorWithRankAndLine) {
  const sr::Error thrown = error_of<loss_with_a_throwing_hook, kReports>();
  EXPECT_NE(thrown.failure().cause.find("the hook had enough"), std::string::npos) << thrown.what();
  for (const sr::Error& error :
       {error_of<loss_with_a_wrong_hook, kReports>(), error_of<loss_with_a_wrong_hook, BackwardOptions{}>()}) {
    const std::string cause = error.failure().cause;
    EXPECT_EQ(error.rank() > 0, world_size() > 1) << error.what();
    EXPECT_NE(cause.find("self must be a matrix"), std::string::npos) << cause;
    if (!models::names_lines()) continue;
    EXPECT_NE(cause.find("backward_test.cpp:" + std::to_string(kHookLine)), std::string::npos) << cause;
  }
}

torch::Tensor inner_pass_loss(models::Mlp& net, Rows x, Targets y) {
  return Inner::apply(torch::ones({4, models::kInputs}, torch::requires_grad()), &net) + models::mlp_loss(net, x, y);
}
TEST_P(LibtorchBackward, AReportThatIsRefusedIsTheStepsError) {
  const std::string cause = error_of<inner_pass_loss, kReports>().failure().cause;
  EXPECT_NE(cause.find("was added to after it was final"), std::string::npos) << cause;
}

torch::Tensor loss_that_ends_the_process(models::Mlp& net, Rows x, Targets y) {
  auto output = net.forward(tensor(x));
  if (x.first_row() != 0) output.register_hook([](const torch::Tensor&) { std::raise(SIGKILL); });
  return models::mean_square(output, tensor(y));
}
TEST_P(LibtorchBackward, AWorkerThatDiesBetweenReportsIsNamed) {
  if (world_size() == 1) GTEST_SKIP() << "needs a second rank";
  {
    const auto net = session().replicate<Replica<models::Mlp>>(7);
    auto params = parameters(session(), net);
    auto step = models::lt::train_step<sr::Sgd, loss_that_ends_the_process, kReports>(session(), net, params);
    EXPECT_ERROR(step(x(), y(), {}), sr::ErrorKind::worker_lost, "rank ");
  }
  end_session();
}

// ---- gradients that are not finite ----

/// The value is 0, but its derivative is not a number.
torch::Tensor loss_with_a_bad_root(models::Mlp& net, Rows x, Targets y) {
  return models::mlp_loss(net, x, y) + torch::sqrt(net.first->bias.pow(2).sum() * 0);
}
torch::Tensor loss_with_a_bad_output(models::Mlp& net, Rows x, Targets y) {
  auto output = net.forward(tensor(x));
  output.register_hook(
      [](const torch::Tensor& gradient) { return gradient * std::numeric_limits<float>::quiet_NaN(); });
  return models::mean_square(output, tensor(y));
}

TEST_P(LibtorchBackward, NamesTheFirstParameterWhoseGradientIsNotFinite) {
  for (const std::string& cause : {error_of<loss_with_a_bad_root, kChecks>().failure().cause,
                                   error_of<loss_with_a_bad_root, kBoth>().failure().cause}) {
    EXPECT_NE(cause.find("the gradient of parameter 'first.bias' is nan at element 0 in training run 1 of this module"),
              std::string::npos)
        << cause;
  }
  // The last layer is the first in the backward pass.
  const std::string cause = error_of<loss_with_a_bad_output, kChecks>().failure().cause;
  EXPECT_NE(cause.find("the gradient of parameter 'last."), std::string::npos) << cause;
  EXPECT_NE(cause.find("is nan at element 0"), std::string::npos) << cause;
}

TEST_P(LibtorchBackward, ChecksOnlyTheLossByDefault) {
  const auto net = session().replicate<Replica<models::Mlp>>(7);
  auto params = parameters(session(), net);
  auto step = models::lt::train_step<sr::Sgd, loss_with_a_bad_root>(session(), net, params);
  EXPECT_TRUE(std::isfinite(step(x(), y(), {.learning_rate = 0.1})));
  EXPECT_TRUE(std::isnan(params.get(0)[54]));  // first.weight has 54 elements
}

}  // namespace watched
}  // namespace

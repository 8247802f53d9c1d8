#include "demos/mnist/checkpoints.hpp"

#include <sstream>
#include <string>

#include "demos/common/resume.hpp"

namespace mnist {
namespace {

constexpr const char* kFormat = "syncrun-mnist 1";

const char* dtype_of(const Options& options) {
  return options.precision == Precision::kFloat64 ? "float64" : "float32";
}

/// Throws UsageError if the checkpoint does not fit the options and the data set. Learning rate, momentum and batch
/// size are not checked, because they may change when training continues.
void check(const sr::Checkpoint& found, const Options& options, const Digits& digits) {
  const auto expect = [&](const char* name, const std::string& expected) {
    const std::string got = found.has_value(name) ? found.text(name) : "";
    if (got == expected) return;
    throw UsageError("--checkpoint: expected a checkpoint with " + std::string(name) + " '" + expected + "', got '" +
                     got + "' in " + options.checkpoint.string());
  };
  expect("format", kFormat);
  expect("model", options.model_text);
  expect("dtype", dtype_of(options));
  expect("seed", std::to_string(options.seed));
  expect("rows", std::to_string(digits.training().rows()));
  expect("pixels", std::to_string(digits.pixels()));
}

}  // namespace

Checkpoints::Checkpoints(const Options& options, const Digits& digits) : options_(options), pixels_(digits.pixels()) {
  if (options.checkpoint.empty()) return;
  if (!demos::goes_on({.path = options.checkpoint,
                       .has_checkpoint = sr::Checkpoint::exists(options.checkpoint),
                       .resume = options.resume,
                       .is_restarted = sr::restarts() > 0})) {
    return;
  }
  found_.emplace(options.checkpoint);
  check(*found_, options, digits);
}

template <class T>
int Checkpoints::resume(const Progress<T>& progress, Report& report) {
  if (!found_) return 0;
  found_->load({{"params", progress.params}, {"velocity", progress.velocity}});
  progress.order = found_->array<std::int64_t, 1>("order").to_vector();
  std::istringstream(found_->text("random")) >> progress.random;
  progress.step = found_->value<std::uint32_t>("step");
  if (found_->has_value("pass_rows"))
    progress.pass = {found_->value<std::size_t>("pass_rows"), found_->value<double>("pass_loss_sum")};
  losses_ = found_->array<double, 1>("losses").to_vector();
  found_.reset();
  report.resume(options_.checkpoint.string(), losses_);
  return static_cast<int>(losses_.size() / 2);
}

template <class T>
void Checkpoints::save(int epoch, double training_loss, double validation_loss, const Progress<T>& progress) {
  if (options_.checkpoint.empty()) return;
  losses_.insert(losses_.end(), {training_loss, validation_loss});
  if (epoch % options_.checkpoint_every == 0 || epoch == options_.epochs) save_in_epoch(progress);
}

template <class T>
void Checkpoints::save_in_epoch(const Progress<T>& progress) {
  std::ostringstream random;
  random << progress.random;
  sr::save_checkpoint(
      options_.checkpoint,
      {{"params", progress.params}, {"velocity", progress.velocity}, {"order", progress.order}, {"losses", losses_}},
      {{"format", kFormat},
       {"model", options_.model_text},
       {"dtype", dtype_of(options_)},
       {"seed", options_.seed},
       {"rows", progress.order.size()},
       {"pixels", pixels_},
       {"epoch", losses_.size() / 2},
       {"step", progress.step},
       {"pass_rows", progress.pass.rows},
       {"pass_loss_sum", progress.pass.loss_sum},
       {"random", random.str()}});
}

template int Checkpoints::resume(const Progress<float>&, Report&);
template int Checkpoints::resume(const Progress<double>&, Report&);
template void Checkpoints::save(int, double, double, const Progress<float>&);
template void Checkpoints::save(int, double, double, const Progress<double>&);
template void Checkpoints::save_in_epoch(const Progress<float>&);
template void Checkpoints::save_in_epoch(const Progress<double>&);

}  // namespace mnist

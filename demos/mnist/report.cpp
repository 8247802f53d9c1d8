#include "demos/mnist/report.hpp"

#include <cerrno>
#include <system_error>

namespace mnist {

Report::Report(const Options& options) : model_(options.model_text), epochs_(options.epochs) {
  if (options.losses.empty()) return;
  losses_.reset(std::fopen(options.losses.c_str(), "w"));
  if (losses_) return;
  const std::string reason = std::generic_category().message(errno);
  throw UsageError("--losses: expected a file that can be written, got '" + options.losses + "': " + reason);
}

void Report::start(const Digits& digits, const std::vector<std::string>& devices) {
  std::printf("%s: %zu training rows, %zu held out for validation, %zu to test; %zu %s (%s", model_.c_str(),
              digits.training().rows(), digits.validation().rows(), digits.test().rows(), devices.size(),
              devices.size() == 1 ? "worker" : "workers", devices.front().c_str());
  if (devices.size() > 1) std::printf(" to %s", devices.back().c_str());
  std::printf(")\n");
  std::fflush(stdout);
}

void Report::resume(const std::string& from, std::span<const double> losses) {
  const std::size_t epochs = losses.size() / 2;
  std::printf("going on after epoch %zu, from %s\n", epochs, from.c_str());
  std::fflush(stdout);
  for (std::size_t i = 0; i < epochs; ++i) {
    write_losses(static_cast<int>(i) + 1, losses[2 * i], losses[2 * i + 1]);
  }
}

void Report::write_losses(int epoch, double training, double validation) {
  if (!losses_) return;
  std::fprintf(losses_.get(), "%d %.17g %.17g\n", epoch, training, validation);
  std::fflush(losses_.get());
}

void Report::epoch(const EpochResult& result) {
  std::printf("epoch %2d/%d  loss %.6f  validation loss %.6f  validation accuracy %.2f %%  %.2f s\n", result.epoch,
              epochs_, result.training_loss, result.validation_loss, 100 * result.validation_accuracy,
              result.elapsed.count());
  std::fflush(stdout);
  write_losses(result.epoch, result.training_loss, result.validation_loss);
}

void Report::stop(int epoch, std::size_t rows) {
  std::printf("told to stop: saved after %zu rows of epoch %d\n", rows, epoch);
  std::fflush(stdout);
}

void Report::test_accuracy(double accuracy) {
  std::printf("test accuracy: %.2f %%\n", 100 * accuracy);
  std::fflush(stdout);
}

}  // namespace mnist

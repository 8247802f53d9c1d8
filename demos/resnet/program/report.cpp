#include "demos/resnet/program/report.hpp"

#include <cstdio>

namespace resnet {
namespace {

double rows_per_second(const Sums& sums, Seconds elapsed) { return static_cast<double>(sums.rows) / elapsed.count(); }

}  // namespace

std::string describe(const Architecture& architecture) {
  const ArchitectureSpec& spec = architecture.spec;
  const std::string size = std::to_string(spec.image_size);
  return "ResNet-" + std::to_string(spec.depth) + ", width " + std::to_string(spec.width) + ", " + size + " x " + size +
         " pixels, " + std::to_string(spec.classes) + " classes";
}

void Sums::add(std::int64_t more_rows, double mean_loss, std::int64_t more_correct) {
  rows += more_rows;
  loss += mean_loss * static_cast<double>(more_rows);
  correct += more_correct;
}

void Report::start(const Architecture& architecture, const Dataset& dataset, std::int64_t steps_per_epoch,
                   const std::vector<std::string>& devices) {
  std::printf("%s: %zu training rows, %zu to evaluate; %zu %s (%s", describe(architecture).c_str(),
              dataset.training_rows().size(), dataset.evaluation_rows().size(), devices.size(),
              devices.size() == 1 ? "worker" : "workers", devices.front().c_str());
  if (devices.size() > 1) std::printf(" to %s", devices.back().c_str());
  std::printf(")\n%s: learning rate up to %g in %g epochs, then down to 0; %lld steps of %lld rows per epoch\n",
              options_.rule.name.c_str(), options_.rule.learning_rate, options_.warmup(),
              static_cast<long long>(steps_per_epoch), static_cast<long long>(options_.batch_rows));
  std::fflush(stdout);
}

void Report::resume(int epochs, const std::string& from) {
  std::printf("going on after epoch %d, from %s\n", epochs, from.c_str());
  std::fflush(stdout);
}

void Report::note(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void Report::interval(const Interval& interval) {
  std::printf("epoch %2d/%d  step %lld/%lld  loss %.6f  learning rate %.6f  %.1f images/s\n", interval.epoch,
              options_.epochs, static_cast<long long>(interval.step), static_cast<long long>(interval.steps_per_epoch),
              interval.sums.mean_loss(), interval.learning_rate, rows_per_second(interval.sums, interval.elapsed));
  std::fflush(stdout);
}

void Report::epoch(const EpochResult& result) {
  std::printf("epoch %2d/%d  loss %.6f  training accuracy %.2f %%", result.epoch, options_.epochs,
              result.training.mean_loss(), 100 * result.training.accuracy());
  if (result.evaluation) {
    std::printf("  evaluation loss %.6f  evaluation accuracy %.2f %%", result.evaluation->mean_loss(),
                100 * result.evaluation->accuracy());
  }
  std::printf("  %.1f images/s  %.2f s\n", rows_per_second(result.training, result.elapsed), result.elapsed.count());
  std::fflush(stdout);
}

void Report::evaluation_accuracy(double accuracy) {
  std::printf("evaluation accuracy: %.2f %%\n", 100 * accuracy);
  std::fflush(stdout);
}

}  // namespace resnet

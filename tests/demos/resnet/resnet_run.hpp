#pragma once

// Runs of syncrun-resnet, for tests that look at what it prints and saves.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/demos/command.hpp"

using Words = std::vector<std::string>;

Words with(Words words, const Words& more);

/// The command line of syncrun-resnet under `syncrun`: on these devices ("cuda0,cuda1"), or on so many CPU devices, also
/// on a machine with GPUs.
Words resnet_on(const std::string& devices, const Words& options);
Words resnet_on(int workers, const Words& options);
CommandResult run_resnet_on(int workers, const Words& options);

/// What an epoch's line says.
struct EpochLine {
  double loss;
  double training_accuracy;    // in per cent
  double evaluation_loss;      // 0: none
  double evaluation_accuracy;  // in per cent
};

/// The lines of all epochs; fails where the run does.
std::vector<EpochLine> epochs_of(const CommandResult& result);
std::vector<EpochLine> epochs_on(int workers, const Words& options);

/// Starts a command, whose output nobody sees, and kills it with SIGKILL as soon as `is_time`. False where it was over before
/// that, or could not be started.
bool run_and_kill(const Words& command, const std::function<bool()>& is_time);

/// Whether what a checkpoint holds is from after that epoch.
bool is_after_epoch(const std::filesystem::path& checkpoint, int epoch);

/// Arrays of a checkpoint by name, each as its file's bytes; fails where there is none.
std::vector<std::string> saved_arrays(const std::filesystem::path& checkpoint, const std::vector<const char*>& arrays);

/// Whether this build has a network for CPU devices.
bool has_cpu_network();

/// The digits that come with Syncrun, each pixel 4 x 4 of it, as the pairs of files that syncrun-resnet reads.
void write_digits(const std::filesystem::path& folder);

/// Whether devices normalise by all rows, or each by its own.
enum class Normalised { together, alone };

/// What distance_of_trained_params trains.
struct TrainedNetwork {
  Normalised devices = Normalised::together;  // on `devices`
  Normalised others = Normalised::together;   // on `others`
  const char* bucket_mib = "16";              // of 2.7 MiB of gradient; on `others` all is averaged at once
  double learning_rate = 0.001;
};

/// Trains ten steps in float32 on these devices and on those. The norm of the difference of their parameters over that of the
/// latter's. Where both are to be the same it is about 1e-8 a step, until rounding decides for a single ReLU whether it passes:
/// one such step is a gradient apart, and the parameters as far as the learning rate takes them, which is why that is small
/// here. Images are random: on the digits, whose borders are all alike, channels have next to no variance, and this happens in
/// every step.
double distance_of_trained_params(const std::string& devices, const std::string& others,
                                  const TrainedNetwork& network = {});

/// A rate at which the same parameters are less than kSameParams apart, and those that each device has trained for itself
/// more than kOtherParams. At 0.001 both are five times as large, and ReLUs that rounding decides have been
/// seen to make up nearly all of the former.
inline constexpr double kTestedRate = 0.0002;
inline constexpr double kSameParams = 2e-4;
inline constexpr double kOtherParams = 6e-4;

#pragma once

// Runs of syncrun-resnet, for tests that check what it prints and saves.

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/demos/demo_run.hpp"

using demos::testing::CommandResult;
using demos::testing::with;
using demos::testing::Words;

/// The command line of syncrun-resnet under `syncrun`, either on these devices ("cuda0,cuda1"), or on this number of
/// CPU devices, also on a machine with GPUs.
Words resnet_on(const std::string& devices, const Words& options);
Words resnet_on(int workers, const Words& options);
CommandResult run_resnet_on(int workers, const Words& options);

/// The numbers in the line of an epoch.
struct EpochLine {
  double loss;
  double training_accuracy;    // in per cent
  double evaluation_loss;      // 0 if there is none
  double evaluation_accuracy;  // in per cent
};

/// The lines of all epochs. It is a failure of the test if the run fails.
std::vector<EpochLine> epochs_of(const CommandResult& result);
std::vector<EpochLine> epochs_on(int workers, const Words& options);

/// Starts a command, whose output is discarded. Kills it with SIGKILL as soon as `is_time` returns true. Returns false
/// if the command ends before that, or cannot be started.
bool run_and_kill(const Words& command, const std::function<bool()>& is_time);

/// Whether the checkpoint was saved after that epoch.
bool is_after_epoch(const std::filesystem::path& checkpoint, int epoch);

/// The files of these arrays of a checkpoint, as bytes. It is a failure of the test if one of them is missing.
std::vector<std::string> saved_arrays(const std::filesystem::path& checkpoint, const std::vector<const char*>& arrays);

/// Whether this build has a network for CPU devices.
bool has_cpu_network();

/// Writes the digits that are part of Syncrun as the files that syncrun-resnet reads. Each pixel becomes 4 x 4 pixels.
void write_digits(const std::filesystem::path& folder);

/// Whether devices normalise by the rows of all devices, or each by its own rows.
enum class Normalised { together, alone };

/// What distance_of_trained_params() trains.
struct TrainedNetwork {
  Normalised devices = Normalised::together;  // those of `devices`
  Normalised others = Normalised::together;   // those of `others`
  // The size of a bucket. The whole gradient has 2.7 MiB. On `others`, it is averaged at once.
  const char* bucket_mib = "16";
  double learning_rate = 0.001;
};

/// Trains ten steps in float32 on `devices` and on `others`. Returns the norm of the difference of their parameters
/// over the norm of the latter.
/// If both compute the same, the distance grows by about 1e-8 per step, until rounding decides whether a single ReLU
/// passes. After such a step, the gradients differ, and the parameters differ by as much as the learning rate allows.
/// This is why the learning rate is small here. The images are random. On the digits, whose borders are all alike,
/// channels have almost no variance, and this happens in every step.
double distance_of_trained_params(const std::string& devices, const std::string& others,
                                  const TrainedNetwork& network = {});

/// At this learning rate, parameters that must be the same differ by less than kSameParams. Those that each device has
/// trained by itself differ by more than kOtherParams. At 0.001, both are five times as large. There, ReLUs decided by
/// rounding have made up nearly all of the former.
inline constexpr double kTestedRate = 0.0002;
inline constexpr double kSameParams = 2e-4;
inline constexpr double kOtherParams = 6e-4;

#pragma once

// Runs of syncrun-resnet, for tests that look at what it prints and saves.

#include <filesystem>
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

/// All of a file; nothing where there is none.
std::string text_of(const std::filesystem::path& file);

/// Whether this build has a network for CPU devices.
bool has_cpu_network();

/// The digits that come with Syncrun, each pixel 4 x 4 of it, as the pairs of files that syncrun-resnet reads.
void write_digits(const std::filesystem::path& folder);

/// Trains ten steps with synchronised normalisation on these devices and on those. The norm of the difference of their
/// parameters over that of the latter's. Images are random: on the digits, whose borders are all alike, channels have next
/// to no variance, and rounding errors grow a hundredfold from step to step.
double distance_of_trained_params(const std::string& devices, const std::string& others);

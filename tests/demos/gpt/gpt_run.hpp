#pragma once

// Runs of syncrun-gpt, for tests that check its losses.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/demos/demo_run.hpp"

namespace gpt::test {

using demos::testing::CommandResult;
using demos::testing::with;
using demos::testing::Words;

enum class Kind { cpu, cuda };

/// Runs syncrun-gpt under `syncrun`, on this number of devices.
CommandResult run_gpt_on(int workers, const Words& options, Kind kind = Kind::cpu);

/// Trains and returns the losses of all steps.
std::vector<double> losses_on(int workers, const Words& options, Kind kind = Kind::cpu);

/// A failure of the test unless the losses agree, relatively.
void expect_near(const std::vector<double>& got, const std::vector<double>& expected, double tolerance);

/// The number after `label` in the last line of the output that has it. It is a failure of the test if there is none.
double number_after(const std::string& label, const std::string& output);

/// The text that the model has written.
std::string sample_in(const std::string& output);

/// The tokens in a file of the folder that the build has made of the New Testament.
std::vector<std::uint16_t> built_tokens(const std::string& name);

/// A folder with the beginnings of these files, for tests that do not have to learn much. It is removed at the end.
std::string short_text();

/// Options of a model that takes milliseconds per step, and short_text().
Words small();

/// Trains for 14 steps, and again for 8 and then the rest. Also compares the finished models and their texts.
void expect_resumes_equally(int workers, const Words& more = {}, Kind kind = Kind::cpu);

}  // namespace gpt::test

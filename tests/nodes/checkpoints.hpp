#pragma once

// Saves and loads checkpoints in a session on several nodes.

#include <string>
#include <syncrun/syncrun.hpp>

namespace syncrun::test {

/// Saves replicated and scattered variables, and values, which all contain `number`. The largest array has about
/// `megabytes` MiB. Says when everything is ready to be saved, and when it was saved, and waits for a line on standard input
/// each time.
void save_numbers(Session& session, const std::string& folder, int number, int megabytes);

/// The same, but the last rank cannot write large files.
void save_numbers_with_limit(Session& session, const std::string& folder, int number, int megabytes);

/// Loads them in the same way. Throws std::runtime_error if a value is not as it was saved. Prints the number.
void load_numbers(Session& session, const std::string& folder);

}  // namespace syncrun::test

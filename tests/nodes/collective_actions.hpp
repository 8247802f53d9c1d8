#pragma once

// What the test program of nodes does with collectives in the bodies of functions.

#include <string>
#include <syncrun/syncrun.hpp>

/// Returns false if this is no action with collectives.
bool run_collectives(syncrun::Session& session, const std::string& action, double number);

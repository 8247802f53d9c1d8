#pragma once

// The start of a session: the master waits until all workers are ready, and reports what it has started.

#include <memory>

#include "common/protocol/control_block.hpp"
#include "common/text/log.hpp"
#include "launcher/failures/loss_report.hpp"
#include "launcher/pool/segment_heap.hpp"
#include "launcher/pool/worker_pool.hpp"
#include "launcher/profile/profiler.hpp"
#include "launcher/settings/settings.hpp"

namespace syncrun::detail {

/// Waits until all workers are ready. Also used after workers have been replaced. Throws Error if one is not ready:
/// worker_lost, timeout, or the error that the worker failed with.
void await_ready(WorkerPool& pool, LossReport& report, Milliseconds limit);

/// Reports which rank runs on which device, and for each name of a device, its device and the hardware that the worker
/// has found. Under `syncrun`, prints these lines unless `syncrun` is told to be quiet. Without `syncrun`, or if it is
/// quiet, logs them. Also logs the warnings in the settings, and one if an engine has started copies of the program without `syncrun`. Called when all workers are ready.
void announce(const Settings& settings, const ControlBlock& control, Logger& logger);

/// Returns null unless the settings ask for a profile. Allocates in the heap the timelines that the workers write.
/// Throws Error (system).
std::unique_ptr<Profiler> begin_profile(const Settings& settings, ControlHeader& header, SegmentHeap memory);

}  // namespace syncrun::detail

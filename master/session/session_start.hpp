#pragma once

// The start of a session: the master waits until all workers are ready, and reports what it has started.

#include <memory>

#include "common/protocol/control_block.hpp"
#include "common/text/log.hpp"
#include "master/failures/failure_report.hpp"
#include "master/metrics/exporter.hpp"
#include "master/pool/segment_heap.hpp"
#include "master/pool/worker_pool.hpp"
#include "master/profile/profiler.hpp"
#include "master/settings/settings.hpp"

namespace syncrun::detail::master::session {

/// Waits until all workers are ready. Also used after workers have been replaced. Throws Error if one is not ready:
/// worker_lost, timeout, or the error that the worker failed with.
void await_ready(pool::WorkerPool& pool, failures::FailureReport& report, os::Milliseconds limit);

/// Reports which rank runs on which device, and for each name of a device, its device and the hardware that the worker
/// has found. Prints these lines under `syncrun`, and logs them without it, or if it is quiet. Also logs warnings of
/// settings, and one if an engine has started copies of the program without `syncrun`. Called when workers are ready.
void announce(const settings::Settings& settings, const protocol::ControlBlock& control, text::Logger& logger);

/// Returns null unless the settings ask for a profile. Allocates in the heap the timelines that the workers write.
/// Throws Error (system).
std::unique_ptr<profile::Profiler> begin_profile(const settings::Settings& settings, protocol::ControlHeader& header,
                                                 pool::SegmentHeap memory);

/// Returns null unless the settings ask for metrics. Allocates in the heap the totals that the workers count. Both are
/// part of the session for as long as the exporter exists. Throws Error (usage, system).
std::unique_ptr<metrics::Exporter> begin_metrics(const settings::Settings& settings, protocol::ControlHeader& header,
                                                 pool::SegmentHeap memory);

}  // namespace syncrun::detail::master::session

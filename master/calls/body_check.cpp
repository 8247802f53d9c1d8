#include "master/calls/body_check.hpp"

#include "common/text/errors.hpp"

namespace syncrun::detail::master::calls {

namespace {

/// The words for a kind of device in messages.
struct KindWords {
  const char* devices;
  const char* worker;
  const char* others;  // how a user avoids the kind
};

constexpr KindWords words_of(DeviceKind kind) noexcept {
  if (kind == DeviceKind::cpu) return {"CPU", "CpuWorker&", "CUDA devices only (--devices, or on() with CUDA devices)"};
  return {"CUDA", "CudaWorker&", "CPU devices only (syncrun -n cpu, or on() with CPU devices)"};
}

DeviceKind first_of(protocol::DeviceKinds kinds) noexcept {
  return kinds.has(DeviceKind::cpu) ? DeviceKind::cpu : DeviceKind::cuda;
}

}  // namespace

void throw_without_body(const std::string& function, protocol::DeviceKinds missing, const devices::RankDevices& devices,
                        const protocol::RankSet& ranks) {
  const DeviceKind kind = first_of(missing);
  const KindWords words = words_of(kind);
  text::throw_usage("'" + function + "' has no body for " + words.devices + " devices, and the call is for " +
                    devices.describe(ranks, kind) + ": give it one that takes a " + words.worker + ", or call it on " +
                    words.others);
}

void check_constructors(protocol::DeviceKinds constructors, const devices::RankDevices& devices) {
  const protocol::DeviceKinds missing = devices.kinds().without(constructors);
  if (missing.is_empty()) return;
  const DeviceKind kind = first_of(missing);
  const KindWords words = words_of(kind);
  text::throw_usage(std::string("the replicated object cannot be built on ") + words.devices +
                    " devices, and the session has " + devices.describe(devices.all_ranks(), kind) +
                    ": give it a constructor or a factory that takes a " + words.worker + ", or no worker");
}

}  // namespace syncrun::detail::master::calls

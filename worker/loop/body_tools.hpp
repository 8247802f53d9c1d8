#pragma once

// What bodies get from their worker besides the arguments of a call. It stays from call to call.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/text/log.hpp"
#include "syncrun/cuda_worker.hpp"
#include "syncrun/worker.hpp"
#include "worker/call/recordings.hpp"
#include "worker/devices/device_parts.hpp"
#include "worker/process/user_code.hpp"

namespace syncrun::detail::worker::loop {

/// The memory of AnyWorker::scratch.
class Scratch {
 public:
  Scratch(devices::DeviceMemory& memory, call::Recordings& recordings) noexcept
      : device_memory_(memory), recordings_(recordings) {}
  void* at_least(std::size_t bytes) {
    if (bytes <= bytes_) return memory_;
    void* larger = device_memory_.allocate(bytes, os::SharedHeap::Contents::any, "a worker's scratch");
    drop();
    bytes_ = bytes;
    return memory_ = larger;
  }
  void drop() noexcept {
    if (memory_ == nullptr) return;
    device_memory_.release(std::exchange(memory_, nullptr));
    bytes_ = 0;
    recordings_.note_stale();
  }

 private:
  devices::DeviceMemory& device_memory_;
  call::Recordings& recordings_;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

/// The replicated objects that live on this worker, by their numbers. Their destructors are user code.
class ReplicatedObjects {
 public:
  ReplicatedObjects() = default;
  ~ReplicatedObjects() { destroy_all(); }
  ReplicatedObjects(const ReplicatedObjects&) = delete;
  ReplicatedObjects& operator=(const ReplicatedObjects&) = delete;

  /// Throws Error (system) if there is no such object.
  void* at(std::uint64_t id) const {
    const auto found = objects_.find(id);
    if (found != objects_.end()) return found->second.pointer;
    throw Error(ErrorKind::system, "this worker has no replicated object " + std::to_string(id));
  }
  void keep(std::uint64_t id, void* object, void (*destroy)(void*) noexcept) {
    objects_.emplace(id, Object{object, destroy});
  }
  void destroy(std::uint64_t id) noexcept {
    if (const auto object = objects_.extract(id)) object.mapped().destroy();
  }
  void destroy_all() noexcept {
    for (const auto& [id, object] : std::exchange(objects_, {})) object.destroy();
  }

 private:
  struct Object {
    void* pointer;
    void (*destructor)(void*) noexcept;
    void destroy() const noexcept {
      const process::UserCode code;
      destructor(pointer);
    }
  };
  std::unordered_map<std::uint64_t, Object> objects_;
};

struct BodyTools {
  CpuWorker cpu_worker;
  CudaWorker cuda_worker;
  std::unique_ptr<text::Logger> logger;
  std::mt19937_64 rng;
  Scratch scratch;
  ReplicatedObjects objects;
  std::optional<std::mt19937_64> kept_rng{};  // see Session::verify
};

}  // namespace syncrun::detail::worker::loop

#pragma once

// Device: one device of a session, as the user has named it. Session::device finds it.

#include <string>
#include <utility>

namespace syncrun {

/// A device of a session, and the rank of the worker that uses it. For the master only. A Device is a plain value: a
/// program may copy it, keep it in containers, and use it after the session.
///
///   const Device left = session.device("left");          // syncrun --devices left=cuda0,right=cuda1
///   const float loss = f.on(left)(x);
class Device {
 public:
  /// Syncrun calls this. A program calls Session::device.
  Device(int rank, std::string name, std::string id, std::string asked_for) noexcept
      : rank_(rank), name_(std::move(name)), id_(std::move(id)), asked_for_(std::move(asked_for)) {}

  /// The rank of the worker that uses the device, from 0.
  int rank() const noexcept { return rank_; }
  /// The name by which the program has found the device. If that was a rank or the name of the hardware, this is the
  /// first name that the user has given to the device, or id() if the user has given it none.
  const std::string& name() const noexcept { return name_; }
  /// The name of the hardware: "cpu0", "cuda1".
  const std::string& id() const noexcept { return id_; }
  /// What the program has passed to Session::device: a name, the name of the hardware, or a rank.
  const std::string& asked_for() const noexcept { return asked_for_; }

  /// True if the two are the same rank. So two names of one device are equal. Compare only devices of one session.
  friend bool operator==(const Device& a, const Device& b) noexcept { return a.rank_ == b.rank_; }

 private:
  int rank_;
  std::string name_;
  std::string id_;
  std::string asked_for_;
};

}  // namespace syncrun

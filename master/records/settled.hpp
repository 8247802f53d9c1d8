#pragma once

// What the master knows may change whenever it waits: it may take in a failure, or replace a worker. So what was checked
// before a wait must be checked again after it. These types enforce that. Settled shows that there was no wait since, and
// Known gives what it holds only to who shows a Settled. Who publishes a command shows it too. A Settled that is older
// than the last wait is refused, whether or not this wait has changed anything. So each test of such a path finds the
// mistake, also without a loss.
//
//   wait --> Settled --> check, read what is Known --> publish --> the next wait: the Settled is no longer valid

#include <cstdint>
#include <utility>

#include "common/protocol/rank_set.hpp"
#include "syncrun/error.hpp"

namespace syncrun::detail::master::records {

/// Counts the waits of a session.
class Waits {
 public:
  /// The master waits, may wait, or has published a command.
  void note_wait() noexcept { ++waits_; }
  /// A wait has taken in a failure, or replaced a worker.
  void note_change() noexcept { ++changes_; }

 private:
  friend class Settled;
  std::uint64_t waits_ = 0;
  std::uint64_t changes_ = 0;
};

/// Shows that the master has not waited since it was made. It cannot be copied or assigned, so a function that checks and
/// publishes has only one.
class Settled {
 public:
  explicit Settled(const Waits& now) noexcept : now_(&now), waits_(now.waits_), changes_(now.changes_) {}
  Settled(const Settled&) = delete;
  Settled& operator=(const Settled&) = delete;

  /// Throws Error (system) if the master has waited since: a mistake in Syncrun.
  void check() const {
    if (waits_ != now_->waits_) [[unlikely]]
      throw_stale();
  }
  /// For a function that had to wait after it has checked: valid again. Returns false if something has changed meanwhile,
  /// and then everything must be checked again.
  [[nodiscard]] bool renew() noexcept {
    waits_ = now_->waits_;
    return std::exchange(changes_, now_->changes_) == now_->changes_;
  }

 protected:
  /// As old as another one, of which it is a part.
  struct Part {};
  Settled(const Settled& whole, Part) noexcept : now_(whole.now_), waits_(whole.waits_), changes_(whole.changes_) {}

 private:
  [[noreturn]] static void throw_stale() {
    throw Error(ErrorKind::system,
                "Syncrun has used what it knew before a wait: this is a mistake in Syncrun, please report it");
  }

  const Waits* now_;
  std::uint64_t waits_;
  std::uint64_t changes_;
};

/// Settled, and each of these ranks has room for one more command. So the next command for them is published without a
/// wait.
class Room : public Settled {
 public:
  /// After the waits that make the room.
  Room(const Waits& now, const protocol::RankSet& ranks) noexcept : Settled(now), ranks_(ranks) {}
  const protocol::RankSet& ranks() const noexcept { return ranks_; }
  /// The room for a command of these ranks only. Throws Error (system) if there may be none: a mistake in Syncrun.
  Room of(const protocol::RankSet& ranks) const {
    if (ranks_.includes(ranks)) return {*this, ranks};
    throw Error(ErrorKind::system, "Syncrun has made no room for a command: this is a mistake, please report it");
  }

 private:
  Room(const Room& whole, const protocol::RankSet& ranks) noexcept : Settled(whole, Part()), ranks_(ranks) {}

  protocol::RankSet ranks_;
};

/// Something that a wait may change.
template <class T>
class Known {
 public:
  Known() = default;
  explicit Known(T value) : value_(std::move(value)) {}
  const T& operator()(const Settled& settled) const {
    settled.check();
    return value_;
  }
  /// To bring it up to date.
  T& change() noexcept { return value_; }

 private:
  T value_;
};

}  // namespace syncrun::detail::master::records

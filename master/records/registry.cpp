#include "master/records/registry.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace syncrun::detail::master::records {

void Registry::add(const std::shared_ptr<ObjectRecord>& object) {
  std::erase_if(objects_, [](const auto& known) { return known.second.expired(); });
  objects_[object->id] = object;
}

void Registry::release_later(std::function<void()> release) noexcept {
  try {
    const os::MutexLock lock(releases_mutex_);
    if (drops_releases_) return;
    releases_.push_back(std::move(release));
    note_releases();
  } catch (const std::bad_alloc&) {
    // No memory to remember it. What it would free is freed with the session.
  }
}

void Registry::free_later(const FreedVariable& variable) noexcept {
  try {
    const os::MutexLock lock(releases_mutex_);
    freed_.push_back(variable);
    freed_since_.fetch_add(1, std::memory_order_relaxed);
    note_releases();
  } catch (const std::bad_alloc&) {
    // As above.
  }
}

void Registry::note_releases() noexcept {
  has_releases_.store(!releases_.empty() || !freed_.empty(), std::memory_order_relaxed);
}

std::vector<FreedVariable> Registry::take_freed(const protocol::RankSet& busy) {
  const os::MutexLock lock(releases_mutex_);
  const auto others = std::stable_partition(freed_.begin(), freed_.end(),
                                            [&](const FreedVariable& variable) { return !variable.ranks.meets(busy); });
  std::vector<FreedVariable> freed(freed_.begin(), others);
  freed_.erase(freed_.begin(), others);
  freed_since_.store(0, std::memory_order_relaxed);
  note_releases();
  return freed;
}

void Registry::run_releases(const std::function<bool()>& may_run) {
  while (!may_run || may_run()) {
    std::function<void()> release;
    {
      const os::MutexLock lock(releases_mutex_);
      if (releases_.empty()) return note_releases();
      release = std::move(releases_.front());
      releases_.pop_front();  // one at a time, so that a release that throws does not drop the others
    }
    release();
  }
}

void Registry::forget_releases() noexcept {
  // They may hold the last handle of something that leaves more. So they are destroyed without the mutex.
  std::deque<std::function<void()>> dropped;
  const os::MutexLock lock(releases_mutex_);
  drops_releases_ = true;
  dropped.swap(releases_);
  freed_.clear();
}

}  // namespace syncrun::detail::master::records

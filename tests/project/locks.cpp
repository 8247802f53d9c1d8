// Clang accepts this, and refuses it with one of the macros (tests/project/CMakeLists.txt).

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <vector>

#include "common/os/mutex.hpp"

namespace {

namespace detail = syncrun::detail;

class Orders {
 public:
  void add(int order) {
#if defined(WITHOUT_LOCK)
    orders_.push_back(order);
#else
    const detail::os::MutexLock lock(mutex_);
    orders_.push_back(order);
#endif
    has_changed_.notify_all();
  }

  int await_one(std::chrono::milliseconds lap) {
    detail::os::UniqueLock lock(mutex_);
    while (orders_.empty()) {
      has_changed_.wait_for(lock, lap, [this]() SYNCRUN_REQUIRES(mutex_) { return !orders_.empty(); });
      lock.unlock();
#if defined(AFTER_UNLOCK)
      orders_.reserve(1);
#endif
      lock.lock();
    }
    return take();
  }

  bool has(int order) {
    const detail::os::MutexLock lock(mutex_);
#if defined(IN_A_LAMBDA)
    const auto is_it = [this, order](std::size_t place) { return orders_[place] == order; };
    return is_it(0);
#else
    return std::find(orders_.begin(), orders_.end(), order) != orders_.end();
#endif
  }

  int last_answer() {
    const detail::os::MutexLock lock(answering_);
    return answer_;
  }
  /// A listener may answer while it is called.
  void answer(int order) {
    const detail::os::MutexLock lock(answering_);
    if (order > 0) answer(order - 1);
    answer_ = order;
  }

#if defined(OF_ANOTHER_FUNCTION)
  int take_any() { return take(); }
#endif

 private:
  int take() SYNCRUN_REQUIRES(mutex_) {
    const int order = orders_.back();
    orders_.pop_back();
    return order;
  }

  detail::os::Mutex mutex_;
  std::condition_variable has_changed_;
  std::vector<int> orders_ SYNCRUN_GUARDED_BY(mutex_);
  detail::os::RecursiveMutex answering_;
  int answer_ SYNCRUN_GUARDED_BY(answering_) = 0;
};

}  // namespace

int main() {
  Orders orders;
  orders.add(1);
  orders.answer(orders.await_one(std::chrono::milliseconds(1)));
  return orders.has(1) ? orders.last_answer() : 0;
}

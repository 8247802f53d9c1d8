#include "common/process_role.hpp"

#include <atomic>

namespace syncrun::detail {

namespace {
// Atomic, since the own threads of bodies ask, too.
std::atomic<bool> is_worker = false;
}  // namespace

bool is_in_worker() noexcept { return is_worker.load(std::memory_order_relaxed); }
void become_worker() noexcept { is_worker.store(true, std::memory_order_relaxed); }

}  // namespace syncrun::detail

// Comm's members: what a body asks for is checked here, on this rank; that the ranks agree is the core's to check.

#include <functional>
#include <string>

#include "common/errors.hpp"
#include "common/reduce.hpp"
#include "common/rows.hpp"
#include "syncrun/worker.hpp"
#include "worker/collectives.hpp"

namespace syncrun {

namespace {

using detail::throw_usage;

/// Marks the time a body spends in a collective.
class InCollective {
 public:
  explicit InCollective(detail::CommCore& core) noexcept : core_(core) { core_.enter(); }
  ~InCollective() { core_.leave(); }
  InCollective(const InCollective&) = delete;
  InCollective& operator=(const InCollective&) = delete;

 private:
  detail::CommCore& core_;
};

void check_reduction(const char* what, DType dtype, Reduction reduction) {
  if (detail::can_reduce(dtype, reduction)) return;
  throw_usage(std::string(what) + ": " + std::string(to_string(dtype)) + " has no " +
              std::string(to_string(reduction)));
}

/// A rank's part of an array of all: as long as its share, and apart from the array or just where the share is in it.
void check_part(const char* what, const detail::Division& division, int rank, const void* part,
                std::size_t part_elements, const void* all) {
  const detail::RowRange share = division.of(rank);
  if (static_cast<std::int64_t>(part_elements) != share.count()) {
    throw_usage(std::string(what) + ": rank " + std::to_string(rank) + "'s share of " +
                std::to_string(division.elements()) + " elements is " + std::to_string(share.count()) +
                ", but its part has " + std::to_string(part_elements));
  }
  const auto* const begin = static_cast<const std::byte*>(all);
  const auto* const end = begin + static_cast<std::size_t>(division.elements()) * division.element_bytes();
  const auto* const own = static_cast<const std::byte*>(part);
  const std::less<> before;
  const bool is_apart = !before(own, end) || !before(begin, own + division.bytes(rank));
  if (is_apart || part_elements == 0 || own == begin + division.begin_bytes(rank)) return;
  throw_usage(std::string(what) + ": the part of rank " + std::to_string(rank) +
              " overlaps the whole array elsewhere than at its own place, element " + std::to_string(share.begin));
}

}  // namespace

int Comm::rank() const noexcept { return core_->rank(); }
int Comm::world_size() const noexcept { return core_->world_size(); }

Share Comm::share(std::int64_t elements, int rank) const noexcept {
  const detail::RowRange range = detail::share_of(elements, world_size(), rank);
  return {range.begin, range.count()};
}

void Comm::barrier() {
  const InCollective mark(*core_);
  core_->barrier();
}

void Comm::all_reduce_bytes(void* values, std::size_t elements, DType dtype, Reduction reduction) {
  const InCollective mark(*core_);
  core_->all_reduce(values, elements, dtype, reduction, core_->rows);
}

void Comm::all_reduce_value(void* value, DType dtype, Reduction reduction) {
  const InCollective mark(*core_);
  core_->all_reduce_value(value, dtype, reduction, core_->rows);
}

void Comm::reduce_scatter_bytes(void* values, std::size_t elements, void* part, std::size_t part_elements, DType dtype,
                                Reduction reduction) {
  check_reduction("reduce_scatter", dtype, reduction);
  check_part("reduce_scatter", {elements, world_size(), size_of(dtype)}, rank(), part, part_elements, values);
  const InCollective mark(*core_);
  core_->reduce_scatter(values, part, elements, dtype, reduction, core_->rows);
}

void Comm::broadcast_bytes(void* values, std::size_t bytes, int root) {
  const InCollective mark(*core_);
  core_->broadcast(values, bytes, root);
}

void Comm::all_gather_bytes(const void* part, std::size_t part_elements, void* all, std::size_t elements,
                            std::size_t element_bytes) {
  const detail::Division division(elements, world_size(), element_bytes);
  check_part("all_gather", division, rank(), part, part_elements, all);
  const InCollective mark(*core_);
  core_->all_gather(part, all, division);
}

}  // namespace syncrun

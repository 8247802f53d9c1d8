// Comm's members: what a body asks for is checked here, on this rank; that the ranks agree is the core's to check.

#include <array>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/errors.hpp"
#include "common/reduce.hpp"
#include "common/rows.hpp"
#include "syncrun/worker.hpp"
#include "worker/collectives.hpp"

namespace syncrun {

namespace {

using detail::InCollective;
using detail::throw_usage;

void check_reduction(const char* what, DType dtype, Reduction reduction) {
  if (detail::can_reduce(dtype, reduction)) return;
  throw_usage(std::string(what) + ": " + std::string(to_string(dtype)) + " has no " +
              std::string(to_string(reduction)));
}

void check_root(const char* what, int root, int world_size) {
  if (root >= 0 && root < world_size) return;
  throw_usage(std::string(what) + ": root is a rank from 0 to " + std::to_string(world_size - 1) + ", got " +
              std::to_string(root));
}

/// A rank's part of an array of all: as long as the division says.
void check_length(const char* what, const detail::Division& division, int rank, std::size_t part_elements) {
  const std::int64_t count = division.of(rank).count();
  if (static_cast<std::int64_t>(part_elements) == count) return;
  throw_usage(std::string(what) + ": rank " + std::to_string(rank) + "'s share of " +
              std::to_string(division.elements()) + " elements is " + std::to_string(count) + ", but its part has " +
              std::to_string(part_elements));
}

/// Apart from the array, or just at its place in it.
void check_place(const char* what, const detail::Division& division, int rank, const void* part, const void* all) {
  const auto* const begin = static_cast<const std::byte*>(all);
  const auto* const own = static_cast<const std::byte*>(part);
  if (division.bytes(rank) == 0 || own == begin + division.begin_bytes(rank)) return;
  const std::less<> before;
  if (!before(own, begin + division.all_bytes()) || !before(begin, own + division.bytes(rank))) return;
  throw_usage(std::string(what) + ": the part of rank " + std::to_string(rank) +
              " overlaps the whole array elsewhere than at its own place, element " +
              std::to_string(division.of(rank).begin));
}

void check_whole(const char* what, const detail::Division& division, int rank, std::size_t elements) {
  if (static_cast<std::int64_t>(elements) == division.elements()) return;
  throw_usage(std::string(what) + ": the whole array has " + std::to_string(elements) + " elements on rank " +
              std::to_string(rank) + ", and the ranks' parts have " + std::to_string(division.elements()) + " in all");
}

void check_lengths(const char* what, std::span<const std::int64_t> lengths, int world_size) {
  if (lengths.size() != static_cast<std::size_t>(world_size)) {
    throw_usage(std::string(what) + ": lengths has one for each rank, " + std::to_string(world_size) + " in all, got " +
                std::to_string(lengths.size()));
  }
  for (const auto length : lengths) {
    if (length < 0) throw_usage(std::string(what) + ": lengths are at least 0, got " + std::to_string(length));
  }
}

/// What every rank has, part and whole (0 but on the root): all ranks know the same, and complain of the same.
std::vector<std::int64_t> tell_lengths(detail::CommCore& core, const char* what, std::size_t part, std::size_t whole,
                                       int root) {
  const auto world_size = static_cast<std::size_t>(core.world_size());
  const bool is_root = core.rank() == root;
  const std::array<std::int64_t, 2> own{static_cast<std::int64_t>(part),
                                        is_root ? static_cast<std::int64_t>(whole) : 0};
  std::vector<std::int64_t> all(2 * world_size);
  core.exchange(own, all);
  std::vector<std::int64_t> lengths(world_size);
  for (std::size_t rank = 0; rank < world_size; ++rank) lengths[rank] = all[2 * rank];
  check_whole(what, detail::Division(lengths, 1), root,
              static_cast<std::size_t>(all[2 * static_cast<std::size_t>(root) + 1]));
  return lengths;
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
  core_->all_reduce(values, elements, dtype, reduction, *weights_);
}

void Comm::all_reduce_value(void* value, DType dtype, Reduction reduction) {
  const InCollective mark(*core_);
  core_->all_reduce_value(value, dtype, reduction, *weights_);
}

void Comm::reduce_scatter_bytes(void* values, std::size_t elements, void* part, std::size_t part_elements, DType dtype,
                                Reduction reduction) {
  check_reduction("reduce_scatter", dtype, reduction);
  const detail::Division division(elements, world_size(), size_of(dtype));
  check_length("reduce_scatter", division, rank(), part_elements);
  check_place("reduce_scatter", division, rank(), part, values);
  const InCollective mark(*core_);
  core_->reduce_scatter(values, part, division, dtype, reduction, *weights_);
}

void Comm::reduce_bytes(void* values, std::size_t elements, DType dtype, Reduction reduction, int root) {
  check_reduction("reduce", dtype, reduction);
  check_root("reduce", root, world_size());
  const InCollective mark(*core_);
  core_->reduce(values, elements, dtype, reduction, *weights_, root);
}

void Comm::broadcast_bytes(void* values, std::size_t bytes, int root) {
  const InCollective mark(*core_);
  core_->broadcast(values, bytes, root);
}

void Comm::all_gather_bytes(Source part, Target all, Lengths lengths) {
  if (lengths.are_given) check_lengths("all_gather", lengths.by_rank, world_size());
  const auto division = lengths.are_given ? detail::Division(lengths.by_rank, part.element_bytes)
                                          : detail::Division(all.elements, world_size(), part.element_bytes);
  check_length("all_gather", division, rank(), part.elements);
  check_whole("all_gather", division, rank(), all.elements);
  check_place("all_gather", division, rank(), part.data, all.data);
  const InCollective mark(*core_);
  core_->all_gather(part.data, all.data, division);
}

void Comm::gather_bytes(Source part, Target all, int root, Lengths lengths) {
  check_root("gather", root, world_size());
  if (lengths.are_given) check_lengths("gather", lengths.by_rank, world_size());
  const InCollective mark(*core_);
  std::vector<std::int64_t> told;
  if (!lengths.are_given) lengths.by_rank = told = tell_lengths(*core_, "gather", part.elements, all.elements, root);
  const detail::Division division(lengths.by_rank, part.element_bytes);
  check_length("gather", division, rank(), part.elements);
  if (rank() == root) {
    check_whole("gather", division, root, all.elements);
    check_place("gather", division, root, part.data, all.data);
  }
  core_->gather(part.data, all.data, division, root);
}

void Comm::scatter_bytes(Source all, Target part, int root, Lengths lengths) {
  check_root("scatter", root, world_size());
  if (lengths.are_given) check_lengths("scatter", lengths.by_rank, world_size());
  const InCollective mark(*core_);
  std::vector<std::int64_t> told;
  if (!lengths.are_given) lengths.by_rank = told = tell_lengths(*core_, "scatter", part.elements, all.elements, root);
  const detail::Division division(lengths.by_rank, all.element_bytes);
  check_length("scatter", division, rank(), part.elements);
  if (rank() == root) {
    check_whole("scatter", division, root, all.elements);
    check_place("scatter", division, root, part.data, all.data);
  }
  core_->scatter(all.data, part.data, division, root);
}

std::vector<std::int64_t> Comm::lengths(std::int64_t own) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world_size()));
  const InCollective mark(*core_);
  core_->exchange({&own, 1}, all);
  return all;
}

}  // namespace syncrun

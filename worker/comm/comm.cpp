// The members of Comm, and the collectives that its templates call. The code here checks the arguments of this rank.
// CommCore checks that the ranks agree.

#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/arrays/reduce.hpp"
#include "common/arrays/row_range.hpp"
#include "common/text/errors.hpp"
#include "syncrun/worker.hpp"
#include "worker/comm/collectives.hpp"

namespace syncrun {

namespace {

using detail::text::throw_usage;
using detail::worker::comm::InCollective;

void check_reduction(const char* what, DType dtype, Reduction reduction) {
  if (detail::arrays::can_reduce(dtype, reduction)) return;
  throw_usage(std::string(what) + ": " + std::string(to_string(dtype)) + " has no " +
              std::string(to_string(reduction)));
}

void check_root(const char* what, int root, int world_size) {
  if (root >= 0 && root < world_size) return;
  throw_usage(std::string(what) + ": root is a rank from 0 to " + std::to_string(world_size - 1) + ", got " +
              std::to_string(root));
}

/// A rank's part of the whole array must be as long as the division says.
void check_length(const char* what, const detail::worker::comm::Division& division, int rank,
                  std::size_t part_elements) {
  const std::int64_t count = division.of(rank).count();
  if (static_cast<std::int64_t>(part_elements) == count) return;
  throw_usage(std::string(what) + ": rank " + std::to_string(rank) + "'s share of " +
              std::to_string(division.elements()) + " elements is " + std::to_string(count) + ", but its part has " +
              std::to_string(part_elements));
}

/// The part must not overlap the whole array, unless it is exactly at its own place in it.
void check_place(const char* what, const detail::worker::comm::Division& division, int rank, const void* part,
                 const void* all) {
  const auto* const begin = static_cast<const std::byte*>(all);
  const auto* const own = static_cast<const std::byte*>(part);
  if (division.bytes(rank) == 0 || own == begin + division.begin_bytes(rank)) return;
  const std::less<> before;
  if (!before(own, begin + division.all_bytes()) || !before(begin, own + division.bytes(rank))) return;
  throw_usage(std::string(what) + ": the part of rank " + std::to_string(rank) +
              " overlaps the whole array elsewhere than at its own place, element " +
              std::to_string(division.of(rank).begin));
}

void check_whole(const char* what, const detail::worker::comm::Division& division, int rank, std::size_t elements) {
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

/// Tells all ranks the length of every rank's part and the length of the root's whole array. So all ranks see the same
/// mismatch and throw the same error. Returns the lengths of the parts.
std::vector<std::int64_t> tell_lengths(detail::worker::comm::CommCore& core, const char* what, std::size_t part,
                                       std::size_t whole, int root) {
  const auto world_size = static_cast<std::size_t>(core.world_size());
  const bool is_root = core.rank() == root;
  const std::array<std::int64_t, 2> own{static_cast<std::int64_t>(part),
                                        is_root ? static_cast<std::int64_t>(whole) : 0};
  std::vector<std::int64_t> all(2 * world_size);
  core.exchange(own, all);
  std::vector<std::int64_t> lengths(world_size);
  for (std::size_t rank = 0; rank < world_size; ++rank) lengths[rank] = all[2 * rank];
  check_whole(what, detail::worker::comm::Division(lengths, 1), root,
              static_cast<std::size_t>(all[2 * static_cast<std::size_t>(root) + 1]));
  return lengths;
}

detail::worker::comm::Division checked_reduce_scatter(const detail::RawComm& comm, const void* values,
                                                      std::size_t elements, detail::CommTarget part, DType dtype,
                                                      Reduction reduction) {
  check_reduction("reduce_scatter", dtype, reduction);
  const detail::worker::comm::Division division(elements, comm.core->world_size(), size_of(dtype));
  check_length("reduce_scatter", division, comm.core->rank(), part.elements);
  check_place("reduce_scatter", division, comm.core->rank(), part.data, values);
  return division;
}

detail::worker::comm::Division checked_all_gather(const detail::RawComm& comm, detail::CommSource part,
                                                  detail::CommTarget all, detail::PartLengths lengths) {
  if (lengths.are_given) check_lengths("all_gather", lengths.by_rank, comm.core->world_size());
  const auto division = lengths.are_given
                            ? detail::worker::comm::Division(lengths.by_rank, part.element_bytes)
                            : detail::worker::comm::Division(all.elements, comm.core->world_size(), part.element_bytes);
  check_length("all_gather", division, comm.core->rank(), part.elements);
  check_whole("all_gather", division, comm.core->rank(), all.elements);
  check_place("all_gather", division, comm.core->rank(), part.data, all.data);
  return division;
}

}  // namespace

void StartedCollective::join() const {
  const InCollective mark(*core_);
  core_->join(number_);
}

int Comm::rank() const noexcept { return raw_.core->rank(); }
int Comm::world_size() const noexcept { return raw_.core->world_size(); }

Share Comm::share(std::int64_t elements, int rank) const noexcept {
  const detail::arrays::RowRange range = detail::arrays::share_of(elements, world_size(), rank);
  return {range.begin, range.count()};
}

void Comm::barrier() {
  const InCollective mark(*raw_.core, 0);
  raw_.core->barrier();
}

std::vector<std::int64_t> Comm::lengths(std::int64_t own) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(world_size()));
  const InCollective mark(*raw_.core, all.size() * sizeof own);
  raw_.core->exchange({&own, 1}, all);
  return all;
}

CollectiveLabel::CollectiveLabel(Comm& comm, std::string_view label) : core_(comm.raw_.core) {
  core_->set_label(label);
}
CollectiveLabel::~CollectiveLabel() { core_->set_label({}); }

namespace detail {

void all_reduce_bytes(const RawComm& comm, void* values, std::size_t elements, DType dtype, Reduction reduction) {
  const worker::comm::InCollective mark(*comm.core, elements * size_of(dtype));
  comm.core->all_reduce(values, elements, dtype, reduction, *comm.weights);
}

void all_reduce_value(const RawComm& comm, void* value, DType dtype, Reduction reduction) {
  const worker::comm::InCollective mark(*comm.core, size_of(dtype));
  comm.core->all_reduce_value(value, dtype, reduction, *comm.weights);
}

void reduce_scatter_bytes(const RawComm& comm, void* values, std::size_t elements, CommTarget part, DType dtype,
                          Reduction reduction) {
  const auto division = checked_reduce_scatter(comm, values, elements, part, dtype, reduction);
  const worker::comm::InCollective mark(*comm.core, division.all_bytes());
  comm.core->reduce_scatter(values, part.data, division, dtype, reduction, *comm.weights);
}

std::uint64_t start_reduce_scatter_bytes(const RawComm& comm, void* values, std::size_t elements, CommTarget part,
                                         DType dtype, Reduction reduction) {
  const auto division = checked_reduce_scatter(comm, values, elements, part, dtype, reduction);
  const worker::comm::InCollective mark(*comm.core, division.all_bytes());
  return comm.core->start_reduce_scatter(values, part.data, division, dtype, reduction, *comm.weights);
}

void reduce_bytes(const RawComm& comm, void* values, std::size_t elements, DType dtype, Reduction reduction, int root) {
  check_reduction("reduce", dtype, reduction);
  check_root("reduce", root, comm.core->world_size());
  const worker::comm::InCollective mark(*comm.core, elements * size_of(dtype));
  comm.core->reduce(values, elements, dtype, reduction, *comm.weights, root);
}

void broadcast_elements(const RawComm& comm, void* values, std::size_t elements, DType dtype, int root) {
  check_root("broadcast", root, comm.core->world_size());
  const worker::comm::InCollective mark(*comm.core, elements * size_of(dtype));
  comm.core->broadcast(values, elements, dtype, root);
}

void all_gather_bytes(const RawComm& comm, CommSource part, CommTarget all, PartLengths lengths) {
  const auto division = checked_all_gather(comm, part, all, lengths);
  const worker::comm::InCollective mark(*comm.core, division.all_bytes());
  comm.core->all_gather(part.data, all.data, division);
}

std::uint64_t start_all_gather_bytes(const RawComm& comm, CommSource part, CommTarget all) {
  const auto division = checked_all_gather(comm, part, all, {});
  const worker::comm::InCollective mark(*comm.core, division.all_bytes());
  return comm.core->start_all_gather(part.data, all.data, division);
}

StartedCollective start_gather_into_pages(Comm& comm, CommSource part, CommTarget pages) {
  const auto division = checked_all_gather(comm.raw_, part, pages, {});
  const worker::comm::InCollective mark(*comm.raw_.core, division.all_bytes());
  return {*comm.raw_.core, comm.raw_.core->start_gather_into_pages(part.data, pages.data, division)};
}

namespace {

/// A collective between the parts of all ranks and the whole array of the root. `move(division)` calls it.
void with_root(const RawComm& comm, const char* what, const auto& part, const auto& all, int root, PartLengths lengths,
               std::size_t element_bytes, auto&& move) {
  check_root(what, root, comm.core->world_size());
  if (lengths.are_given) check_lengths(what, lengths.by_rank, comm.core->world_size());
  const worker::comm::InCollective mark(*comm.core);
  std::vector<std::int64_t> told;
  if (!lengths.are_given) lengths.by_rank = told = tell_lengths(*comm.core, what, part.elements, all.elements, root);
  const worker::comm::Division division(lengths.by_rank, element_bytes);
  comm.core->count(division.all_bytes());
  check_length(what, division, comm.core->rank(), part.elements);
  if (comm.core->rank() == root) {
    check_whole(what, division, root, all.elements);
    check_place(what, division, root, part.data, all.data);
  }
  move(division);
}

}  // namespace

void gather_bytes(const RawComm& comm, CommSource part, CommTarget all, int root, PartLengths lengths) {
  with_root(comm, "gather", part, all, root, lengths, part.element_bytes,
            [&](const auto& division) { comm.core->gather(part.data, all.data, division, root); });
}

void scatter_bytes(const RawComm& comm, CommSource all, CommTarget part, int root, PartLengths lengths) {
  with_root(comm, "scatter", part, all, root, lengths, all.element_bytes,
            [&](const auto& division) { comm.core->scatter(all.data, part.data, division, root); });
}

}  // namespace detail

}  // namespace syncrun

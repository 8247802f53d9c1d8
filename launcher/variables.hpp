#pragma once

// What transfers and collectives of shared variables share, on the master's side.

#include <cstddef>
#include <span>
#include <string>

#include "common/extents.hpp"
#include "launcher/records.hpp"
#include "launcher/session_core.hpp"

namespace syncrun::detail {

inline std::size_t bytes_of(const VariableRecord& variable, const Extents& extents) {
  return checked_bytes(variable.dtype, {extents.data(), variable.dimensions});
}

/// Throws Error (usage): `what` wants a rank of the session.
void check_rank(const SessionCore& session, int rank, const char* what);

/// Copies of `bytes` on each rank from now on: growth is held against the memory limit before any worker allocates.
/// `kept`: what they have now is needed meanwhile.
enum class OldCopies : std::uint8_t { reused, kept };
void check_growth(const VariableRecord& variable, std::span<const std::size_t> bytes, OldCopies old);

/// What the copies are now, by their own account; ranks whose copy is gone are no longer assigned. No call may be in
/// flight.
void read_extents(VariableRecord& variable);

/// One rank's copy of a variable, to and from memory in the heap of as many bytes. The session is entered.
void fetch_copy(VariableRecord& variable, int rank, std::uint64_t to);
void place_copy(VariableRecord& variable, int rank, std::uint64_t from, const Extents& extents);

/// Of any copy. Throws Error (usage) if they differ; `what` asks for it.
Extents equal_extents(const VariableRecord& variable, const char* what);
/// Of all copies, concatenated along the rows. Throws Error (usage) if their rows differ in shape; `what` asks for it.
Extents extents_together(const VariableRecord& variable, const char* what);

/// Why a call cannot use the copies on these ranks, some of which are not assigned: "'x' has no values on rank 1 ...".
/// Names the variable, the ranks and what to do.
std::string not_assigned(const VariableRecord& variable, const RankSet& ranks);

/// "weights, bias".
std::string names_of(VariableList variables);

/// Memory in the heap for as long as this lives.
class HeapLoan {
 public:
  HeapLoan(SessionCore& session, std::size_t bytes, const char* what)
      : session_(session), offset_(session.heap().allocate(bytes, SharedHeap::Contents::any, what)) {}
  ~HeapLoan() {
    if (session_.is_open()) session_.heap().free(offset_, SharedHeap::Giveback::now);
  }
  HeapLoan(const HeapLoan&) = delete;
  HeapLoan& operator=(const HeapLoan&) = delete;
  std::uint64_t offset() const noexcept { return offset_; }
  std::byte* data() const noexcept { return session_.segment().at(offset_); }

 private:
  SessionCore& session_;
  std::uint64_t offset_;
};

}  // namespace syncrun::detail

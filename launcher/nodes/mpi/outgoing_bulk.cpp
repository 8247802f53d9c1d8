#include "launcher/nodes/mpi/outgoing_bulk.hpp"

#include <algorithm>

#include "launcher/nodes/mpi/mpi_check.hpp"
#include "launcher/nodes/mpi/mpi_tags.hpp"

namespace syncrun::detail {

std::uint64_t OutgoingBulk::begin(std::span<const std::byte> memory) {
  const std::uint64_t number = first_ + transfers_.size();
  Transfer& transfer = transfers_.emplace_back();
  transfer.bytes = memory.size();
  if (memory.size() < kPieceBytes) {
    send(transfer, memory, kBulkTag);
    return number;
  }
  send(transfer, std::as_bytes(std::span(&transfer.bytes, 1)), kBulkSizeTag);
  while (!memory.empty()) {
    const auto piece = memory.first(std::min(memory.size(), kPieceBytes));
    send(transfer, piece, kBulkTag);
    memory = memory.subspan(piece.size());
  }
  return number;
}

void OutgoingBulk::send(Transfer& transfer, std::span<const std::byte> bytes, int tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, node_, tag, comm_, &request),
            "send bulk to", node_);
  transfer.requests.push_back(request);
  ++sent_;
}

void OutgoingBulk::advance() {
  while (!transfers_.empty()) {
    Transfer& transfer = transfers_.front();
    for (; transfer.next < transfer.requests.size(); ++transfer.next) {
      if (!is_complete(transfer.requests[transfer.next], "send bulk to", node_)) return;
    }
    transfers_.pop_front();
    ++first_;
  }
}

void OutgoingBulk::cancel() noexcept {
  first_ += transfers_.size();
  // MPI may still read `bytes` of a transfer.
  given_up_.swap(transfers_);
}

}  // namespace syncrun::detail

#include "master/nodes/mpi/outgoing_bulk.hpp"

#include <algorithm>

#include "master/nodes/mpi/mpi_check.hpp"
#include "master/nodes/mpi/mpi_tags.hpp"

namespace syncrun::detail::master::nodes::mpi {

std::uint64_t OutgoingBulk::begin(std::span<const std::byte> memory) {
  const std::uint64_t number = first_ + transfers_.size();
  Transfer& transfer = transfers_.emplace_back();
  transfer.bytes = memory.size();
  transfer.rest = memory;
  send_next();
  return number;
}

void OutgoingBulk::send_next() {
  for (; sent_transfers_ < transfers_.size() && under_way_ < kPiecesUnderWay; ++sent_transfers_) {
    Transfer& transfer = transfers_[sent_transfers_];
    const bool has_pieces = transfer.bytes >= kPieceBytes;
    if (has_pieces && transfer.requests.empty())
      send(transfer, std::as_bytes(std::span(&transfer.bytes, 1)), kBulkSizeTag);
    do {
      if (under_way_ >= kPiecesUnderWay) return;
      const auto piece = transfer.rest.first(std::min(transfer.rest.size(), kPieceBytes));
      send(transfer, piece, kBulkTag);
      transfer.rest = transfer.rest.subspan(piece.size());
    } while (!transfer.rest.empty());
    transfer.is_sent = true;
  }
}

void OutgoingBulk::send(Transfer& transfer, std::span<const std::byte> bytes, int tag) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, node_, tag, comm_, &request),
            "send bulk to", node_);
  transfer.requests.push_back(request);
  ++sent_;
  ++under_way_;
}

void OutgoingBulk::advance() {
  bool are_complete = true;
  while (are_complete && !transfers_.empty()) {
    Transfer& transfer = transfers_.front();
    for (; are_complete && transfer.next < transfer.requests.size(); ++transfer.next, --under_way_) {
      are_complete = is_complete(transfer.requests[transfer.next], "send bulk to", node_);
      if (!are_complete) break;
    }
    if (!are_complete || !transfer.is_sent) break;
    transfers_.pop_front();
    --sent_transfers_;
    ++first_;
  }
  send_next();
}

void OutgoingBulk::cancel() noexcept {
  first_ += transfers_.size();
  // MPI may still read `bytes` of a transfer.
  given_up_.swap(transfers_);
  under_way_ = sent_transfers_ = 0;
}

}  // namespace syncrun::detail::master::nodes::mpi

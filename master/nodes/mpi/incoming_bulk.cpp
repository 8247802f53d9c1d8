#include "master/nodes/mpi/incoming_bulk.hpp"

#include <algorithm>

#include "master/nodes/mpi/mpi_check.hpp"
#include "master/nodes/mpi/mpi_tags.hpp"

namespace syncrun::detail::master::nodes::mpi {

namespace {

constexpr const char* kWhat = "receive bulk from";

}  // namespace

std::uint64_t IncomingBulk::begin(std::span<std::byte> memory) {
  const std::uint64_t number = first_ + transfers_.size();
  transfers_.push_back({.memory = memory});
  receive_matched();
  return number;
}

void IncomingBulk::take(MPI_Message message, int tag, std::size_t bytes) {
  matched_.push_back({message, tag, bytes});
  receive_matched();
}

/// Receives what has been matched, as long as there is memory for it.
void IncomingBulk::receive_matched() {
  while (!has_failed_ && begun_ < transfers_.size() && !matched_.empty()) {
    Transfer& transfer = transfers_[begun_];
    const bool has_pieces = transfer.memory.size() >= kPieceBytes;
    if (has_pieces && transfer.requests.empty()) {
      receive_size(transfer, matched_.front());
    } else {
      // Nothing is received into the memory before the size is known to fit.
      if (has_pieces && transfer.bytes_begun == 0) {
        if (!are_complete(transfer)) return;
        if (transfer.announced != transfer.memory.size()) fail(transfer, nullptr, transfer.announced);
      }
      if (transfer.wrong.empty()) receive(transfer, matched_.front());
    }
    if (transfer.is_begun) ++begun_;
  }
}

void IncomingBulk::receive_size(Transfer& transfer, Matched& matched) {
  if (matched.tag != kBulkSizeTag || matched.bytes != sizeof transfer.announced) {
    fail(transfer, &matched, matched.bytes);
    return;
  }
  MPI_Request& request = transfer.requests.emplace_back(MPI_REQUEST_NULL);
  check(MPI_Imrecv(&transfer.announced, sizeof transfer.announced, MPI_BYTE, &matched.message, &request));
  matched_.pop_front();
}

void IncomingBulk::receive(Transfer& transfer, Matched& matched) {
  const auto rest = transfer.memory.subspan(transfer.bytes_begun);
  const auto piece = rest.first(std::min(rest.size(), kPieceBytes));
  if (matched.tag != kBulkTag || matched.bytes != piece.size()) {
    fail(transfer, &matched, transfer.bytes_begun + matched.bytes);
    return;
  }
  MPI_Request& request = transfer.requests.emplace_back(MPI_REQUEST_NULL);
  check(MPI_Imrecv(piece.data(), static_cast<int>(piece.size()), MPI_BYTE, &matched.message, &request));
  matched_.pop_front();
  transfer.bytes_begun += piece.size();
  transfer.is_begun = piece.size() == rest.size();
}

/// Drops the first matched message if it is at fault. The transfer is over as soon as nothing is received into its
/// memory any more. This is when advance() throws.
void IncomingBulk::fail(Transfer& transfer, Matched* matched, std::uint64_t got) {
  const std::size_t expected = transfer.memory.size();
  const bool is_of_many = matched != nullptr && (matched->tag == kBulkSizeTag || matched->bytes == kPieceBytes);
  transfer.wrong = node_text(node_) + " sent bulk of another size: expected " + std::to_string(expected) +
                   " bytes, got " + (is_of_many ? "at least " + std::to_string(kPieceBytes) : std::to_string(got));
  transfer.is_begun = true;
  if (matched == nullptr) return;
  drop(*matched);
  matched_.pop_front();
}

void IncomingBulk::drop(Matched& matched) {
  Unwanted& unwanted = unwanted_.emplace_back();
  unwanted.bytes.resize(matched.bytes);
  check(MPI_Imrecv(unwanted.bytes.data(), static_cast<int>(matched.bytes), MPI_BYTE, &matched.message,
                   &unwanted.request));
}

/// After a failure, MPI takes the request for complete, but its bytes are missing.
void IncomingBulk::check(int code) {
  has_failed_ = has_failed_ || code != MPI_SUCCESS;
  check_mpi(code, kWhat, node_);
}

bool IncomingBulk::are_complete(Transfer& transfer) {
  if (has_failed_) return false;
  for (; transfer.next < transfer.requests.size(); ++transfer.next) {
    int is_done = 0;
    check(MPI_Test(&transfer.requests[transfer.next], &is_done, MPI_STATUS_IGNORE));
    if (is_done == 0) return false;
    ++pieces_;
  }
  return true;
}

void IncomingBulk::advance() {
  receive_matched();
  while (begun_ > 0 && are_complete(transfers_.front())) {
    const std::string wrong = std::move(transfers_.front().wrong);
    transfers_.pop_front();
    --begun_;
    ++first_;
    if (!wrong.empty()) throw Error(ErrorKind::system, wrong);
  }
  while (!unwanted_.empty() && is_done_with(unwanted_.front().request)) unwanted_.pop_front();
}

void IncomingBulk::cancel() noexcept {
  first_ += transfers_.size();
  begun_ = 0;
  // MPI may still write to what it receives.
  given_up_.swap(transfers_);
  matched_.clear();
}

bool IncomingBulk::drain() {
  advance();
  if (begun_ == transfers_.size()) {
    for (; !matched_.empty(); matched_.pop_front()) drop(matched_.front());
  }
  // A transfer that has not begun entirely may have pieces under way.
  return unwanted_.empty() && std::all_of(transfers_.begin(), transfers_.end(),
                                          [this](Transfer& transfer) { return are_complete(transfer); });
}

}  // namespace syncrun::detail::master::nodes::mpi

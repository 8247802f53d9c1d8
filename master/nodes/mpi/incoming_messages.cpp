#include "master/nodes/mpi/incoming_messages.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "master/nodes/mpi/mpi_check.hpp"
#include "master/nodes/mpi/mpi_tags.hpp"

namespace syncrun::detail::master::nodes::mpi {

namespace {

constexpr const char* kReceive = "receive a message from";

}  // namespace

void IncomingMessages::take(MPI_Message message, int tag, std::size_t bytes) {
  Letter letter{.message = Message(bytes), .tag = tag};
  const int code = MPI_Imrecv(letter.message.data(), static_cast<int>(bytes), MPI_BYTE, &message, &letter.request);
  if (code != MPI_SUCCESS) cancel();
  check_mpi(code, kReceive, node_);
  if (!is_silent_) arriving_.push_back(std::move(letter));
  else if (!is_done_with(letter.request)) dropped_.push_back(std::move(letter));
}

std::optional<IncomingMessages::Message> IncomingMessages::next() try {
  while (!arriving_.empty() && is_complete(arriving_.front().request, kReceive, node_)) {
    Letter letter = std::move(arriving_.front());
    arriving_.pop_front();
    if (auto message = add(std::move(letter))) return message;
  }
  return std::nullopt;
} catch (const std::exception&) {
  cancel();
  throw;
}

/// The message, if this was all of it.
std::optional<IncomingMessages::Message> IncomingMessages::add(Letter letter) {
  ++pieces_;
  if (letter.tag == kPartsTag) {
    begin_parts(letter.message);
    return std::nullopt;
  }
  if (!parts_) return std::move(letter.message);
  parts_->message.insert(parts_->message.end(), letter.message.begin(), letter.message.end());
  if (letter.tag == kPartTag) return std::nullopt;
  if (parts_->message.size() != parts_->bytes) {
    throw Error(ErrorKind::system, node_text(node_) + " sent a message of another size: expected " +
                                       std::to_string(parts_->bytes) + " bytes, got " +
                                       std::to_string(parts_->message.size()));
  }
  std::optional message(std::move(parts_->message));
  forget_parts();
  return message;
}

/// Makes room for a message that comes in parts.
void IncomingMessages::begin_parts(std::span<const std::byte> announced) {
  forget_parts();
  ++divided_;
  Parts& parts = parts_.emplace();
  std::memcpy(&parts.bytes, announced.data(), std::min(sizeof parts.bytes, announced.size()));
  try {
    parts.message.reserve(parts.bytes);
  } catch (const std::exception& error) {
    throw Error(ErrorKind::system, "there is no memory for a message of " + std::to_string(parts.bytes) +
                                       " bytes from " + node_text(node_) + ": " + error.what());
  }
}

void IncomingMessages::forget_parts() noexcept {
  if (parts_) --divided_;
  parts_.reset();
}

void IncomingMessages::cancel() noexcept {
  is_silent_ = true;
  drop_arriving();
  forget_parts();
}

void IncomingMessages::drop_arriving() {
  for (Letter& letter : arriving_) dropped_.push_back(std::move(letter));
  arriving_.clear();
}

bool IncomingMessages::drain() {
  drop_arriving();
  while (!dropped_.empty() && is_done_with(dropped_.front().request)) dropped_.pop_front();
  return dropped_.empty();
}

}  // namespace syncrun::detail::master::nodes::mpi

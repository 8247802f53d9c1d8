#pragma once

// The transfers of bulk from this node to another one.

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace syncrun::detail::master::nodes::mpi {

/// Not safe for several threads. begin() and advance() throw Error (system), which names the node.
class OutgoingBulk {
 public:
  OutgoingBulk(MPI_Comm comm, int node) : comm_(comm), node_(node) {}

  /// Begins a transfer, and returns its number: 1, 2, ... Its pieces leave little by little, in advance().
  std::uint64_t begin(std::span<const std::byte> memory);
  /// Ends the transfers that are complete, and sends the next pieces.
  void advance();
  /// Transfers end in their order, so a transfer is not over before those that began earlier.
  bool is_over(std::uint64_t number) const noexcept { return number < first_; }
  bool is_empty() const noexcept { return transfers_.empty(); }
  /// Ends all transfers, complete or not. Called once, and nothing begins after that. MPI cannot take back what it has
  /// begun to send. So it may still read this memory in any later call.
  void cancel() noexcept;
  /// How many MPI messages were sent.
  std::uint64_t sent() const noexcept { return sent_; }

 private:
  struct Transfer {
    std::uint64_t bytes = 0;
    std::span<const std::byte> rest;  // what is not sent yet
    bool is_sent = false;             // entirely
    std::vector<MPI_Request> requests;
    std::size_t next = 0;  // the first request that is not complete
  };
  void send_next();
  void send(Transfer& transfer, std::span<const std::byte> bytes, int tag);

  MPI_Comm comm_;
  int node_;
  std::deque<Transfer> transfers_;  // its elements stay where they are: MPI reads `bytes`
  std::deque<Transfer> given_up_;   // of cancel()
  std::uint64_t first_ = 1;         // the number of the first transfer in the queue
  std::uint64_t sent_ = 0;
  std::size_t under_way_ = 0;       // MPI messages
  std::size_t sent_transfers_ = 0;  // how many of transfers_ are sent entirely
};

}  // namespace syncrun::detail::master::nodes::mpi

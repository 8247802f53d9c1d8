#pragma once

// The transfers of bulk from another node to this one.
//
// MPI messages are matched before they are received, and their size is compared with the memory. So nothing is received
// that does not fit. (Open MPI 4.1 writes past the end of memory that is too small, before it reports the error.)

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

namespace syncrun::detail::master::nodes::mpi {

/// Not safe for several threads. All functions but cancel() throw Error (system), which names the node.
class IncomingBulk {
 public:
  explicit IncomingBulk(int node) : node_(node) {}

  /// Names the memory for the next transfer, and returns its number: 1, 2, ...
  std::uint64_t begin(std::span<std::byte> memory);
  /// Takes an MPI message of the node that has been matched.
  void take(MPI_Message message, int tag, std::size_t bytes);
  /// Ends the transfers that are complete. Throws if the sender's transfer had another size. This transfer is over
  /// then.
  void advance();
  /// Transfers end in their order, so a transfer is not over before those that began earlier.
  bool is_over(std::uint64_t number) const noexcept { return number < first_; }
  /// Ends all transfers, complete or not. Called once, and nothing begins after that. MPI cannot take back what it has
  /// begun to receive. So it may still write this memory in any later call.
  void cancel() noexcept;
  /// Receives and drops what has no memory. True if nothing is being received any more. For the end: no transfer
  /// begins any more.
  bool drain();
  /// How many pieces have arrived.
  std::uint64_t pieces() const noexcept { return pieces_; }

 private:
  struct Matched {
    MPI_Message message;
    int tag;
    std::size_t bytes;
  };
  struct Transfer {
    std::span<std::byte> memory;
    std::uint64_t announced = 0;  // the size that the sender says, if there are pieces
    std::size_t bytes_begun = 0;  // how much of the memory is being received
    std::vector<MPI_Request> requests = {};
    std::size_t next = 0;    // the first request that is not complete
    bool is_begun = false;   // everything is being received
    std::string wrong = {};  // why the transfer has failed
  };
  struct Unwanted {
    MPI_Request request = MPI_REQUEST_NULL;
    std::vector<std::byte> bytes;
  };
  void receive_matched();
  void receive(Transfer& transfer, Matched& matched);
  void receive_size(Transfer& transfer, Matched& matched);
  void fail(Transfer& transfer, Matched* matched, std::uint64_t got);
  bool are_complete(Transfer& transfer);
  void drop(Matched& matched);

  void check(int code);

  int node_;
  bool has_failed_ = false;         // something did not arrive, so no transfer ends any more
  std::deque<Transfer> transfers_;  // its elements stay where they are: MPI writes `announced`
  std::size_t begun_ = 0;           // how many of them are begun
  std::deque<Transfer> given_up_;   // of cancel()
  std::uint64_t first_ = 1;         // the number of the first transfer in the queue
  std::uint64_t pieces_ = 0;
  std::deque<Matched> matched_;    // in the order of the sender, not yet being received
  std::deque<Unwanted> unwanted_;  // being received
};

}  // namespace syncrun::detail::master::nodes::mpi

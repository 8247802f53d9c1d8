#pragma once

// The transport between nodes over MPI. A node is a rank of MPI_COMM_WORLD.

#include <mpi.h>
#include <pthread.h>

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/os/mutex.hpp"
#include "master/nodes/mpi/incoming_bulk.hpp"
#include "master/nodes/mpi/incoming_messages.hpp"
#include "master/nodes/mpi/outgoing_bulk.hpp"
#include "master/nodes/mpi/outgoing_messages.hpp"
#include "master/nodes/transport.hpp"

namespace syncrun::detail::master::nodes::mpi {

/// No function but open() and close() waits inside MPI: every message is sent and received by a request of its own.
/// MPI runs with MPI_THREAD_SERIALIZED, and a mutex serializes all calls.
class MpiTransport final : public Transport {
 public:
  MpiTransport() = default;
  /// Never ends MPI. If close() has not done so, the process has to end with _exit().
  ~MpiTransport() override;

  void open() override;
  std::optional<Attendance> attendance(int node, int nodes) override;
  int node() const noexcept override { return node_; }
  int nodes() const noexcept override { return node_count_; }
  std::string description() const override;
  void send(int node, std::vector<std::byte> message) override;
  std::size_t prompt_bytes() const noexcept override { return kPromptBytes; }
  std::optional<Arrival> receive() override;
  Ticket send_bulk(int node, std::span<const std::byte> from) override;
  Ticket receive_bulk(int node, std::span<std::byte> to) override;
  bool is_over(Ticket ticket) override;
  std::uint64_t pieces_from(int node) noexcept override;
  std::uint64_t pieces_to(int node) noexcept override;
  bool has_parts_under_way() const noexcept override { return divided_.load(std::memory_order_relaxed) > 0; }
  void abandon(int node) noexcept override;
  bool close(os::Milliseconds grace) noexcept override;

 private:
  /// What goes to another node and comes from it. After a failure in one direction, nothing passes in it.
  struct Peer {
    Peer(MPI_Comm comm, int node, std::atomic<std::size_t>& divided, std::vector<OutgoingMessages::Whole>& left)
        : messages_out(comm, node, divided, left), bulk_out(comm, node), messages_in(node, divided), bulk_in(node) {}
    /// Sends. If that throws, this node is silent for the other one from now on, and each later send throws the same.
    /// After a failure, MPI takes the request for complete, but its bytes are missing. The other node must not get what
    /// comes after them. It notices the silence.
    void or_stop_sending(auto&& send);
    /// Receives bulk. If that throws, the node is silent from now on.
    void or_stop_receiving(auto&& receive);

    OutgoingMessages messages_out;
    OutgoingBulk bulk_out;
    IncomingMessages messages_in;
    IncomingBulk bulk_in;
    std::uint64_t matched = 0;  // messages of MPI
    bool is_listed_as_leaving = false;
    bool is_abandoned = false;
    std::exception_ptr send_failure;  // something did not leave, so nothing is sent any more
  };

  Peer& peer(int node) noexcept SYNCRUN_REQUIRES(mutex_) { return peers_[static_cast<std::size_t>(node)]; }
  enum class Direction { out, in };
  /// What is behind a ticket: the node, the direction, and the number of the transfer. 0 is no ticket.
  static Ticket make_ticket(int node, Direction direction, std::uint64_t number) noexcept;

  /// `lone_message` is a message before which nothing is arriving from its node, the last one in arriving_from_.
  enum class Match { nothing, lone_message, other };
  /// Gives the next message that MPI has to its queue, where it may still be arriving.
  Match match() SYNCRUN_REQUIRES(mutex_);
  std::optional<Arrival> take_late_arrival() SYNCRUN_REQUIRES(mutex_);
  std::optional<Arrival> take_new_arrival() SYNCRUN_REQUIRES(mutex_);
  void send_bulk_of_all() SYNCRUN_REQUIRES(mutex_);
  void send_messages_of_one_node() SYNCRUN_REQUIRES(mutex_);

  bool have_all_left() SYNCRUN_REQUIRES(mutex_);
  bool drop_arrivals() SYNCRUN_REQUIRES(mutex_);
  bool wait_until(os::Clock::time_point end, auto&& condition) SYNCRUN_REQUIRES(mutex_);
  bool exchange_farewells(os::Clock::time_point end) SYNCRUN_REQUIRES(mutex_);
  bool has_received_all(const std::vector<std::uint64_t>& sent_to_here) SYNCRUN_REQUIRES(mutex_);

  std::atomic<std::size_t> divided_ = 0;  // messages in parts that leave or arrive
  std::atomic<pthread_t> opener_{};       // the thread that has called open()
  // Set by open(), before other threads use this object.
  int node_ = 0;
  int node_count_ = 0;
  os::Mutex mutex_;  // also during each call of MPI
  MPI_Comm comm_ SYNCRUN_GUARDED_BY(mutex_) = MPI_COMM_NULL;
  // MPI may use the memory of messages under way until the process ends. So if MPI was not ended, it is never freed.
  std::unique_ptr<std::deque<Peer>> owned_peers_ SYNCRUN_GUARDED_BY(mutex_) = std::make_unique<std::deque<Peer>>();
  std::deque<Peer>& peers_ SYNCRUN_GUARDED_BY(mutex_) = *owned_peers_;  // by node
  // The nodes to which messages or bulk may be under way, and those from which messages are arriving that MPI has matched.
  std::vector<int> leaving_to_ SYNCRUN_GUARDED_BY(mutex_);
  std::vector<int> bulk_to_ SYNCRUN_GUARDED_BY(mutex_);
  std::vector<int> arriving_from_ SYNCRUN_GUARDED_BY(mutex_);
  std::size_t next_leaving_ SYNCRUN_GUARDED_BY(mutex_) = 0;  // where send_messages_of_one_node() goes on
  // Large messages that have left. They are freed without the lock.
  std::vector<OutgoingMessages::Whole> left_ SYNCRUN_GUARDED_BY(mutex_);
  bool has_abandoned_ SYNCRUN_GUARDED_BY(mutex_) = false;
  bool has_closed_ SYNCRUN_GUARDED_BY(mutex_) = false;
};

}  // namespace syncrun::detail::master::nodes::mpi

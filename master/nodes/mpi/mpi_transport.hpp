#pragma once

// The transport between nodes over MPI. A node is a rank of MPI_COMM_WORLD.

#include <mpi.h>
#include <pthread.h>

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "common/os/mutex.hpp"
#include "master/nodes/mpi/incoming_bulk.hpp"
#include "master/nodes/mpi/mpi_tags.hpp"
#include "master/nodes/mpi/outgoing_bulk.hpp"
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
  using Whole = std::shared_ptr<const std::vector<std::byte>>;
  struct Letter {  // a message on its way, or a part of a large one
    MPI_Request request = MPI_REQUEST_NULL;
    std::vector<std::byte> message = {};
    int tag = kMessageTag;
    // of a part that leaves: the message, and where the part is in it
    Whole whole = nullptr;
    std::span<const std::byte> part = {};
    std::span<const std::byte> bytes() const noexcept { return whole ? part : std::span(message); }
    bool is_large() const noexcept { return bytes().size() >= kPieceBytes; }
    bool is_small() const noexcept { return bytes().size() <= kSmallBytes; }
  };
  struct Peer {
    Peer(MPI_Comm comm, int node) : bulk_out(comm, node), bulk_in(node) {}
    std::deque<Letter> waiting;  // messages and parts that MPI does not have yet, the oldest first
    std::deque<Letter> leaving;  // the oldest first
    std::size_t large_leaving = 0;
    std::deque<Letter> arriving;  // the oldest first; only the oldest may be delivered
    OutgoingBulk bulk_out;
    IncomingBulk bulk_in;
    std::vector<std::byte> parts;   // of the message that is arriving; all but the last one
    std::size_t divided_out = 0;    // messages whose parts are leaving
    std::uint64_t parts_bytes = 0;  // of the whole message, as announced
    bool is_divided_in = false;     // the message that is arriving comes in parts
    std::uint64_t pieces = 0;       // messages and parts that have arrived
    std::uint64_t pieces_left = 0;  // messages that are not small, and parts
    std::uint64_t sent = 0;         // messages and parts, without bulk
    std::uint64_t matched = 0;      // messages of MPI
    std::deque<Letter> dropped;     // no longer needed, but MPI may still use their memory
    bool is_listed_as_leaving = false;
    bool is_abandoned = false;
    bool has_failed = false;          // something did not arrive, so nothing is received any more
    std::exception_ptr send_failure;  // something did not leave, so nothing is sent any more
  };

  Peer& peer(int node) noexcept SYNCRUN_REQUIRES(mutex_) { return peers_[static_cast<std::size_t>(node)]; }
  enum class Direction { out, in };
  /// What is behind a ticket: the node, the direction, and the number of the transfer. 0 is no ticket.
  static Ticket make_ticket(int node, Direction direction, std::uint64_t number) noexcept;

  enum class Match { nothing, message, bulk };
  struct Found {
    Match match = Match::nothing;
    int node = -1;
    Letter letter = {};  // a message, which may still be arriving
  };
  /// Takes the next message that MPI has. Gives bulk to its queue.
  Found match() SYNCRUN_REQUIRES(mutex_);
  std::optional<Arrival> take_late_arrival() SYNCRUN_REQUIRES(mutex_);
  std::optional<Arrival> take_new_arrival() SYNCRUN_REQUIRES(mutex_);
  bool has_arrived(int node, Letter& letter) SYNCRUN_REQUIRES(mutex_);
  void fail(int node) noexcept SYNCRUN_REQUIRES(mutex_);
  void forget_parts(Peer& from) noexcept SYNCRUN_REQUIRES(mutex_);
  void keep_for_later(int node, Letter letter) SYNCRUN_REQUIRES(mutex_);
  void divide(Peer& to, const Whole& whole) SYNCRUN_REQUIRES(mutex_);
  void send_waiting(int node) SYNCRUN_REQUIRES(mutex_);
  void send_bulk_of_all() SYNCRUN_REQUIRES(mutex_);
  std::optional<std::vector<std::byte>> whole_message(int node, Letter letter) SYNCRUN_REQUIRES(mutex_);
  void begin_parts(int node, std::span<const std::byte> announced) SYNCRUN_REQUIRES(mutex_);
  /// Receives. If that throws, the node is silent from now on.
  template <class Receive>
  void or_fail(int node, Receive&& receive) SYNCRUN_REQUIRES(mutex_) {
    try {
      receive();
    } catch (const std::exception&) {
      fail(node);
      throw;
    }
  }
  /// Sends. If that throws, this node is silent for the other one from now on, and each later send throws the same.
  template <class Send>
  void or_stop_sending(int node, Send&& send) SYNCRUN_REQUIRES(mutex_) {
    if (const auto& failure = peer(node).send_failure) std::rethrow_exception(failure);
    try {
      send();
    } catch (const std::exception&) {
      stop_sending(node, std::current_exception());
      throw;
    }
  }
  void stop_sending(int node, std::exception_ptr why) noexcept SYNCRUN_REQUIRES(mutex_);
  void free_left(int node) SYNCRUN_REQUIRES(mutex_);
  void free_left_of_one_node() SYNCRUN_REQUIRES(mutex_);

  /// Forgets a message that MPI is receiving. Keeps its memory until MPI has received it.
  static void drop(Peer& from, Letter letter);
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
  std::vector<int> leaving_to_ SYNCRUN_GUARDED_BY(mutex_);              // the nodes to which messages are under way
  std::vector<int> bulk_to_ SYNCRUN_GUARDED_BY(mutex_);                 // the nodes to which bulk is under way
  // the nodes from which messages are under way that MPI has matched
  std::vector<int> arriving_from_ SYNCRUN_GUARDED_BY(mutex_);
  std::size_t next_leaving_ SYNCRUN_GUARDED_BY(mutex_) = 0;  // where free_left_of_one_node() goes on
  // Large messages that have left. To free them takes long, so it is done without the lock.
  std::vector<Whole> left_ SYNCRUN_GUARDED_BY(mutex_);
  bool has_abandoned_ SYNCRUN_GUARDED_BY(mutex_) = false;
  bool has_closed_ SYNCRUN_GUARDED_BY(mutex_) = false;
};

}  // namespace syncrun::detail::master::nodes::mpi

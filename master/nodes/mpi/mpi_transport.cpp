#include "master/nodes/mpi/mpi_transport.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "common/os/part_version.hpp"
#include "master/nodes/mpi/engine_attendance.hpp"
#include "master/nodes/mpi/mpi_check.hpp"
#include "master/nodes/mpi/mpi_tags.hpp"
#include "syncrun/detail/export.hpp"

namespace syncrun::detail::master::nodes::mpi {

namespace {

/// Everything has arrived before MPI ends, so a node that is stuck there loses nothing but time.
constexpr std::chrono::seconds kLongestFinalize{10};
/// How many messages one call of receive() takes from MPI at most.
constexpr int kMostMatches = 64;
/// The bits of a ticket for the node and the direction. The others are for the number of the transfer.
constexpr unsigned kTicketNodeBits = 20;

#ifdef OPEN_MPI
/// Open MPI starts with two fences: one that exchanges addresses, and one after each node is ready to receive. Under srun,
/// Slurm uses two algorithms for them (SLURM_PMIX_FENCE=mixed). A node may then leave the second fence while another one is
/// still in the first, and its first message ends the other one with SIGSEGV. Slurm 22.05 and Open MPI 4.1 do this in 2 % of
/// starts on busy hosts. So there is only the second fence while this object lives, and a node asks for an address when it
/// needs it. Variables that the user has set stay. In an allocation of Slurm, mpirun starts the tasks of other nodes in a
/// step, but not those of its own node. All nodes have to start in the same way, so this is for srun alone.
class WithOneFence {
 public:
  WithOneFence() {
    if (std::getenv("SLURM_STEP_ID") == nullptr || std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) return;
    for (auto& [name, value, is_ours] : variables_) {
      is_ours = std::getenv(name) == nullptr;
      if (is_ours) ::setenv(name, value, 1);
    }
  }
  ~WithOneFence() {
    for (const auto& [name, value, is_ours] : variables_) {
      if (is_ours) ::unsetenv(name);
    }
  }
  WithOneFence(const WithOneFence&) = delete;
  WithOneFence& operator=(const WithOneFence&) = delete;

 private:
  struct Variable {
    const char* name;
    const char* value;
    bool is_ours;
  };
  std::array<Variable, 2> variables_{
      {{"OMPI_MCA_pmix_base_async_modex", "1", false}, {"OMPI_MCA_pmix_base_collect_data", "0", false}}};
};
#endif

/// Open MPI writes to connections whose other end is gone, and would so end this process. A handler that does nothing keeps
/// it alive, and programs that this one starts do not inherit it. What the program itself has set stays.
void survive_broken_connections() {
  struct sigaction before {};
  if (::sigaction(SIGPIPE, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) return;
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGPIPE, &action, nullptr);
}

/// Messages of 60 KiB come and go. Whenever 128 KiB are free at its end, the heap of glibc gives them back to the kernel,
/// and the next message costs page faults. Once a program has freed a block of its own mapping, glibc keeps up to twice its
/// size, and takes smaller blocks from the heap. A program that has chosen other limits (mallopt) keeps them.
void keep_memory_of_messages() {
  constexpr std::size_t kBytes = std::size_t{8} << 20U;
  void* volatile block = std::malloc(kBytes);  // volatile: or the compiler removes both calls
  std::free(block);
}

/// Puts the handler of SIGUSR1 back at the end of its life. MPICH replaces it: its engine can say with this signal that a
/// process has died. Syncrun notices this itself, and the signal belongs to the program.
class KeptHandler {
 public:
  KeptHandler() { ::sigaction(SIGUSR1, nullptr, &before_); }
  ~KeptHandler() { ::sigaction(SIGUSR1, &before_, nullptr); }
  KeptHandler(const KeptHandler&) = delete;
  KeptHandler& operator=(const KeptHandler&) = delete;

 private:
  struct sigaction before_ {};
};

/// All nodes call this at about the same time. MPI ends together with the other nodes, and may wait for them without
/// end. So another thread ends it, and this one waits only until `end`, and at most for kLongestFinalize.
bool finalize_until(os::Clock::time_point end) {
#ifdef MPICH_VERSION
  // MPICH before 4.2 over UCX waits for ever if a node disconnects before another one has begun to
  // (https://github.com/pmodels/mpich/pull/6596). The nap makes that rare: after it, each node has a core at once, also
  // where there are fewer cores than processes that spin.
  constexpr os::Milliseconds kNap{20};
  std::this_thread::sleep_for(kNap);
#endif
  end = std::min(end, os::Clock::now() + kLongestFinalize);
  std::packaged_task<int()> finalize([] { return MPI_Finalize(); });
  std::future<int> code = finalize.get_future();
  std::thread thread(std::move(finalize));
  if (code.wait_until(end) != std::future_status::ready) {
    thread.detach();
    return false;
  }
  thread.join();
  return code.get() == MPI_SUCCESS;
}

}  // namespace

void MpiTransport::Peer::or_stop_sending(auto&& send) {
  if (send_failure) std::rethrow_exception(send_failure);
  try {
    send();
  } catch (const std::exception&) {
    send_failure = std::current_exception();
    messages_out.cancel();
    throw;
  }
}

void MpiTransport::Peer::or_stop_receiving(auto&& receive) {
  try {
    receive();
  } catch (const std::exception&) {
    messages_in.cancel();
    throw;
  }
}

MpiTransport::~MpiTransport() {
  if (!has_closed_) static_cast<void>(owned_peers_.release());
}

void MpiTransport::open() {
  const os::MutexLock lock(mutex_);
  opener_.store(::pthread_self());
#ifdef OPEN_MPI
  const WithOneFence with_one_fence;
#endif
  survive_broken_connections();
  keep_memory_of_messages();
  const KeptHandler kept;
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "start MPI with");
  if (provided < MPI_THREAD_SERIALIZED) {
    throw Error(ErrorKind::system,
                "this MPI does not support threads: expected MPI_THREAD_SERIALIZED. Use an MPI built with threads");
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "prepare MPI with");
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "join");
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "prepare MPI with");
  check_mpi(MPI_Comm_rank(comm_, &node_), "join");
  check_mpi(MPI_Comm_size(comm_, &node_count_), "join");
  for (int node = 0; node < node_count_; ++node) peers_.emplace_back(comm_, node, divided_, left_);
}

/// open() holds the lock.
std::optional<Attendance> MpiTransport::attendance(int node, int nodes) {
  return ask_engine(node, nodes, opener_.load());
}

std::string MpiTransport::description() const {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "read the version of MPI with");
  // "Open MPI v4.1.4, package: ..." or "MPICH Version:\t4.0.2\nMPICH Release date: ..."
  std::string name(text, static_cast<std::size_t>(length));
  name.resize(std::min(name.size(), name.find_first_of(",\n")));
  if (const auto at = name.find(" Version:"); at != std::string::npos) name.erase(at, std::string(" Version:").size());
  std::replace(name.begin(), name.end(), '\t', ' ');
  if (const auto at = name.find(" v"); at != std::string::npos) name.erase(at + 1, 1);
  return name;
}

void MpiTransport::send(int node, std::vector<std::byte> message) {
  const os::MutexLock lock(mutex_);
  Peer& to = peer(node);
  if (to.is_abandoned) return;
  to.or_stop_sending([&] { to.messages_out.send(std::move(message)); });
  if (!std::exchange(to.is_listed_as_leaving, true)) leaving_to_.push_back(node);
}

std::optional<Transport::Arrival> MpiTransport::receive() {
  std::vector<OutgoingMessages::Whole> left;  // freed after the lock is
  const os::MutexLock lock(mutex_);
  left.swap(left_);
  if (!arriving_from_.empty()) {
    if (auto arrival = take_late_arrival()) return arrival;
  }
  if (auto arrival = take_new_arrival()) return arrival;
  send_messages_of_one_node();
  send_bulk_of_all();
  return std::nullopt;
}

std::optional<Transport::Arrival> MpiTransport::take_late_arrival() {
  for (std::size_t i = 0; i < arriving_from_.size(); ++i) {
    const int node = arriving_from_[i];
    IncomingMessages& messages = peer(node).messages_in;
    auto message = messages.next();
    if (!message && messages.size() > 0) continue;
    // The next call begins with another node, so that no node has to wait for ever.
    arriving_from_.erase(arriving_from_.begin() + static_cast<std::ptrdiff_t>(i));
    if (messages.size() > 0) arriving_from_.push_back(node);
    if (message) return Arrival{node, *std::move(message)};
    --i;  // the next node is in this place now
  }
  return std::nullopt;
}

std::optional<Transport::Arrival> MpiTransport::take_new_arrival() {
  for (int matches = 0; matches < kMostMatches; ++matches) {
    const Match found = match();
    if (found == Match::nothing) break;
    if (found != Match::lone_message) continue;
    const int node = arriving_from_.back();
    IncomingMessages& messages = peer(node).messages_in;
    auto message = messages.next();
    if (messages.size() == 0) arriving_from_.pop_back();
    if (message) return Arrival{node, *std::move(message)};
  }
  return std::nullopt;
}

MpiTransport::Match MpiTransport::match() {
  for (;;) {
    int has_one = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &has_one, &message, &status), "receive from");
    if (has_one == 0) return Match::nothing;
    const int node = status.MPI_SOURCE;
    Peer& from = peer(node);
    ++from.matched;
    int count = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &count), "receive from", node);
    const auto bytes = static_cast<std::size_t>(count);
    if (status.MPI_TAG == kBulkTag || status.MPI_TAG == kBulkSizeTag) {
      // Bulk of an abandoned node is left where it is.
      if (!from.is_abandoned) from.or_stop_receiving([&] { from.bulk_in.take(message, status.MPI_TAG, bytes); });
      return Match::other;
    }
    from.messages_in.take(message, status.MPI_TAG, bytes);
    if (from.messages_in.size() > 1) return Match::other;
    if (from.messages_in.size() == 0) continue;  // the node is silent
    arriving_from_.push_back(node);
    return Match::lone_message;
  }
}

void MpiTransport::send_bulk_of_all() {
  for (std::size_t i = 0; i < bulk_to_.size();) {
    Peer& to = peer(bulk_to_[i]);
    if (!to.send_failure) to.or_stop_sending([&] { to.bulk_out.advance(); });
    if (to.send_failure || to.bulk_out.is_empty()) bulk_to_.erase(bulk_to_.begin() + static_cast<std::ptrdiff_t>(i));
    else ++i;
  }
}

/// One node for each call: a test of a message that has not left takes as long as an empty receive().
void MpiTransport::send_messages_of_one_node() {
  if (leaving_to_.empty()) return;
  next_leaving_ = (next_leaving_ + 1) % leaving_to_.size();
  Peer& to = peer(leaving_to_[next_leaving_]);
  if (!to.messages_out.is_empty()) to.or_stop_sending([&] { to.messages_out.advance(); });
  if (!to.messages_out.is_empty()) return;
  to.is_listed_as_leaving = false;
  leaving_to_[next_leaving_] = leaving_to_.back();
  leaving_to_.pop_back();
}

Transport::Ticket MpiTransport::make_ticket(int node, Direction direction, std::uint64_t number) noexcept {
  return number << kTicketNodeBits | static_cast<Ticket>(node) << 1U | (direction == Direction::in ? 1U : 0U);
}

Transport::Ticket MpiTransport::send_bulk(int node, std::span<const std::byte> from) {
  const os::MutexLock lock(mutex_);
  Peer& to = peer(node);
  if (to.is_abandoned) return 0;
  std::uint64_t number = 0;
  to.or_stop_sending([&] { number = to.bulk_out.begin(from); });
  if (std::find(bulk_to_.begin(), bulk_to_.end(), node) == bulk_to_.end()) bulk_to_.push_back(node);
  return make_ticket(node, Direction::out, number);
}

Transport::Ticket MpiTransport::receive_bulk(int node, std::span<std::byte> to) {
  const os::MutexLock lock(mutex_);
  Peer& from = peer(node);
  return from.is_abandoned ? 0 : make_ticket(node, Direction::in, from.bulk_in.begin(to));
}

bool MpiTransport::is_over(Ticket ticket) {
  if (ticket == 0) return true;
  const os::MutexLock lock(mutex_);
  Peer& other = peer(static_cast<int>((ticket % (Ticket{1} << kTicketNodeBits)) >> 1U));
  const std::uint64_t number = ticket >> kTicketNodeBits;
  const bool is_in = (ticket & 1U) != 0;
  const auto is_over_in = [&](auto& bulk) {
    if (bulk.is_over(number)) return true;
    if (is_in) other.or_stop_receiving([&] { bulk.advance(); });
    else other.or_stop_sending([&] { bulk.advance(); });
    return bulk.is_over(number);
  };
  if (is_in ? is_over_in(other.bulk_in) : is_over_in(other.bulk_out)) return true;
  // The other node may be waiting for bulk that this node has to receive.
  match();
  return false;
}

std::uint64_t MpiTransport::pieces_from(int node) noexcept {
  const os::MutexLock lock(mutex_);
  return peer(node).messages_in.pieces() + peer(node).bulk_in.pieces();
}

std::uint64_t MpiTransport::pieces_to(int node) noexcept {
  const os::MutexLock lock(mutex_);
  return peer(node).messages_out.pieces_left();
}

void MpiTransport::abandon(int node) noexcept {
  const os::MutexLock lock(mutex_);
  Peer& other = peer(node);
  if (std::exchange(other.is_abandoned, true)) return;
  has_abandoned_ = true;
  other.bulk_out.cancel();
  other.bulk_in.cancel();
  other.messages_out.cancel();
  other.messages_in.cancel();
}

bool MpiTransport::close(os::Milliseconds grace) noexcept {
  const os::MutexLock lock(mutex_);
  const auto end = os::Clock::now() + grace;
  try {
    const bool have_left = wait_until(end, [this]() SYNCRUN_REQUIRES(mutex_) { return have_all_left(); });
    if (!have_left || has_abandoned_ || !exchange_farewells(end)) return false;
    has_closed_ = finalize_until(end);
    return has_closed_;
  } catch (const std::exception&) {
    return false;  // MPI or the start of a thread has failed. The caller ends the process with _exit().
  }
}

bool MpiTransport::wait_until(os::Clock::time_point end, auto&& condition) {
  constexpr int kTurnsAwake = 1000;
  for (int turn = 0; !condition(); ++turn) {
    if (drop_arrivals()) continue;
    if (os::Clock::now() >= end) return false;
    if (turn < kTurnsAwake) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  return true;
}

bool MpiTransport::have_all_left() {
  bool have_left = true;
  for (Peer& to : peers_) {
    if (to.is_abandoned) continue;
    to.or_stop_sending([&] {
      to.messages_out.advance();
      to.bulk_out.advance();
    });
    have_left = have_left && to.messages_out.is_empty() && to.bulk_out.is_empty();
  }
  return have_left;
}

/// Receives messages, and drops them. Bulk goes to the memory that was named for it. Returns false if there was
/// nothing.
bool MpiTransport::drop_arrivals() {
  for (Peer& from : peers_) {
    if (from.is_abandoned) continue;
    from.bulk_in.drain();
    from.messages_in.drain();
  }
  return match() != Match::nothing;
}

/// MPI may not end before every message was received: MPICH waits for ever otherwise. So the nodes tell each other how
/// many they have sent. When this is known, all nodes have stopped sending.
bool MpiTransport::exchange_farewells(os::Clock::time_point end) {
  // If the nodes do not answer in time, MPI may still use the two arrays. So they are freed only at the end.
  auto sent = std::make_unique<std::vector<std::uint64_t>>();
  auto sent_to_here = std::make_unique<std::vector<std::uint64_t>>(peers_.size());
  for (const Peer& to : peers_) sent->push_back(to.messages_out.sent() + to.bulk_out.sent());
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ialltoall(sent->data(), 1, MPI_UINT64_T, sent_to_here->data(), 1, MPI_UINT64_T, comm_, &request),
            "leave");
  if (!wait_until(end, [&] { return is_complete(request, "leave", -1); })) {
    static_cast<void>(sent.release());
    static_cast<void>(sent_to_here.release());
    return false;
  }
  if (!wait_until(end, [&]() SYNCRUN_REQUIRES(mutex_) { return has_received_all(*sent_to_here); })) return false;
  check_mpi(MPI_Ibarrier(comm_, &request), "leave");
  return wait_until(end, [&] { return is_complete(request, "leave", -1); });
}

bool MpiTransport::has_received_all(const std::vector<std::uint64_t>& sent_to_here) {
  bool has_all = true;
  for (std::size_t node = 0; node < peers_.size(); ++node) {
    Peer& from = peers_[node];
    has_all = has_all && from.matched >= sent_to_here[node] && from.messages_in.drain() && from.bulk_in.drain();
  }
  return has_all;
}

}  // namespace syncrun::detail::master::nodes::mpi

SYNCRUN_PART_VERSION

/// The function that libsyncrun looks up (master/nodes/mpi_library.cpp).
extern "C" SYNCRUN_EXPORT syncrun::detail::master::nodes::Transport* syncrun_make_transport() {
  return new syncrun::detail::master::nodes::mpi::MpiTransport();
}

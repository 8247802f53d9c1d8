#include "master/nodes/mpi/mpi_transport.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
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
  for (int node = 0; node < node_count_; ++node) peers_.emplace_back(comm_, node);
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
  or_stop_sending(node, [&]() SYNCRUN_REQUIRES(mutex_) {
    if (message.size() <= kPieceBytes) to.waiting.push_back({.message = std::move(message)});
    else divide(to, std::make_shared<const std::vector<std::byte>>(std::move(message)));
    if (!to.leaving.empty()) free_left(node);
    send_waiting(node);
  });
  if (!std::exchange(to.is_listed_as_leaving, true)) leaving_to_.push_back(node);
}

/// After a failure, MPI takes the request for complete, but its bytes are missing. The other node must not get what comes
/// after them. It notices the silence.
void MpiTransport::stop_sending(int node, std::exception_ptr why) noexcept {
  Peer& to = peer(node);
  to.send_failure = std::move(why);
  to.waiting.clear();
  for (Letter& letter : to.leaving) to.dropped.push_back(std::move(letter));
  to.leaving.clear();
  divided_ -= std::exchange(to.divided_out, 0);
  std::erase(bulk_to_, node);
  std::erase(leaving_to_, node);
  next_leaving_ = 0;
}

/// The parts leave from the memory of the message. A copy of a message of several GiB would take so long that the signs of
/// life, which need the lock too, would come too late.
void MpiTransport::divide(Peer& to, const Whole& whole) {
  ++to.divided_out;
  ++divided_;
  const std::uint64_t size = whole->size();
  const auto size_bytes = std::as_bytes(std::span(&size, 1));
  to.waiting.push_back({.message = {size_bytes.begin(), size_bytes.end()}, .tag = kPartsTag});
  for (std::span<const std::byte> rest(*whole); !rest.empty();) {
    const auto part = rest.first(std::min(rest.size(), kPieceBytes));
    rest = rest.subspan(part.size());
    to.waiting.push_back({.tag = rest.empty() ? kMessageTag : kPartTag, .whole = whole, .part = part});
  }
}

void MpiTransport::send_waiting(int node) {
  Peer& to = peer(node);
  while (!to.waiting.empty()) {
    const bool is_large = to.waiting.front().is_large();
    if (is_large && to.large_leaving == kPiecesUnderWay) return;
    // In a deque, the letter stays where it is. If the message cannot be sent, it is taken out again.
    Letter& letter = to.leaving.emplace_back(std::move(to.waiting.front()));
    to.waiting.pop_front();
    const auto bytes = letter.bytes();
    const int code =
        MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, node, letter.tag, comm_, &letter.request);
    if (code != MPI_SUCCESS) to.leaving.pop_back();
    check_mpi(code, "send a message to", node);
    ++to.sent;
    to.large_leaving += is_large ? 1 : 0;
  }
}

std::optional<Transport::Arrival> MpiTransport::receive() {
  std::vector<Whole> left;  // freed after the lock is
  const os::MutexLock lock(mutex_);
  left.swap(left_);
  if (!arriving_from_.empty()) {
    if (auto arrival = take_late_arrival()) return arrival;
  }
  if (auto arrival = take_new_arrival()) return arrival;
  free_left_of_one_node();
  send_bulk_of_all();
  return std::nullopt;
}

/// The message, if this was all of it. The letter has arrived.
std::optional<std::vector<std::byte>> MpiTransport::whole_message(int node, Letter letter) {
  Peer& from = peer(node);
  ++from.pieces;
  if (letter.tag == kPartsTag) {
    begin_parts(node, letter.message);
    return std::nullopt;
  }
  if (letter.tag == kMessageTag && !from.is_divided_in) return std::move(letter.message);
  from.parts.insert(from.parts.end(), letter.message.begin(), letter.message.end());
  if (letter.tag == kPartTag) return std::nullopt;
  if (from.parts.size() != from.parts_bytes) {
    const std::string found = std::to_string(from.parts.size());
    const std::string expected = std::to_string(from.parts_bytes);
    fail(node);
    throw Error(ErrorKind::system,
                node_text(node) + " sent a message of another size: expected " + expected + " bytes, got " + found);
  }
  std::optional message(std::move(from.parts));
  forget_parts(from);
  return message;
}

/// Makes room for a message that comes in parts.
void MpiTransport::begin_parts(int node, std::span<const std::byte> announced) {
  Peer& from = peer(node);
  forget_parts(from);
  std::memcpy(&from.parts_bytes, announced.data(), std::min(sizeof from.parts_bytes, announced.size()));
  try {
    from.parts.reserve(from.parts_bytes);
  } catch (const std::exception& error) {
    const std::string bytes = std::to_string(from.parts_bytes);
    fail(node);
    throw Error(ErrorKind::system, "there is no memory for a message of " + bytes + " bytes from " + node_text(node) +
                                       ": " + error.what());
  }
  from.is_divided_in = true;
  ++divided_;
}

void MpiTransport::forget_parts(Peer& from) noexcept {
  from.parts = {};
  if (std::exchange(from.is_divided_in, false)) --divided_;
}

/// Whether a message, or a part of one, is complete.
bool MpiTransport::has_arrived(int node, Letter& letter) {
  try {
    return is_complete(letter.request, "receive a message from", node);
  } catch (const Error&) {
    fail(node);
    throw;
  }
}

/// Something that the node has sent is missing. Parts of a message, and messages without those before them, must not be
/// taken for whole ones. So the node is silent from now on.
void MpiTransport::fail(int node) noexcept {
  Peer& from = peer(node);
  from.has_failed = true;
  for (Letter& letter : from.arriving) drop(from, std::move(letter));
  from.arriving.clear();
  forget_parts(from);
  std::erase(arriving_from_, node);
}

std::optional<Transport::Arrival> MpiTransport::take_late_arrival() {
  for (std::size_t i = 0; i < arriving_from_.size(); ++i) {
    const int node = arriving_from_[i];
    Peer& from = peer(node);
    std::optional<std::vector<std::byte>> message;
    while (!message && !from.arriving.empty() && has_arrived(node, from.arriving.front())) {
      message = whole_message(node, std::move(from.arriving.front()));
      from.arriving.pop_front();
    }
    const bool is_empty = from.arriving.empty();
    if (!message && !is_empty) continue;
    // The next call begins with another node, so that no node has to wait for ever.
    arriving_from_.erase(arriving_from_.begin() + static_cast<std::ptrdiff_t>(i));
    if (!is_empty) arriving_from_.push_back(node);
    if (message) return Arrival{node, *std::move(message)};
    --i;  // the next node is in this place now
  }
  return std::nullopt;
}

std::optional<Transport::Arrival> MpiTransport::take_new_arrival() {
  for (int matches = 0; matches < kMostMatches; ++matches) {
    Found found = match();
    if (found.match == Match::nothing) break;
    if (found.match == Match::bulk) continue;
    Peer& from = peer(found.node);
    if (from.arriving.empty() && has_arrived(found.node, found.letter)) {
      if (auto message = whole_message(found.node, std::move(found.letter)))
        return Arrival{found.node, *std::move(message)};
      continue;
    }
    keep_for_later(found.node, std::move(found.letter));
  }
  return std::nullopt;
}

void MpiTransport::keep_for_later(int node, Letter letter) {
  auto& arriving = peer(node).arriving;
  if (arriving.empty()) arriving_from_.push_back(node);
  arriving.push_back(std::move(letter));
}

MpiTransport::Found MpiTransport::match() {
  for (;;) {
    int has_one = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &has_one, &message, &status), "receive from");
    if (has_one == 0) return {};
    const int node = status.MPI_SOURCE;
    Peer& from = peer(node);
    ++from.matched;
    int count = 0;
    check_mpi(MPI_Get_count(&status, MPI_BYTE, &count), "receive from", node);
    const auto bytes = static_cast<std::size_t>(count);
    if (status.MPI_TAG == kBulkTag || status.MPI_TAG == kBulkSizeTag) {
      // Bulk of an abandoned node is left where it is.
      if (!from.is_abandoned) or_fail(node, [&] { from.bulk_in.take(message, status.MPI_TAG, bytes); });
      return {.match = Match::bulk, .node = node};
    }
    Letter letter{.message = std::vector<std::byte>(bytes), .tag = status.MPI_TAG};
    const int code = MPI_Imrecv(letter.message.data(), count, MPI_BYTE, &message, &letter.request);
    if (code != MPI_SUCCESS) fail(node);
    check_mpi(code, "receive a message from", node);
    if (!from.is_abandoned && !from.has_failed)
      return {.match = Match::message, .node = node, .letter = std::move(letter)};
    drop(from, std::move(letter));
  }
}

void MpiTransport::drop(Peer& from, Letter letter) {
  if (!is_done_with(letter.request)) from.dropped.push_back(std::move(letter));
}

void MpiTransport::free_left(int node) {
  Peer& to = peer(node);
  while (!to.leaving.empty() && is_complete(to.leaving.front().request, "send a message to", node)) {
    to.large_leaving -= to.leaving.front().is_large() ? 1 : 0;
    to.pieces_left += to.leaving.front().is_small() ? 0 : 1;
    if (to.leaving.front().whole && to.leaving.front().tag == kMessageTag) {
      left_.push_back(std::move(to.leaving.front().whole));
      --to.divided_out;
      --divided_;
    }
    to.leaving.pop_front();
  }
  send_waiting(node);
}

void MpiTransport::send_bulk_of_all() {
  for (std::size_t i = 0; i < bulk_to_.size();) {
    const int node = bulk_to_[i];
    OutgoingBulk& bulk = peer(node).bulk_out;
    or_stop_sending(node, [&] { bulk.advance(); });
    if (bulk.is_empty()) bulk_to_.erase(bulk_to_.begin() + static_cast<std::ptrdiff_t>(i));
    else ++i;
  }
}

/// One node for each call: a test of a message that has not left takes as long as an empty receive().
void MpiTransport::free_left_of_one_node() {
  if (leaving_to_.empty()) return;
  next_leaving_ = (next_leaving_ + 1) % leaving_to_.size();
  const int node = leaving_to_[next_leaving_];
  or_stop_sending(node, [&]() SYNCRUN_REQUIRES(mutex_) { free_left(node); });
  if (!peer(node).leaving.empty() || !peer(node).waiting.empty()) return;
  peer(node).is_listed_as_leaving = false;
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
  or_stop_sending(node, [&] { number = to.bulk_out.begin(from); });
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
  const int node = static_cast<int>((ticket % (Ticket{1} << kTicketNodeBits)) >> 1U);
  Peer& other = peer(node);
  const std::uint64_t number = ticket >> kTicketNodeBits;
  const bool is_in = (ticket & 1U) != 0;
  const auto is_over_in = [&](auto& bulk) SYNCRUN_REQUIRES(mutex_) {
    if (bulk.is_over(number)) return true;
    if (is_in) or_fail(node, [&] { bulk.advance(); });
    else or_stop_sending(node, [&] { bulk.advance(); });
    return bulk.is_over(number);
  };
  if (is_in ? is_over_in(other.bulk_in) : is_over_in(other.bulk_out)) return true;
  // The other node may be waiting for bulk that this node has to receive.
  Found found = match();
  if (found.match == Match::message) keep_for_later(found.node, std::move(found.letter));
  return false;
}

std::uint64_t MpiTransport::pieces_from(int node) noexcept {
  const os::MutexLock lock(mutex_);
  return peer(node).pieces + peer(node).bulk_in.pieces();
}

std::uint64_t MpiTransport::pieces_to(int node) noexcept {
  const os::MutexLock lock(mutex_);
  return peer(node).pieces_left;
}

void MpiTransport::abandon(int node) noexcept {
  const os::MutexLock lock(mutex_);
  Peer& other = peer(node);
  if (std::exchange(other.is_abandoned, true)) return;
  has_abandoned_ = true;
  other.bulk_out.cancel();
  other.bulk_in.cancel();
  // MPI cannot take back a message that it sends, or that it has matched. The memory stays.
  for (auto* letters : {&other.leaving, &other.arriving}) {
    for (Letter& letter : *letters) other.dropped.push_back(std::move(letter));
    letters->clear();
  }
  other.waiting.clear();
  divided_ -= std::exchange(other.divided_out, 0);
  forget_parts(other);
  std::erase(bulk_to_, node);
  std::erase(arriving_from_, node);
  std::erase(leaving_to_, node);
  next_leaving_ = 0;
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
  for (int node = 0; node < nodes(); ++node) {
    Peer& to = peer(node);
    if (to.is_abandoned) continue;
    or_stop_sending(node, [&]() SYNCRUN_REQUIRES(mutex_) {
      free_left(node);
      to.bulk_out.advance();
    });
    have_left = have_left && to.waiting.empty() && to.leaving.empty() && to.bulk_out.is_empty();
  }
  return have_left;
}

/// Receives messages, and drops them. Bulk goes to the memory that was named for it. Returns false if there was
/// nothing.
bool MpiTransport::drop_arrivals() {
  for (Peer& from : peers_) {
    if (from.is_abandoned) continue;
    from.bulk_in.drain();
    while (!from.dropped.empty() && is_done_with(from.dropped.front().request)) from.dropped.pop_front();
  }
  Found found = match();
  if (found.match == Match::message) drop(peer(found.node), std::move(found.letter));
  return found.match != Match::nothing;
}

/// MPI may not end before every message was received: MPICH waits for ever otherwise. So the nodes tell each other how
/// many they have sent. When this is known, all nodes have stopped sending.
bool MpiTransport::exchange_farewells(os::Clock::time_point end) {
  // If the nodes do not answer in time, MPI may still use the two arrays. So they are freed only at the end.
  auto sent = std::make_unique<std::vector<std::uint64_t>>();
  auto sent_to_here = std::make_unique<std::vector<std::uint64_t>>(peers_.size());
  for (const Peer& to : peers_) sent->push_back(to.sent + to.bulk_out.sent());
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ialltoall(sent->data(), 1, MPI_UINT64_T, sent_to_here->data(), 1, MPI_UINT64_T, comm_, &request),
            "leave");
  if (!wait_until(end, [&] { return is_complete(request, "leave", -1); })) {
    static_cast<void>(sent.release());
    static_cast<void>(sent_to_here.release());
    return false;
  }
  for (Peer& from : peers_) {
    for (Letter& letter : from.arriving) drop(from, std::move(letter));
    from.arriving.clear();
  }
  if (!wait_until(end, [&]() SYNCRUN_REQUIRES(mutex_) { return has_received_all(*sent_to_here); })) return false;
  check_mpi(MPI_Ibarrier(comm_, &request), "leave");
  return wait_until(end, [&] { return is_complete(request, "leave", -1); });
}

bool MpiTransport::has_received_all(const std::vector<std::uint64_t>& sent_to_here) {
  bool has_all = true;
  for (std::size_t node = 0; node < peers_.size(); ++node) {
    Peer& from = peers_[node];
    has_all = has_all && from.matched >= sent_to_here[node] && from.dropped.empty() && from.bulk_in.drain();
  }
  return has_all;
}

}  // namespace syncrun::detail::master::nodes::mpi

SYNCRUN_PART_VERSION

/// The function that libsyncrun looks up (master/nodes/mpi_library.cpp).
extern "C" SYNCRUN_EXPORT syncrun::detail::master::nodes::Transport* syncrun_make_transport() {
  return new syncrun::detail::master::nodes::mpi::MpiTransport();
}

// A request of MPI fails in the middle of a large message or of bulk. If it is a receive, the transport must not deliver the
// rest. If it is a send, the transport must not send what comes after it, or take the bulk for sent.
//
//   mpirun -np 2 failed_requests openmpi|mpich ReceivesDeliverNothing|SendsAreTheLast Message|Bulk
//
// The node whose request fails prints "nothing was delivered" or "nothing was sent", or what has happened.

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

#include "master/nodes/mpi_library.hpp"
#include "syncrun/error.hpp"

namespace {

using namespace syncrun;
using detail::master::nodes::Mpi;
using detail::master::nodes::Transport;

std::atomic<int> until_failure = 0;  // how many requests of this node complete before one fails; 0: none fails
std::atomic<bool> has_failed = false;
using Test = int (*)(void*, int*, void*);
std::atomic<Test> real_test = nullptr;

/// Messages that come after the error, and whether bulk is over.
int deliveries(Transport& transport, Transport::Ticket ticket) {
  int count = 0;
  const auto look = [&] {
    try {
      count += transport.receive() ? 1 : 0;
      count += ticket != 0 && transport.is_over(ticket) ? 1 : 0;
    } catch (const Error&) {
      // It is the one that this program causes.
    }
  };
  const auto begin = std::chrono::steady_clock::now();
  while (!has_failed && std::chrono::steady_clock::now() - begin < std::chrono::seconds(60)) look();
  for (int looks = 0; looks < 1000 && count == 0; ++looks) {
    look();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return count;
}

/// Whether the transport sends something after an error, or takes bulk for sent.
bool has_sent(Transport& transport, Transport::Ticket ticket) {
  const auto is_over = [&] {
    try {
      static_cast<void>(transport.receive());
      return ticket != 0 && transport.is_over(ticket);
    } catch (const Error&) {
      return false;  // it is the error that this program causes
    }
  };
  const auto begin = std::chrono::steady_clock::now();
  while (!has_failed && std::chrono::steady_clock::now() - begin < std::chrono::seconds(60)) is_over();
  bool has_ended = false;
  // Looks only for a while. Node 1 ends some time later, and would cause another error then.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (std::chrono::steady_clock::now() < end && !has_ended) {
    has_ended = is_over();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  try {
    transport.send(1, std::vector<std::byte>(1));
    return true;
  } catch (const Error&) {
    return has_ended;
  }
}

}  // namespace

/// The transport calls this function and not that of MPI.
extern "C" int MPI_Test(void* request, int* is_done, void* status) {
  constexpr int kOtherError = 15;
  const int code = real_test.load()(request, is_done, status);
  if (code != 0 || *is_done == 0 || until_failure == 0 || --until_failure != 0) return code;
  has_failed = true;
  return kOtherError;
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const bool is_open_mpi = std::string_view(argv[1]) == "openmpi";
  const bool sends = std::string_view(argv[2]) == "SendsAreTheLast";
  const bool is_bulk = std::string_view(argv[3]) == "Bulk";
  const auto transport = detail::master::nodes::load_mpi_transport(is_open_mpi ? Mpi::open_mpi : Mpi::mpich);
  void* const library =
      ::dlopen(is_open_mpi ? "libsyncrun_openmpi.so." SYNCRUN_SOVERSION : "libsyncrun_mpich.so." SYNCRUN_SOVERSION,
               RTLD_NOW | RTLD_NOLOAD);
  real_test = library == nullptr ? nullptr : reinterpret_cast<Test>(::dlsym(library, "PMPI_Test"));
  if (real_test == nullptr) return 2;
  transport->open();
  std::vector<std::byte> memory(std::size_t{10} << 20U);
  if (sends) {
    if (transport->node() == 0) {
      until_failure = 3;
      Transport::Ticket ticket = 0;
      if (is_bulk) ticket = transport->send_bulk(1, memory);
      else transport->send(1, memory);
      std::printf(!has_sent(*transport, ticket) && has_failed ? "nothing was sent\n" : "sent after a failure\n");
      std::fflush(stdout);
      ::_exit(0);
    }
    if (is_bulk) transport->receive_bulk(0, memory);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      static_cast<void>(transport->receive());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ::_exit(0);
  }
  if (transport->node() == 1) {
    until_failure = 3;
    const int count = deliveries(*transport, is_bulk ? transport->receive_bulk(0, memory) : 0);
    std::printf(has_failed && count == 0 ? "nothing was delivered\n" : "after a failure: %d\n", count);
    std::fflush(stdout);
    transport->send(0, {});
  }
  if (transport->node() == 0 && is_bulk) transport->send_bulk(1, memory);
  if (transport->node() == 0 && !is_bulk) transport->send(1, memory);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(transport->node() == 0 ? 80 : 1);
  while (!transport->receive() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  ::_exit(0);
}

// Compares the transport between nodes with MPI itself, in the same run: the round trip of a small message, and the rate
// of large transfers. It is built for each MPI, since it calls MPI directly too:
//
//   mpirun.openmpi -np 2 bench_transport_openmpi --seconds 0.5
//   mpirun.mpich -np 2 bench_transport_mpich --seconds 0.5

#include <mpi.h>

#include <functional>
#include <optional>

#include "bench/comparators/measure.hpp"
#include "master/nodes/mpi_library.hpp"

namespace {

using syncrun::detail::master::nodes::Mpi;
using syncrun::detail::master::nodes::Transport;

constexpr int kWarm = 50;
constexpr int kTag = 9;
constexpr std::size_t kMessageBytes = 8;
constexpr std::size_t kBulkBytes = std::size_t{64} << 20;

#ifdef OPEN_MPI
constexpr Mpi kMpi = Mpi::open_mpi;
#else
constexpr Mpi kMpi = Mpi::mpich;
#endif

/// Returns what `attempt` returns as soon as that is something. Like MPI itself, it does not sleep.
template <class Result, class Try>
Result wait_for(Try&& attempt) {
  for (;;) {
    if (Result result = attempt()) return result;
  }
}

std::vector<std::byte> receive(Transport& transport) {
  return wait_for<std::optional<Transport::Arrival>>([&] { return transport.receive(); })->message;
}

void wait_until_over(Transport& transport, Transport::Ticket ticket) {
  wait_for<bool>([&] { return transport.is_over(ticket); });
}

/// A measurement. Both nodes call `turn`, equally often.
struct Bench {
  const char* name;
  const char* impl;
  std::size_t bytes;
  std::function<void()> turn;
};

void run(Transport& transport, const Bench& bench, double seconds) {
  const bool leads = transport.node() == 0;
  const auto warm_start = comparators::Clock::now();
  for (int i = 0; i < kWarm; ++i) bench.turn();
  const double warm_us = comparators::microseconds_since(warm_start) / kWarm;
  long count = comparators::iterations_for(seconds, warm_us);
  MPI_Bcast(&count, 1, MPI_LONG, 0, MPI_COMM_WORLD);
  std::vector<double> samples_us(static_cast<std::size_t>(count));
  for (double& sample_us : samples_us) {
    const auto start = comparators::Clock::now();
    bench.turn();
    sample_us = comparators::microseconds_since(start);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (leads) comparators::print_json_line({bench.name, bench.impl, "two nodes", 2, bench.bytes}, samples_us);
}

void measure(Transport& transport, double seconds) {
  const int other = 1 - transport.node();
  const bool leads = transport.node() == 0;
  const std::vector<std::byte> ping(kMessageBytes);
  std::vector<std::byte> bulk(kBulkBytes);
  std::vector<std::byte> pong(kMessageBytes);

  const auto mpi_send = [&](std::vector<std::byte>& from) {
    MPI_Send(from.data(), static_cast<int>(from.size()), MPI_BYTE, other, kTag, MPI_COMM_WORLD);
  };
  const auto mpi_receive = [&](std::vector<std::byte>& to) {
    MPI_Recv(to.data(), static_cast<int>(to.size()), MPI_BYTE, other, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  };
  const auto mpi_round_trip = [&] {
    if (leads) mpi_send(pong);
    mpi_receive(pong);
    if (!leads) mpi_send(pong);
  };
  const auto transport_round_trip = [&] {
    if (leads) transport.send(other, ping);
    receive(transport);
    if (!leads) transport.send(other, ping);
  };
  // A message back ends each transfer, so that the time is that of the receiver.
  const auto mpi_bulk = [&] {
    leads ? mpi_send(bulk) : mpi_receive(bulk);
    leads ? mpi_receive(pong) : mpi_send(pong);
  };
  const auto transport_bulk = [&] {
    wait_until_over(transport, leads ? transport.send_bulk(other, bulk) : transport.receive_bulk(other, bulk));
    if (leads) {
      receive(transport);
    } else {
      transport.send(other, ping);
    }
  };
  // In turns, so that a change of the machine's speed concerns both.
  for (int repetition = 0; repetition < 3; ++repetition) {
    run(transport, {"round_trip", "mpi", kMessageBytes, mpi_round_trip}, seconds);
    run(transport, {"round_trip", "transport", kMessageBytes, transport_round_trip}, seconds);
    run(transport, {"bulk", "mpi", kBulkBytes, mpi_bulk}, seconds);
    run(transport, {"bulk", "transport", kBulkBytes, transport_bulk}, seconds);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const comparators::Options options = comparators::parse_options(argc, argv);
  const auto transport = syncrun::detail::master::nodes::load_mpi_transport(kMpi);
  transport->open();
  if (transport->nodes() != 2) throw std::invalid_argument("start it with mpirun -np 2");
  measure(*transport, options.seconds);
  return transport->close(syncrun::detail::os::Milliseconds(10'000)) ? 0 : 1;
}

// What a small message costs between two hosts, with MPI: half of a round trip, the time of the sender for each
// message, and the time of the receiver for a message that has already arrived. Also the rate of a transfer of 64 MiB.
// model_nodes.py starts it on two hosts with one process each.
//
//   mpirun -np 2 ... mpi_costs

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <vector>

namespace {

constexpr int kMessageBytes = 426;  // a command without arguments
constexpr int kBulkBytes = 64 << 20;
constexpr int kBurst = 32;  // the commands of a rank that may be in flight
constexpr int kRounds = 2000;
constexpr int kBulkRounds = 15;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// One of two processes.
class Side {
 public:
  Side() : bulk_(kBulkBytes) { MPI_Comm_rank(MPI_COMM_WORLD, &rank_); }
  bool leads() const noexcept { return rank_ == 0; }

  /// The median of a round trip.
  double round_trip(int bytes, int rounds) {
    std::vector<double> times;
    for (int i = -rounds / 10; i < rounds; ++i) {
      const double begin = MPI_Wtime();
      if (leads()) send(bytes);
      receive(bytes);
      if (!leads()) send(bytes);
      if (i >= 0) times.push_back((MPI_Wtime() - begin) * 1e6);
    }
    return median(std::move(times));
  }
  /// A transfer and an empty answer.
  double transfer() {
    std::vector<double> times;
    for (int i = -1; i < kBulkRounds; ++i) {
      const double begin = MPI_Wtime();
      leads() ? send(kBulkBytes) : receive(kBulkBytes);
      leads() ? receive(1) : send(1);
      if (i >= 0) times.push_back((MPI_Wtime() - begin) * 1e6);
    }
    return median(std::move(times));
  }
  /// The leader sends bursts. Returns the time of a message: of the sender, or of the receiver. The receiver begins
  /// only when the whole burst has arrived.
  double burst() {
    std::vector<double> times;
    for (int i = -kRounds / 10; i < kRounds / 4; ++i) {
      MPI_Barrier(MPI_COMM_WORLD);
      if (!leads()) wait_for_burst();
      const double begin = MPI_Wtime();
      for (int message = 0; message < kBurst; ++message) leads() ? send(kMessageBytes) : receive(kMessageBytes);
      if (i >= 0) times.push_back((MPI_Wtime() - begin) * 1e6 / kBurst);
    }
    return median(std::move(times));
  }

 private:
  /// Does not call MPI, so the messages wait in the network.
  static void wait_for_burst() {
    constexpr double kBurstTime = 1e-3;
    const double begin = MPI_Wtime();
    while (MPI_Wtime() - begin < kBurstTime) {
    }
  }
  void send(int bytes) { MPI_Send(bulk_.data(), bytes, MPI_BYTE, 1 - rank_, 0, MPI_COMM_WORLD); }
  void receive(int bytes) { MPI_Recv(bulk_.data(), bytes, MPI_BYTE, 1 - rank_, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE); }

  int rank_ = 0;
  std::vector<char> bulk_;
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int processes = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  if (processes != 2) {
    std::fputs("mpi_costs: start it with two processes\n", stderr);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  Side side;
  const double one_way = side.round_trip(kMessageBytes, kRounds) / 2;
  const double sender = side.burst();  // in the other process, this is the receiver's time
  double receiver = sender;
  if (side.leads()) MPI_Recv(&receiver, 1, MPI_DOUBLE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  else MPI_Send(&receiver, 1, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD);
  const double transfer = side.transfer();
  if (side.leads()) {
    std::printf("{\"one_way_us\": %.3f, \"sender_us\": %.3f, \"receiver_us\": %.3f, \"gb_per_s\": %.3f}\n", one_way,
                sender, receiver, kBulkBytes / ((transfer - one_way) * 1e3));
  }
  MPI_Finalize();
  return 0;
}

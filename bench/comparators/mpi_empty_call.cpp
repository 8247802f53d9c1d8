// Measures an empty call with MPI. Rank 0 is the master. It broadcasts a command of 64 bytes to the workers, and then
// all ranks enter a barrier. The program is started with N + 1 processes for N workers:
//
//   mpirun -n 3 mpi_empty_call --seconds 1

#include <mpi.h>

#include <array>
#include <exception>

#include "measure.hpp"

namespace {

constexpr int kWarmUpCalls = 200;

void call(std::array<char, 64>& command) {
  MPI_Bcast(command.data(), static_cast<int>(command.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
}

void measure(const comparators::Options& options) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  std::array<char, 64> command{};
  for (int i = 0; i < kWarmUpCalls; ++i) call(command);
  const auto warm = comparators::Clock::now();
  for (int i = 0; i < kWarmUpCalls; ++i) call(command);
  long calls = comparators::iterations_for(options.seconds, comparators::microseconds_since(warm) / kWarmUpCalls);
  MPI_Bcast(&calls, 1, MPI_LONG, 0, MPI_COMM_WORLD);

  std::vector<double> samples_us(static_cast<std::size_t>(calls));
  MPI_Barrier(MPI_COMM_WORLD);
  for (double& sample_us : samples_us) {
    const auto start = comparators::Clock::now();
    call(command);
    sample_us = comparators::microseconds_since(start);
  }
  if (rank != 0) return;
  comparators::print_json_line({.name = "empty_call",
                                .impl = "openmpi",
                                .variant = "bcast_barrier",
                                .workers = static_cast<std::size_t>(size - 1)},
                               samples_us);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    measure(comparators::parse_options(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mpi_empty_call: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}

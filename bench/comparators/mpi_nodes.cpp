// What bench_nodes does, with MPI: MPI_Bcast of 64 bytes and MPI_Barrier among the master and all workers, and
// MPI_Scatterv of 64 MiB, of which the first process keeps its part, and MPI_Reduce of 16 MiB from each worker.
//
//   mpirun ... mpi_nodes CALLS

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double empty_call(int calls) {
  std::array<char, 64> command{};
  std::vector<double> times;
  for (int i = -calls / 10; i < calls; ++i) {
    const double begin = MPI_Wtime();
    MPI_Bcast(command.data(), static_cast<int>(command.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (i >= 0) times.push_back((MPI_Wtime() - begin) * 1e6);
  }
  return median(std::move(times));
}

/// Among one process of each node, as the rows travel in Syncrun.
double fresh_batch(int batches) {
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm leaders = MPI_COMM_NULL;
  int rank = 0, local_rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &local_rank);
  MPI_Comm_split(MPI_COMM_WORLD, local_rank == 0 ? 0 : MPI_UNDEFINED, rank, &leaders);
  if (leaders == MPI_COMM_NULL) return 0;
  int size = 0;
  MPI_Comm_size(leaders, &size);
  constexpr int kElements = (64 << 20) / 8;
  std::vector<double> all(rank == 0 ? kElements : 0, 1.0);
  std::vector<double> part(static_cast<std::size_t>(kElements / size + size));
  std::vector<int> counts(static_cast<std::size_t>(size), kElements / size), begins(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) begins[static_cast<std::size_t>(i)] = i * (kElements / size);
  char done = 0;
  std::vector<double> times;
  for (int i = -1; i < batches; ++i) {
    MPI_Barrier(leaders);
    const double begin = MPI_Wtime();
    MPI_Scatterv(all.data(), counts.data(), begins.data(), MPI_DOUBLE, rank == 0 ? MPI_IN_PLACE : part.data(),
                 counts[0], MPI_DOUBLE, 0, leaders);
    std::vector<char> answers(static_cast<std::size_t>(size));
    MPI_Gather(&done, 1, MPI_BYTE, answers.data(), 1, MPI_BYTE, 0, leaders);
    if (i >= 0) times.push_back((MPI_Wtime() - begin) * 1e6);
  }
  return median(std::move(times));
}

/// The first process is the master, which has no values of its own.
double large_output(int calls) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  constexpr int kElements = (16 << 20) / 4;
  std::vector<double> times;
  for (int i = -1; i < calls; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    std::vector<float> values(kElements, rank == 0 ? 0.0F : 1.0F);
    MPI_Reduce(rank == 0 ? MPI_IN_PLACE : values.data(), values.data(), kElements, MPI_FLOAT, MPI_SUM, 0,
               MPI_COMM_WORLD);
    if (i >= 0) times.push_back((MPI_Wtime() - begin) * 1e6);
  }
  return median(std::move(times));
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const int calls = argc > 1 ? std::atoi(argv[1]) : 5000;
  if (argc > 2) {  // "start": only the first barrier
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) std::printf("{}\n");
    MPI_Finalize();
    return 0;
  }
  const double call = empty_call(calls);
  const double batch = fresh_batch(20);
  const double output = large_output(20);
  if (rank == 0)
    std::printf("{\"empty_call\": %.2f, \"fresh_batch\": %.2f, \"large_output\": %.2f}\n", call, batch, output);
  MPI_Finalize();
  return 0;
}

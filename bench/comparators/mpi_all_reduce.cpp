// Measures MPI_Allreduce of float32 in a loop, in place and with separate buffers, for sizes in powers of four:
//
//   mpirun -n 2 mpi_all_reduce --seconds 0.5 --min-bytes 1024 --max-bytes 67108864
//   mpirun --host a:2,b:2 -n 4 mpi_all_reduce --sizes 8,1024,16777216

#include <mpi.h>

#include <exception>

#include "measure.hpp"

namespace {

constexpr int kWarmUpIterations = 5;
#ifdef MPICH_VERSION
constexpr const char* kLibrary = "mpich";
#else
constexpr const char* kLibrary = "openmpi";
#endif

enum class Buffers { InPlace, Separate };

struct Ranks {
  std::size_t rank;
  std::size_t size;
};

Ranks ranks() {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return {.rank = static_cast<std::size_t>(rank), .size = static_cast<std::size_t>(size)};
}

void measure(const comparators::Options& options, Buffers buffers, std::size_t bytes) {
  const Ranks me = ranks();
  std::vector<float> input(bytes / sizeof(float));
  std::vector<float> output(input.size());
  comparators::fill(input, me.rank);
  comparators::fill(output, me.rank);
  const void* source = buffers == Buffers::InPlace ? MPI_IN_PLACE : input.data();
  const auto all_reduce = [&] {
    MPI_Allreduce(source, output.data(), static_cast<int>(output.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };

  all_reduce();
  comparators::require_sum(output, me.size);
  for (int i = 0; i < kWarmUpIterations; ++i) all_reduce();
  MPI_Barrier(MPI_COMM_WORLD);
  const auto warm = comparators::Clock::now();
  for (int i = 0; i < kWarmUpIterations; ++i) all_reduce();
  long iterations =
      comparators::iterations_for(options.seconds, comparators::microseconds_since(warm) / kWarmUpIterations);
  MPI_Bcast(&iterations, 1, MPI_LONG, 0, MPI_COMM_WORLD);

  std::vector<double> samples_us(static_cast<std::size_t>(iterations));
  MPI_Barrier(MPI_COMM_WORLD);
  for (double& sample_us : samples_us) {
    const auto start = comparators::Clock::now();
    all_reduce();
    sample_us = comparators::microseconds_since(start);
  }
  if (me.rank != 0) return;
  comparators::print_json_line({.name = "all_reduce",
                                .impl = kLibrary,
                                .variant = buffers == Buffers::InPlace ? "in_place" : "separate",
                                .workers = me.size,
                                .bytes = bytes},
                               samples_us);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    const comparators::Options options = comparators::parse_options(argc, argv);
    for (const std::size_t bytes : options.sizes()) {
      for (const Buffers buffers : {Buffers::InPlace, Buffers::Separate}) measure(options, buffers, bytes);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mpi_all_reduce: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}

// Trains on the digits as demos/mnist does, with the same kernels and options, and with MPI in place of Syncrun. Every
// process has the data and the parameters. It computes the gradient of its rows of a batch, averages the gradient with
// MPI_Allreduce, and updates its parameters.
//
//   mpirun --host a:2,b:2 -n 4 mpi_digits --epochs 3

#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <type_traits>
#include <vector>

#include "bench/comparators/digits.hpp"
#include "demos/common/nesterov.hpp"
#include "demos/common/network.hpp"
#include "demos/mnist/digits.hpp"
#include "demos/mnist/options.hpp"
#include "demos/mnist/serial_rows.hpp"
#include "demos/mnist/training.hpp"

namespace {

#ifdef MPICH_VERSION
constexpr const char* kLibrary = "mpich";
#else
constexpr const char* kLibrary = "openmpi";
#endif

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

/// The network of a process.
template <class T>
class Replica {
 public:
  Replica(const mnist::Options& options, const mnist::Digits& digits, Ranks ranks)
      : ranks_(ranks),
        learning_rate_(options.learning_rate),
        momentum_(options.momentum),
        training_(digits, digits.training()),
        network_(options.model, digits.height(), digits.width(), mnist::kClasses),
        params_(mnist::initial_parameters<T>(options.model, digits.height(), digits.width(), options.seed)),
        velocity_(params_.size()),
        gradient_(params_.size()),
        dropout_{.seed = options.seed, .step = 0} {}

  void step(std::span<const std::int64_t> batch) {
    ++dropout_.step;
    const auto own = own_part(batch);
    images_.resize(own.size() * training_.pixels());
    labels_.resize(own.size());
    training_.pick(own, images_.data(), labels_.data());
    const demos::Outcome outcome = network_.loss_and_gradient(params_, images_, labels_, own, dropout_, gradient_);
    loss_sum_ += outcome.mean_loss * static_cast<double>(own.size());
    rows_ += batch.size();
    // The mean over the batch counts each gradient by its rows. If all ranks have as many rows, the factor becomes a
    // part of the learning rate. This saves a pass over the gradient.
    const auto weight = static_cast<T>(own.size()) / static_cast<T>(batch.size());
    T rate = static_cast<T>(learning_rate_);
    if (batch.size() % ranks_.size == 0) {
      rate *= weight;
    } else {
      for (T& value : gradient_) value *= weight;
    }
    MPI_Allreduce(MPI_IN_PLACE, gradient_.data(), static_cast<int>(gradient_.size()), kType, MPI_SUM, MPI_COMM_WORLD);
    demos::nesterov_update<T>(params_, velocity_, gradient_, rate, static_cast<T>(momentum_));
  }

  /// The mean loss of all ranks' rows since the last time, on rank 0. No step needs it. So it is added up once an
  /// epoch.
  double epoch_loss() {
    double sum = 0;
    MPI_Reduce(&loss_sum_, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    const double mean = sum / static_cast<double>(rows_);
    loss_sum_ = 0;
    rows_ = 0;
    return mean;
  }

  std::size_t rows() const { return training_.labels.size(); }

 private:
  static inline const MPI_Datatype kType = std::is_same_v<T, float> ? MPI_FLOAT : MPI_DOUBLE;

  /// The batch is divided in rank order. If this is not possible evenly, the first ranks get one row more.
  std::span<const std::int64_t> own_part(std::span<const std::int64_t> batch) const {
    const std::size_t each = batch.size() / ranks_.size;
    const std::size_t more = batch.size() % ranks_.size;
    const std::size_t begin = ranks_.rank * each + std::min(ranks_.rank, more);
    return batch.subspan(begin, each + (ranks_.rank < more ? 1 : 0));
  }

  Ranks ranks_;
  double learning_rate_;
  double momentum_;
  mnist::Rows<T> training_;
  demos::Network<T> network_;
  std::vector<T> params_;
  std::vector<T> velocity_;
  std::vector<T> gradient_;
  std::vector<T> images_;  // of this rank's part of a batch
  std::vector<std::uint8_t> labels_;
  demos::StepKey dropout_;
  double loss_sum_ = 0;
  std::size_t rows_ = 0;
};

template <class T>
void train(const mnist::Options& options) {
  const Ranks me = ranks();
  Replica<T> replica(options, mnist::Digits(options.data), me);
  MPI_Barrier(MPI_COMM_WORLD);
  const auto training = comparators::train_digits(
      options, replica.rows(), [&](auto batch) { replica.step(batch); }, [&] { return replica.epoch_loss(); });
  if (me.rank == 0) comparators::print_training(kLibrary, me.size, training);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    if (const auto options = mnist::parse_options(argc, argv)) {
      options->precision == mnist::Precision::kFloat64 ? train<double>(*options) : train<float>(*options);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mpi_digits: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}

#pragma once

// What the templates of loader() call in libsyncrun_torch.so. Users never name anything in this header.

#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "syncrun/detail/export.hpp"
#include "syncrun/torch/loader_options.hpp"

namespace syncrun::libtorch {
namespace detail {

/// The tensors of an example or of a stacked batch, in the order of the fields.
using Tensors = std::vector<::torch::Tensor>;

/// A batch that was not stacked, or one that was.
struct LoadedBatch {
  std::vector<Tensors> examples;
  Tensors stacked;
};

/// An array of a batch in the memory of a queue.
struct LoaderArray {
  void* elements;
  ::torch::ScalarType type;
  std::vector<std::int64_t> extents;  // rows first; the most rows that a batch can have
};

/// An array of a batch as the program declares it.
struct LoaderField {
  ::torch::ScalarType type;
  std::size_t dimensions;
};

/// What a producer of a loader gets from the master.
struct LoaderPlan {
  std::uint64_t seed;
  std::int64_t batch_rows;
  LoaderPosition start;
  std::int64_t epoch_rows;  // -1: the size of the data set
  LastBatch last;
  std::int64_t most_rows;        // -1: those of the first batch
  std::int64_t found_rows = -1;  // the size that the master has seen. -1: the data set has none
};

// ---- batches ------------------------------------------------------------------------------------------------------

/// The number of rows of the first tensor. Throws Error (function) if it has no rows.
SYNCRUN_EXPORT std::int64_t rows_of(const LoadedBatch& batch);
/// Copies the tensors of one example to a row of each array. Throws Error (function) if they do not fit.
SYNCRUN_EXPORT void put_example(std::span<const LoaderArray> arrays, std::int64_t row, const Tensors& tensors);
/// Copies a batch. Returns the number of rows of each array. Throws Error (function) if they do not fit.
SYNCRUN_EXPORT std::vector<std::int64_t> put_batch(std::span<const LoaderArray> arrays, const LoadedBatch& batch);
/// The extents of the arrays of a batch, from a first batch. Throws Error (usage) if its tensors have other types or numbers
/// of dimensions than the fields, or more rows than the options say.
SYNCRUN_EXPORT std::vector<std::vector<std::int64_t>> extents_of(std::span<const LoaderField> fields,
                                                                 const LoadedBatch& first, const LoaderPlan& plan);

// ---- places -------------------------------------------------------------------------------------------------------

/// The text of a place for an error: of a batch, of an example by its index, or of a batch with its indices.
SYNCRUN_EXPORT std::string text_of_place(const LoaderPosition& place);
/// The same with the index of an example.
SYNCRUN_EXPORT std::string text_of_place(const LoaderPosition& place, std::size_t index);
/// The same with the indices of a batch.
SYNCRUN_EXPORT std::string text_of_place(const LoaderPosition& place, std::span<const std::size_t> indices);
/// Throws an exception as an Error that begins with `where`.
[[noreturn]] SYNCRUN_EXPORT void fail_at(const std::string& where, const std::exception& error);

// ---- random numbers -----------------------------------------------------------------------------------------------

/// What a seed is for: an example at a place of an epoch, or the transforms of a whole batch.
enum class SeedOf : std::uint8_t { example, batch };

/// Seeds LibTorch's generator for the CPU.
SYNCRUN_EXPORT void seed_cpu(std::uint64_t seed);
/// The same with a seed for a place of an epoch.
SYNCRUN_EXPORT void seed_place(std::uint64_t seed, SeedOf what, std::int64_t epoch, std::int64_t place);

/// Puts a state of LibTorch's generator for the CPU aside.
class SYNCRUN_EXPORT GeneratorState {
 public:
  /// Notes the present state.
  void keep();
  /// Continues from the noted state.
  void restore() const;

 private:
  ::torch::Tensor state_;
};

/// LibTorch computes with one thread in this process.
SYNCRUN_EXPORT void use_one_thread();

// ---- options ------------------------------------------------------------------------------------------------------

/// Throws Error (usage) if the options make no sense.
SYNCRUN_EXPORT LoaderPlan loader_plan(const LoaderOptions& options);
/// Throws Error (usage) if the data set has neither a size nor epoch_rows, or both. Otherwise returns the number.
SYNCRUN_EXPORT std::int64_t epoch_rows_of(std::optional<std::int64_t> size, const LoaderPlan& plan);
/// Throws Error (usage) if the plan has epoch_rows, for a data set that ends its epochs itself or by its own sampler.
SYNCRUN_EXPORT void check_no_epoch_rows(const LoaderPlan& plan);
/// Throws Error (usage) unless the start of the plan is a place of its epoch, which has so many batches.
SYNCRUN_EXPORT void check_start(const LoaderPlan& plan, std::int64_t batches);
/// Throws Error (function) if a sampler gives a batch of 0 indices.
SYNCRUN_EXPORT void check_indices(std::size_t count);
/// Throws Error (usage) unless one process reads a data set that does not give examples by their indices.
SYNCRUN_EXPORT void check_one_process(const LoaderOptions& options);
/// Throws Error (function) if an epoch has ended without a batch.
SYNCRUN_EXPORT void check_has_batches(const LoaderPosition& end);
/// Throws Error (function) unless the data set has the size that the master has seen.
SYNCRUN_EXPORT void check_size(std::int64_t rows, const LoaderPlan& plan);
/// Throws Error (usage): the data set has no example.
[[noreturn]] SYNCRUN_EXPORT void refuse_empty();

}  // namespace detail
}  // namespace syncrun::libtorch

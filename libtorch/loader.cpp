#include "syncrun/torch/loader_interface.hpp"

#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

[[noreturn]] void refuse_loader(const std::string& what) { throw Error(ErrorKind::usage, "loader: " + what); }
[[noreturn]] void fail_batch(const std::string& what) { throw Error(ErrorKind::function, what); }

/// The extents of a row of an array.
::torch::IntArrayRef extents_of_row(const LoaderArray& array) { return ::torch::IntArrayRef(array.extents).slice(1); }

std::string count_text(std::size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

/// Throws Error (function) unless there is a tensor for each array, of its type.
void check_tensors(std::span<const LoaderArray> arrays, const Tensors& tensors) {
  if (tensors.size() != arrays.size()) {
    fail_batch("expected " + count_text(arrays.size(), "tensor") + ", one for each field of the batch, got " +
               std::to_string(tensors.size()));
  }
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const bool is_there = tensors[i].defined();
    if (is_there && tensors[i].scalar_type() == arrays[i].type) continue;
    fail_batch("tensor " + std::to_string(i) + " is " +
               (is_there ? c10::toString(tensors[i].scalar_type()) : "undefined") + ", and was " +
               c10::toString(arrays[i].type) + " in the first batch");
  }
}

/// Copies a tensor to the rows of an array from `first` on. The shapes fit.
void copy_to_rows(const LoaderArray& array, std::int64_t first, const ::torch::Tensor& from) {
  std::int64_t row_elements = 1;
  for (const auto extent : extents_of_row(array)) row_elements *= extent;
  auto* const to = static_cast<std::byte*>(array.elements) +
                   first * row_elements * static_cast<std::int64_t>(c10::elementSize(array.type));
  if (from.numel() == 0) return;
  if (from.is_contiguous() && from.device().is_cpu() && from.layout() == ::torch::kStrided && !from.is_neg()) {
    std::memcpy(to, from.data_ptr(), from.nbytes());
  } else {
    ::torch::from_blob(to, from.sizes(), ::torch::TensorOptions().dtype(array.type)).copy_(from);
  }
}

void check_row(const LoaderArray& array, std::size_t number, ::torch::IntArrayRef row) {
  if (row == extents_of_row(array)) return;
  fail_batch("tensor " + std::to_string(number) + " of an example has the shape " + c10::str(row) +
             ", and that of the first example was " + c10::str(extents_of_row(array)) +
             ". All examples must have the same shape: pad, crop or resize them in a transform");
}

void check_capacity(const LoaderArray& array, std::int64_t rows) {
  if (rows <= array.extents[0]) return;
  fail_batch("the batch has at least " + std::to_string(rows) + " rows, and the memory of a batch " +
             std::to_string(array.extents[0]) +
             ", as batch_rows or the first batch of epoch 0. Set LoaderOptions::most_rows to the most rows of a batch");
}

/// SplitMix64, which makes irregular numbers from regular ones. Source: Steele, Lea and Flood, "Fast Splittable
/// Pseudorandom Number Generators", 2014.
std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

}  // namespace

// ---- random numbers -----------------------------------------------------------------------------------------------

// Data sets with threads of their own, such as ChunkDataset, may draw numbers meanwhile. loader() says so.
void seed_cpu(std::uint64_t seed) { at::Generator(at::detail::getDefaultCPUGenerator()).set_current_seed(seed); }

void seed_place(std::uint64_t seed, SeedOf what, std::int64_t epoch, std::int64_t place) {
  const auto part = mix(mix(seed) + static_cast<std::uint64_t>(what)) + static_cast<std::uint64_t>(epoch);
  seed_cpu(mix(mix(part) + static_cast<std::uint64_t>(place)));
}

void GeneratorState::keep() { state_ = at::detail::getDefaultCPUGenerator().get_state(); }

void GeneratorState::restore() const { at::Generator(at::detail::getDefaultCPUGenerator()).set_state(state_); }

void use_one_thread() { at::set_num_threads(1); }

// ---- places and errors --------------------------------------------------------------------------------------------

std::string text_of_place(const LoaderPosition& place) {
  return "batch " + std::to_string(place.batch) + " of epoch " + std::to_string(place.epoch);
}

std::string text_of_place(const LoaderPosition& place, std::size_t index) {
  return "index " + std::to_string(index) + " of the data set (" + text_of_place(place) + ")";
}

std::string text_of_place(const LoaderPosition& place, std::span<const std::size_t> indices) {
  constexpr std::size_t kNamed = 8;
  std::string text = text_of_place(place) + " (indices ";
  for (std::size_t i = 0; i < std::min(kNamed, indices.size()); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(indices[i]);
  return text + (indices.size() > kNamed ? ", ...)" : ")");
}

// `error` is passed, and not thrown again here: a program that was linked with a C++ library of its own has its own list of
// exceptions that are being handled, which this library does not see.
void fail_at(const std::string& where, const std::exception& error) {
  const auto* const own = dynamic_cast<const Error*>(&error);
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  throw Error(own != nullptr ? own->kind() : ErrorKind::function,
              where + ": " + (torch_error != nullptr ? torch_error->what_without_backtrace() : error.what()));
}

// ---- arrays of a batch --------------------------------------------------------------------------------------------

std::int64_t rows_of(const LoadedBatch& batch) {
  const auto rows = [&]() -> std::int64_t {
    if (!batch.examples.empty()) return static_cast<std::int64_t>(batch.examples.size());
    if (batch.stacked.empty()) return 0;
    const auto& first = batch.stacked.front();
    return first.defined() && first.dim() > 0 ? first.size(0) : 0;
  }();
  if (rows == 0) {
    fail_batch(
        "the batch has no rows. Expected tensors whose first dimension is that of the rows, "
        "with at least one row");
  }
  return rows;
}

void put_example(std::span<const LoaderArray> arrays, std::int64_t row, const Tensors& tensors) {
  check_tensors(arrays, tensors);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    check_row(arrays[i], i, tensors[i].sizes());
    check_capacity(arrays[i], row + 1);
    copy_to_rows(arrays[i], row, tensors[i]);
  }
}

std::vector<std::int64_t> put_batch(std::span<const LoaderArray> arrays, const LoadedBatch& batch) {
  const std::int64_t rows = rows_of(batch);
  if (!batch.examples.empty()) {
    for (std::int64_t row = 0; row < rows; ++row)
      put_example(arrays, row, batch.examples[static_cast<std::size_t>(row)]);
    return std::vector<std::int64_t>(arrays.size(), rows);
  }
  check_tensors(arrays, batch.stacked);
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const auto& tensor = batch.stacked[i];
    if (tensor.dim() == 0) fail_batch("tensor " + std::to_string(i) + " of the batch has no rows");
    check_row(arrays[i], i, tensor.sizes().slice(1));
    check_capacity(arrays[i], tensor.size(0));
    copy_to_rows(arrays[i], 0, tensor);
    found.push_back(tensor.size(0));
  }
  return found;
}

std::vector<std::vector<std::int64_t>> extents_of(std::span<const LoaderField> fields, const LoadedBatch& first,
                                                  const LoaderPlan& plan) {
  const std::int64_t rows = rows_of(first);
  const bool is_stacked = first.examples.empty();
  const Tensors& tensors = is_stacked ? first.stacked : first.examples.front();
  if (tensors.size() != fields.size()) {
    refuse_loader("the batch has " + count_text(fields.size(), "field") + ", and the data set gives " +
                  count_text(tensors.size(), "tensor"));
  }
  std::vector<std::vector<std::int64_t>> extents;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const auto& tensor = tensors[i];
    if (!tensor.defined()) refuse_loader("tensor " + std::to_string(i) + " of the data set is undefined");
    std::vector<std::int64_t> sizes = tensor.sizes().vec();
    if (!is_stacked) sizes.insert(sizes.begin(), rows);
    if (tensor.scalar_type() != fields[i].type || sizes.size() != fields[i].dimensions) {
      refuse_loader("field " + std::to_string(i) + " of the batch has elements of type " +
                    c10::toString(fields[i].type) + " and " + count_text(fields[i].dimensions, "dimension") +
                    ", rows included, and the data set gives " + c10::toString(tensor.scalar_type()) + " and " +
                    count_text(sizes.size(), "dimension") + ". Change the field, or convert the tensor in a transform");
    }
    if (plan.most_rows >= 0 && sizes[0] > plan.most_rows) {
      refuse_loader("the first batch has " + std::to_string(sizes[0]) + " rows, and most_rows is " +
                    std::to_string(plan.most_rows) + ". Set most_rows to the most rows of a batch, or leave it out");
    }
    sizes[0] = std::max({sizes[0], plan.batch_rows, plan.most_rows});
    extents.push_back(std::move(sizes));
  }
  return extents;
}

// ---- options ------------------------------------------------------------------------------------------------------

LoaderPlan loader_plan(const LoaderOptions& options) {
  if (options.batch_rows < 1) {
    refuse_loader("batch_rows must be at least 1, got " + std::to_string(options.batch_rows));
  }
  if (options.start.epoch < 0 || options.start.batch < 0) {
    refuse_loader("expected a start from batch 0 of epoch 0 on, got " + text_of_place(options.start));
  }
  if (options.epoch_rows && *options.epoch_rows < 1) {
    refuse_loader("epoch_rows must be at least 1, got " + std::to_string(*options.epoch_rows));
  }
  if (options.most_rows && *options.most_rows < options.batch_rows) {
    refuse_loader("most_rows must be at least batch_rows, " + std::to_string(options.batch_rows) + ", got " +
                  std::to_string(*options.most_rows));
  }
  if (options.queue.order != BatchOrder::round_robin) {
    refuse_loader(
        "the order of the queue must be BatchOrder::round_robin. With another one, the batches "
        "would depend on the speed of the producers");
  }
  return {.seed = options.seed,
          .batch_rows = options.batch_rows,
          .start = options.start,
          .epoch_rows = options.epoch_rows.value_or(-1),
          .last = options.last,
          .most_rows = options.most_rows.value_or(-1)};
}

std::int64_t epoch_rows_of(std::optional<std::int64_t> size, const LoaderPlan& plan) {
  if (size && plan.epoch_rows >= 0) {
    refuse_loader("the data set has " + std::to_string(*size) +
                  " examples. Leave out epoch_rows, which is for data sets without a size");
  }
  if (!size && plan.epoch_rows < 0) {
    refuse_loader("the size() of the data set is empty. Set epoch_rows to the number of examples of an epoch");
  }
  const std::int64_t rows = size.value_or(plan.epoch_rows);
  if (rows == 0) refuse_empty();
  return rows;
}

void check_no_epoch_rows(const LoaderPlan& plan) {
  if (plan.epoch_rows < 0) return;
  refuse_loader(
      "epoch_rows has no effect on a data set that has its own sampler, or that is stateful. Leave "
      "it out");
}

void check_indices(std::size_t count) {
  if (count == 0) fail_batch("it gave a batch without indices");
}

void check_start(const LoaderPlan& plan, std::int64_t batches) {
  if (plan.start.batch <= batches) return;
  refuse_loader("the start is " + text_of_place(plan.start) + ", and this epoch has " + std::to_string(batches) +
                " batches. Continue with the options and the data set with which the position was saved");
}

void check_has_batches(const LoaderPosition& end) {
  if (end.batch == 0)
    fail_batch("epoch " + std::to_string(end.epoch) +
               " has no batch. Expected a sampler or a stateful data set that begins anew in reset()");
}

void check_size(std::int64_t rows, const LoaderPlan& plan) {
  if (rows != plan.found_rows)
    fail_batch("the data set has " + std::to_string(rows) + " examples, and had " + std::to_string(plan.found_rows) +
               " in the master. Expected the same data in all processes and on all nodes");
}

void check_one_process(const LoaderOptions& options) {
  if (options.processes <= 1) return;
  refuse_loader("a stream or a stateful data set requires .processes = 1, got " + std::to_string(options.processes) +
                ". Each process would read the same examples");
}

void refuse_empty() { refuse_loader("expected a data set with at least one batch in an epoch, got none"); }

}  // namespace syncrun::libtorch::detail

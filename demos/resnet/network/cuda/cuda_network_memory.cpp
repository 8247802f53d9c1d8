// Places the arrays of a residual network on a CUDA device, and makes the plans of its convolutions.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "demos/common/cuda_check.hpp"
#include "demos/resnet/network/cuda/cuda_network.hpp"
#include "demos/resnet/network/memory_need.hpp"

namespace resnet {
namespace {

/// Places arrays one after the other. With a null base, it only counts the bytes.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  void* take(std::size_t bytes) {
    constexpr std::size_t kAlignment = 256;
    void* const place = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return place;
  }
  template <typename T>
  T* take(std::size_t elements) {
    return static_cast<T*>(take(elements * sizeof(T)));
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

/// Divides the filters that are converted without folding into chunks. The weights of the dense layer come last.
std::vector<cuda::Chunk> chunks_of(const Architecture& architecture, std::size_t& filter_chunks) {
  std::vector<cuda::Chunk> chunks;
  const auto add = [&](std::size_t first, std::size_t count) {
    for (std::size_t done = 0; done < count; done += cuda::kMostInChunk) {
      chunks.push_back({first + done, std::min(cuda::kMostInChunk, count - done)});
    }
  };
  for (std::size_t unit = 1; unit < architecture.units.size(); ++unit) {
    add(architecture.units[unit].weights_offset, architecture.units[unit].weights());
  }
  filter_chunks = chunks.size();
  add(architecture.fc_weights_offset, architecture.spec.classes * architecture.features);
  return chunks;
}

template <typename T>
void copy_to_device(T* place, const std::vector<T>& values) {
  demos::check_cuda(cudaMemcpy(place, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
}

ConvShape shape_of(const Architecture& architecture, std::size_t unit, std::size_t rows) {
  const ConvUnit& of = architecture.units[unit];
  if (unit == 0) {  // a convolution of folded images
    return {.rows = rows,
            .channels_in = cuda::kFoldedChannels,
            .channels_out = of.channels_out,
            .size_in = cuda::folded_size(of.size_in),
            .kernel = cuda::kFoldedKernel,
            .stride = 1,
            .padding = 0};
  }
  return {.rows = rows,
          .channels_in = of.channels_in,
          .channels_out = of.channels_out,
          .size_in = of.size_in,
          .kernel = of.kernel,
          .stride = of.stride,
          .padding = of.padding()};
}

std::size_t input_elements(const Architecture& architecture, std::size_t unit) {
  const ConvShape shape = shape_of(architecture, unit, 1);
  return shape.size_in * shape.size_in * shape.channels_in;
}

std::size_t filter_elements(const Architecture& architecture, std::size_t unit) {
  const ConvShape shape = shape_of(architecture, unit, 1);
  return shape.channels_out * shape.kernel * shape.kernel * shape.channels_in;
}

/// A workspace for cuDNN while plans are measured. If memory is short, it is smaller than kMostWorkspaceBytes.
demos::DeviceBuffer tuning_workspace() {
  constexpr std::size_t kLeast = std::size_t{16} << 20;
  for (std::size_t bytes = kMostWorkspaceBytes;; bytes /= 2) {
    try {
      return demos::DeviceBuffer(bytes);
    } catch (const std::runtime_error& failure) {
      if (bytes > kLeast) continue;
      throw std::runtime_error("cuDNN requires " + gibibytes(kLeast) +
                               " of workspace, but the activations leave less (" + failure.what() +
                               "): use a smaller batch or more slices");
    }
  }
}

}  // namespace

CudaNetwork::CudaNetwork(const Architecture& architecture, CudaMath math)
    : CudaNetwork(architecture, math, std::make_shared<ConvPlans>()) {}

CudaNetwork::CudaNetwork(const Architecture& architecture, CudaMath math, std::shared_ptr<ConvPlans> plans)
    : architecture_(architecture),
      math_(math),
      product_device_(math == CudaMath::kBfloat16 ? cuda::product_device() : std::nullopt),
      units_(architecture.units.size()),
      block_outputs_(architecture.blocks.size()),
      passes_(architecture.blocks.size()),
      gradients_(architecture.blocks.size()),
      choices_(std::move(plans)) {
  const ConvUnit& stem = architecture_.stem();
  if (stem.kernel != cuda::kStemKernel || stem.stride != 2 || stem.channels_in != 3)
    throw std::invalid_argument(
        "a network on a CUDA device begins with a 7x7 convolution of three channels by steps of 2");
  const std::vector<cuda::Chunk> chunks = chunks_of(architecture_, filter_chunks_);
  chunk_count_ = chunks.size();
  std::size_t widest = 0;
  std::size_t largest_filter = 0;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    widest = std::max(widest, architecture_.units[unit].channels_out);
    largest_filter = std::max(largest_filter, filter_elements(architecture_, unit));
  }
  const std::size_t bytes = element_bytes(math_);
  const bool is_narrow = math_ == CudaMath::kBfloat16;
  cuda::Chunk* device_chunks = nullptr;
  const auto place = [&](std::byte* base) {
    Carver carver(base);
    narrow_params_ = carver.take(is_narrow ? architecture_.parameter_count * bytes : 0);
    narrow_gradient_ = carver.take(is_narrow ? architecture_.parameter_count * bytes : 0);
    folded_filter_ = carver.take(filter_elements(architecture_, 0) * bytes);
    filter_scratch_ = carver.take(largest_filter * bytes);
    stem_scratch_ = carver.take<float>(has_stem_product() ? cuda::stem_scratch_elements(*product_device_) : 0);
    sum_place_.partials = carver.take<float>(cuda::kMostSums * cuda::kMostPartials * widest);
    sum_place_.arrived = carver.take<unsigned>(cuda::kMostColumnGroups);
    sum_place_.sums = carver.take<float>(2 * (2 * widest + 1));
    deviations_ = carver.take<float>(widest);
    device_chunks = carver.take<cuda::Chunk>(chunks.size());
    mean_loss_ = carver.take<double>(1);
    correct_ = carver.take<std::int64_t>(1);
    for (std::size_t i = 0; i < units_.size(); ++i)
      units_[i].norm = carver.take<float>(7 * architecture_.units[i].channels_out);
    return carver.used();
  };
  fixed_ = demos::DeviceBuffer(place(nullptr));
  place(static_cast<std::byte*>(fixed_.data()));
  copy_to_device(device_chunks, chunks);
  demos::check_cuda(cudaMemset(sum_place_.arrived, 0, cuda::kMostColumnGroups * sizeof(unsigned)), "cudaMemset");
  demos::check_cuda(cudaDeviceSynchronize(),
                    "cudaMemcpy");  // the next user may be a stream that does not wait for the default stream
  chunks_ = device_chunks;
}

std::size_t CudaNetwork::largest_elements() const {
  std::size_t largest = 0;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    largest = std::max({largest, input_elements(architecture_, unit), architecture_.units[unit].elements_out()});
  }
  return largest;
}

/// The elements per row of the largest array that the gradient passes through in a block. For the first block, this
/// includes the arrays of the first convolution, unless stem_filter_gradient computes the gradient of its filter.
std::size_t CudaNetwork::gradient_elements(std::size_t block) const {
  const Block& of = architecture_.blocks[block];
  const std::size_t end = of.shortcut ? *of.shortcut + 1 : of.first_unit + of.unit_count;
  std::size_t largest = 0;
  if (block == 0 && !has_stem_product())
    largest = std::max(architecture_.stem().elements_out(), input_elements(architecture_, 0));
  for (std::size_t unit = of.first_unit; unit < end; ++unit) {
    largest = std::max({largest, architecture_.units[unit].elements_in(), architecture_.units[unit].elements_out()});
  }
  return largest;
}

/// Places the arrays for training. Every activation has a place of its own, because the backward pass reads it.
std::size_t CudaNetwork::place_training(std::size_t rows, std::byte* base) {
  Carver carver(base);
  const std::size_t bytes = element_bytes(math_) * rows;
  units_[0].sums = carver.take(architecture_.stem().elements_out() * bytes);
  std::vector<std::size_t> begins;  // of the activations of each block; at last, the end of all activations
  for (std::size_t i = 0; i < architecture_.blocks.size(); ++i) {
    const Block& block = architecture_.blocks[i];
    const std::size_t last = block.first_unit + block.unit_count - 1;
    begins.push_back(carver.used());
    for (std::size_t unit = block.first_unit; unit <= last; ++unit) {
      const std::size_t elements = architecture_.units[unit].elements_out();
      units_[unit].sums = carver.take(elements * bytes);
      (unit < last ? units_[unit].output : block_outputs_[i]) = carver.take(elements * bytes);
    }
    passes_[i] = carver.take<std::uint8_t>(architecture_.units[last].elements_out() / 8 * rows);
    if (block.shortcut)
      units_[*block.shortcut].sums = carver.take(architecture_.units[*block.shortcut].elements_out() * bytes);
  }
  begins.push_back(carver.used());
  return carver.used() + place_gradients(rows, base, begins);
}

/// Places the arrays for gradients. Neighbouring blocks share their arrays if these are large enough: such blocks form
/// a group. When the backward pass reaches a group, it no longer needs the activations of the later blocks. So the
/// arrays of the group lie over the activations that directly follow those of the group. They end where the arrays of
/// the later group begin. Arrays that do not fit there lie after all activations. The gradient that arrives from the
/// later group lies still further back, so no two arrays in use overlap. Returns the bytes used after the activations.
std::size_t CudaNetwork::place_gradients(std::size_t rows, std::byte* base, const std::vector<std::size_t>& begins) {
  Carver behind(base == nullptr ? nullptr : base + begins.back());
  const std::size_t bytes = element_bytes(math_) * rows;
  std::size_t next_end = begins.back();  // end of the activations that may be overwritten
  std::size_t elements = 0;
  for (std::size_t block = gradients_.size(); block-- > 0;) {
    const std::size_t wanted = gradient_elements(block);
    if (wanted <= elements) {
      gradients_[block] = gradients_[block + 1];
      continue;
    }
    elements = wanted;
    const std::size_t first_free = begins[block + 1];
    Carver over(base == nullptr ? nullptr : base + first_free);
    for (void*& array : gradients_[block]) {
      const bool fits = over.used() + elements * bytes <= next_end - first_free;
      array = (fits ? over : behind).take(elements * bytes);
    }
    next_end = first_free;
  }
  tuning_ = {gradients_.front()[0], gradients_.front()[1]};
  return behind.used();
}

/// Places the arrays for inference. Four arrays are used in turn: the input of a block, two for its units, and one for
/// its shortcut. Normalisation works in place.
std::size_t CudaNetwork::place_inference(std::size_t rows, std::byte* base) {
  Carver carver(base);
  const std::size_t bytes = largest_elements() * element_bytes(math_) * rows;
  std::array<void*, 4> arrays{};
  for (void*& array : arrays) array = carver.take(bytes);
  tuning_ = {arrays[0], arrays[1]};
  std::fill(passes_.begin(), passes_.end(), nullptr);
  units_[0].sums = arrays[0];
  std::size_t input = 3;  // the array with the output of the previous block; the first block's input has its own place
  for (std::size_t i = 0; i < architecture_.blocks.size(); ++i) {
    const Block& block = architecture_.blocks[i];
    const std::array<void*, 3> others{arrays[(input + 1) % 4], arrays[(input + 2) % 4], arrays[(input + 3) % 4]};
    for (std::size_t k = 0; k < block.unit_count; ++k) {
      Unit& unit = units_[block.first_unit + k];
      unit.sums = others[k % 2];
      unit.output = unit.sums;
      block_outputs_[i] = unit.sums;
    }
    if (block.shortcut) units_[*block.shortcut].sums = others[2];
    input = static_cast<std::size_t>(std::find(arrays.begin(), arrays.end(), block_outputs_[i]) - arrays.begin());
  }
  return carver.used();
}

void CudaNetwork::lay_out(std::size_t rows, Phase phase) {
  const std::size_t bytes = element_bytes(math_);
  const auto place = [&](std::byte* base) {
    const std::size_t activations =
        phase == Phase::kTraining ? place_training(rows, base) : place_inference(rows, base);
    Carver carver(base == nullptr ? nullptr : base + activations);
    const ConvUnit& stem = architecture_.stem();
    const std::size_t pooled = architecture_.pooled_size() * architecture_.pooled_size() * stem.channels_out * rows;
    image_ = carver.take(input_elements(architecture_, 0) * rows * bytes);
    pooled_ = carver.take(pooled * bytes);
    which_ = carver.take<std::uint8_t>(pooled);
    features_ = carver.take(rows * architecture_.features * bytes);
    dfeatures_ = carver.take(rows * architecture_.features * bytes);
    logits_ = carver.take<float>(rows * architecture_.spec.classes);
    dlogits_ = carver.take(rows * architecture_.spec.classes * bytes);
    loss_place_.row_losses = carver.take<double>(rows);
    loss_place_.row_correct = carver.take<std::int32_t>(rows);
    return activations + carver.used();
  };
  const std::size_t wanted = place(nullptr);
  try {
    place(static_cast<std::byte*>(memory_.reserve(std::max<std::size_t>(wanted, 1))));
  } catch (const std::runtime_error& failure) {
    throw too_many_rows(rows, wanted, failure.what());
  }
}

const ConvPlan& CudaNetwork::plan_of(const CudaHandles& handles, const PlanKey& key,
                                     std::optional<demos::DeviceBuffer>& workspace) {
  const auto found = plans_.find(key);
  if (found != plans_.end()) return found->second;
  if (const PlanChoice* const choice = choices_->find(key); choice != nullptr)
    return plans_.emplace(key, stored_plan(handles, key, *choice)).first->second;
  if (!workspace) workspace = tuning_workspace();
  // Nothing has been computed yet, so measuring may overwrite any array.
  const TuningMemory memory{{tuning_[0], filter_scratch_, tuning_[1], workspace->data()}, workspace->bytes()};
  ConvPlan plan(handles.cudnn, handles.stream, key, memory);
  plan_workspace_ = plan_memory_.reserve(std::max<std::size_t>(plan.workspace_bytes(), 256));
  choices_->set(key, plan.choice());
  return plans_.emplace(key, std::move(plan)).first->second;
}

/// Makes the plan that a list has chosen. Measures it in the workspace that it will use.
ConvPlan CudaNetwork::stored_plan(const CudaHandles& handles, const PlanKey& key, const PlanChoice& choice) {
  plan_workspace_ = plan_memory_.reserve(std::max<std::size_t>(choice.workspace_bytes, 256));
  const TuningMemory memory{{tuning_[0], filter_scratch_, tuning_[1], plan_workspace_}, choice.workspace_bytes};
  return {handles.cudnn, handles.stream, key, memory, choice};
}

void CudaNetwork::make_plans(const CudaHandles& handles, std::size_t rows, Phase phase) {
  std::optional<demos::DeviceBuffer> workspace;
  const auto make = [&](const ConvShape& shape, ConvPass pass) {
    return &plan_of(handles, {pass, math_, shape}, workspace);
  };
  std::vector<bool> leads_to_end(units_.size());
  for (std::size_t block = 0; block < architecture_.blocks.size(); ++block)
    leads_to_end[architecture_.blocks[block].first_unit] = adds_at_end(block);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const ConvShape shape = shape_of(architecture_, i, rows);
    units_[i].forward = takes_statistics(i, phase) ? nullptr : make(shape, ConvPass::kForward);
    if (phase == Phase::kInference) continue;
    if (i > 0 || !has_stem_product()) units_[i].backward_filter = make(shape, ConvPass::kBackwardFilter);
    if (i > 0 && !leads_to_end[i]) units_[i].backward_input = make(shape, ConvPass::kBackwardInput);
  }
}

std::array<double, kConvPasses> CudaNetwork::convolution_microseconds() const {
  std::array<double, kConvPasses> sums{};
  for (const Unit& unit : units_) {
    const std::array<const ConvPlan*, kConvPasses> plans{unit.forward, unit.backward_input, unit.backward_filter};
    for (std::size_t i = 0; i < kConvPasses; ++i) sums[i] += plans[i] == nullptr ? 0.0 : plans[i]->microseconds();
  }
  return sums;
}

void CudaNetwork::reserve(const CudaHandles& handles, std::size_t rows, Phase phase) {
  if (is_laid_out_ && rows == rows_ && phase == phase_) return;
  is_laid_out_ = false;
  lay_out(rows, phase);
  if (rows > 0) make_plans(handles, rows, phase);
  rows_ = rows;
  phase_ = phase;
  is_laid_out_ = true;
}

}  // namespace resnet

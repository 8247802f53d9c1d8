#include "worker/devices/cuda/update_kernels.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <type_traits>

#include "common/arrays/update_arithmetic.hpp"
#include "syncrun/detail/step_plan.hpp"
#include "worker/devices/cuda/check.hpp"

namespace syncrun::detail::worker::devices::cuda::kernels {

namespace {

constexpr int kThreads = 256;
constexpr std::size_t kPackBytes = 16;  // the widest load
constexpr std::size_t kLoose = 4;       // elements that a thread handles at a time if they are not packed

template <class T>
struct alignas(kPackBytes) Pack {
  static constexpr std::size_t kElements = kPackBytes / sizeof(T);
  T v[kElements];
};

template <class T>
struct Vectors {
  T* params;
  const T* gradient;
  T* state[kMostStateVectors];
  std::size_t elements;
};

/// What happens to an element of the gradient before the update.
struct AsItIs {
  template <class T>
  __device__ T operator()(T value) const {
    return value;
  }
};
struct Scaled {
  double factor;
  template <class T>
  __device__ T operator()(T value) const {
    return factor == 1 ? value : static_cast<T>(static_cast<double>(value) * factor);
  }
};

template <class T, int kStates, class Step, class Scale>
__device__ void update_pack(const Step& step, const Vectors<T>& x, std::size_t at, const Scale& scale) {
  const Pack<T> g = reinterpret_cast<const Pack<T>*>(x.gradient)[at];
  Pack<T> p = reinterpret_cast<const Pack<T>*>(x.params)[at];
  Pack<T> s[kMostStateVectors];
#pragma unroll
  for (int j = 0; j < kStates; ++j) s[j] = reinterpret_cast<const Pack<T>*>(x.state[j])[at];
#pragma unroll
  for (std::size_t k = 0; k < Pack<T>::kElements; ++k) {
    T own[kMostStateVectors];
#pragma unroll
    for (int j = 0; j < kStates; ++j) own[j] = s[j].v[k];
    step(p.v[k], scale(g.v[k]), own);
#pragma unroll
    for (int j = 0; j < kStates; ++j) s[j].v[k] = own[j];
  }
  reinterpret_cast<Pack<T>*>(x.params)[at] = p;
#pragma unroll
  for (int j = 0; j < kStates; ++j) reinterpret_cast<Pack<T>*>(x.state[j])[at] = s[j];
}

template <class T, int kStates, class Step, class Scale>
__device__ void update_one(const Step& step, const Vectors<T>& x, std::size_t i, const Scale& scale) {
  T p = x.params[i];
  T own[kMostStateVectors];
#pragma unroll
  for (int j = 0; j < kStates; ++j) own[j] = x.state[j][i];
  step(p, scale(x.gradient[i]), own);
  x.params[i] = p;
#pragma unroll
  for (int j = 0; j < kStates; ++j) x.state[j][i] = own[j];
}

/// Neighbouring threads handle neighbouring elements. Each thread has several elements in flight.
template <class T, int kStates, class Step>
__device__ void update_loosely(const Step& step, const Vectors<T>& x, std::size_t thread, std::size_t threads) {
  for (std::size_t first = thread; first < x.elements; first += threads * kLoose) {
    T p[kLoose], g[kLoose], own[kLoose][kMostStateVectors];
#pragma unroll
    for (std::size_t k = 0; k < kLoose; ++k) {
      const std::size_t i = first + k * threads;
      if (i < x.elements) {
        p[k] = x.params[i];
        g[k] = x.gradient[i];
#pragma unroll
        for (int j = 0; j < kStates; ++j) own[k][j] = x.state[j][i];
      }
    }
#pragma unroll
    for (std::size_t k = 0; k < kLoose; ++k) {
      const std::size_t i = first + k * threads;
      if (i < x.elements) {
        step(p[k], g[k], own[k]);
        x.params[i] = p[k];
#pragma unroll
        for (int j = 0; j < kStates; ++j) x.state[j][i] = own[k][j];
      }
    }
  }
}

/// The rule is `by_value` if `in_memory` is null, otherwise `*in_memory`. One thread of each block computes the values
/// that are common to all parameters, in double. There are only as many blocks as can run at the same time, so this is
/// done once per resident block.
template <class Rule, class T, bool kPacked>
__global__ void __launch_bounds__(kThreads)
    update_kernel(const __grid_constant__ Rule by_value, const Rule* in_memory, const __grid_constant__ Vectors<T> x) {
  using Step = arrays::UpdateStep<Rule, T>;
  constexpr int kStates = Rule::kState.size();
  __shared__ alignas(Step) unsigned char common[sizeof(Step)];
  if (threadIdx.x == 0) new (common) Step(in_memory == nullptr ? by_value : *in_memory);
  __syncthreads();
  const Step step = *reinterpret_cast<const Step*>(common);

  const std::size_t threads = std::size_t{gridDim.x} * kThreads;
  const std::size_t thread = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  if constexpr (kPacked) {
    const std::size_t packs = x.elements / Pack<T>::kElements;
    for (std::size_t at = thread; at < packs; at += threads) update_pack<T, kStates>(step, x, at, AsItIs{});
    const std::size_t i = packs * Pack<T>::kElements + thread;
    if (i < x.elements) update_one<T, kStates>(step, x, i, AsItIs{});
  } else {
    update_loosely<T, kStates>(step, x, thread, threads);
  }
}

template <class T>
__host__ __device__ bool is_packed(const Vectors<T>& x, std::size_t states) noexcept {
  auto all = reinterpret_cast<std::uintptr_t>(x.params) | reinterpret_cast<std::uintptr_t>(x.gradient);
  for (std::size_t j = 0; j < states; ++j) all |= reinterpret_cast<std::uintptr_t>(x.state[j]);
  return all % kPackBytes == 0;
}

constexpr std::size_t kTile = 4096;  // elements of a part that a block handles at a time

/// Updates neighbouring elements with the threads of one block.
template <class T, int kStates, class Step>
__device__ void update_tile(const Step& step, const Vectors<T>& x, const Scaled& scale) {
  std::size_t done = 0;
  if (is_packed(x, kStates)) {
    const std::size_t packs = x.elements / Pack<T>::kElements;
    for (std::size_t at = threadIdx.x; at < packs; at += kThreads) update_pack<T, kStates>(step, x, at, scale);
    done = packs * Pack<T>::kElements;
  }
  for (std::size_t i = done + threadIdx.x; i < x.elements; i += kThreads) update_one<T, kStates>(step, x, i, scale);
}

/// An update by a plan: parts with rates of their own, and a gradient that is divided and clipped. The blocks take turns
/// at the tiles of all parts. Thread 0 of a block computes the common values again for each part of which the block has tiles.
template <class Rule, class T>
__global__ void __launch_bounds__(kThreads)
    planned_update_kernel(const Rule* rule, const __grid_constant__ Vectors<T> x, const double* plan,
                          std::int64_t numbers, bool is_clipping, std::int64_t first) {
  using Step = arrays::UpdateStep<Rule, T>;
  constexpr int kStates = Rule::kState.size();
  __shared__ alignas(Step) unsigned char common[sizeof(Step)];
  const double divisor = plan[StepPlan::kDivisor];
  if (!(divisor > 0) || isinf(divisor)) return;  // the parameters stay as they are
  Scaled scale{1 / divisor};
  if (is_clipping) {
    const double norm = plan[StepPlan::kNorm];
    if (!isfinite(norm)) return;
    scale.factor *= clip_factor(plan[StepPlan::kClipNorm], norm);
  }
  const auto blocks = static_cast<std::int64_t>(gridDim.x);
  const std::int64_t last = first + static_cast<std::int64_t>(x.elements);
  std::int64_t tiles_before = 0;
  for (std::int64_t i = StepPlan::kHead; i + static_cast<std::int64_t>(StepPlan::kPart) <= numbers;
       i += StepPlan::kPart) {
    const auto part_begin = static_cast<std::int64_t>(plan[i]);
    const auto part_end = static_cast<std::int64_t>(plan[i + 1]);
    const std::int64_t begin = part_begin < first ? first : part_begin;
    const std::int64_t end = part_end < last ? part_end : last;
    const double rate = plan[i + 2];
    if (begin >= end || rate == 0) continue;
    const std::int64_t tiles = (end - begin + kTile - 1) / kTile;
    std::int64_t tile = (blockIdx.x + blocks - tiles_before % blocks) % blocks;
    tiles_before += tiles;
    if (tile >= tiles) continue;
    __syncthreads();  // all threads have read the step of the part before
    if (threadIdx.x == 0) {
      const PlanPart part{rate, plan[i + 3], plan[i + 4], plan[i + 5], plan[i + 6]};
      new (common) Step(rule_of_part(*rule, part));
    }
    __syncthreads();
    const Step step = *reinterpret_cast<const Step*>(common);
    for (; tile < tiles; tile += blocks) {
      const std::int64_t from = begin - first + tile * static_cast<std::int64_t>(kTile);
      const std::int64_t left = end - first - from;
      Vectors<T> part{x.params + from, x.gradient + from, {}, left < std::int64_t{kTile} ? std::size_t(left) : kTile};
#pragma unroll
      for (int j = 0; j < kStates; ++j) part.state[j] = x.state[j] + from;
      update_tile<T, kStates>(step, part, scale);
    }
  }
}

/// The number of blocks that can be resident at the same time, or fewer if there is less work.
template <class Kernel>
unsigned blocks_for(Kernel kernel, std::size_t elements, std::size_t per_thread) {
  int device = 0;
  int multiprocessors = 0;
  int resident = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreads, 0),
             "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  const std::size_t wanted = (elements + kThreads * per_thread - 1) / (kThreads * per_thread);
  return static_cast<unsigned>(std::min(wanted, static_cast<std::size_t>(multiprocessors * std::max(resident, 1))));
}

template <class Rule, class T>
void launch_planned(const UpdateWork& work, const Vectors<T>& x, cudaStream_t stream) {
  const auto kernel = planned_update_kernel<Rule, T>;
  const unsigned blocks = blocks_for(kernel, work.elements, kTile / kThreads);
  // A StepPlan that only counts its numbers, which are in device memory.
  const StepPlan plan({const_cast<double*>(work.plan.data()), work.plan.size()});
  kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const Rule*>(work.rule), x, work.plan.data(),
                                          static_cast<std::int64_t>(work.plan.size()), plan.is_clipping(), work.first);
  check_cuda(cudaGetLastError(), "an update");
}

template <class Rule, class T>
void launch(const UpdateWork& work, cudaStream_t stream) {
  const Vectors<T> x{static_cast<T*>(work.params),
                     static_cast<const T*>(work.gradient),
                     {static_cast<T*>(work.state[0]), static_cast<T*>(work.state[1]), static_cast<T*>(work.state[2])},
                     work.elements};
  if (!work.plan.empty()) return launch_planned<Rule, T>(work, x, stream);
  const bool packed = is_packed(x, Rule::kState.size());
  const auto kernel = packed ? update_kernel<Rule, T, true> : update_kernel<Rule, T, false>;
  const auto* const rule = static_cast<const Rule*>(work.rule);
  const bool is_here = work.place == UpdateWork::RulePlace::host;
  const unsigned blocks = blocks_for(kernel, work.elements, packed ? Pack<T>::kElements : kLoose);
  kernel<<<blocks, kThreads, 0, stream>>>(is_here ? *rule : Rule{}, is_here ? nullptr : rule, x);
  check_cuda(cudaGetLastError(), "an update");
}

template <class Rule>
void launch_typed(const UpdateWork& work, cudaStream_t stream) {
  if (work.dtype == DType::float64) launch<Rule, double>(work, stream);
  else launch<Rule, float>(work, stream);
}

template <class Rule>
void load() {
  const auto of = [](auto* kernel) {
    cudaFuncAttributes attributes{};
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "loading the kernels of an update");
  };
  of(&update_kernel<Rule, float, true>);
  of(&update_kernel<Rule, float, false>);
  of(&update_kernel<Rule, double, true>);
  of(&update_kernel<Rule, double, false>);
  of(&planned_update_kernel<Rule, float>);
  of(&planned_update_kernel<Rule, double>);
}

}  // namespace

void load_update_kernels() {
  []<class... Rules>(RuleList<Rules...>) { (load<Rules>(), ...); }(AllRules());
}

void apply_update(const UpdateWork& work, cudaStream_t stream) {
  if (work.elements == 0) return;
  arrays::with_rule_type(work.kind, [&]<class Rule>(std::type_identity<Rule>) { launch_typed<Rule>(work, stream); });
}

}  // namespace syncrun::detail::worker::devices::cuda::kernels

#pragma once

// Matrix products of bfloat16 in blocks that stay on the device until the end. Each block goes through tiles of
// positions, which are copied to shared memory ahead of time. A warpgroup computes 64 channels of the result, which are
// the rows of its product. So a thread has positions of two channels, and needs only two sums for a sum over positions.
// FilterPart and kProductChannels are for blocks with 256 channels, whose filters stay in registers.

#include <cuda_bf16.h>

#include <cstddef>
#include <utility>

#include "demos/resnet/network/cuda/cuda_sums.cuh"
#include "demos/resnet/network/hopper/cuda_hopper.cuh"

namespace resnet::cuda {

inline constexpr unsigned kGroupChannels = 64;
inline constexpr unsigned kProductGroups = 4;
inline constexpr unsigned kProductThreads = kProductGroups * kGroupThreads;    // in a block; one on a multiprocessor
inline constexpr unsigned kProductChannels = kProductGroups * kGroupChannels;  // in a block

/// The largest dynamic shared memory of a block: what compute capability 9.0 has, minus 1,024 bytes that are not
/// dynamic.
inline constexpr unsigned kMostProductMemory = 226 * 1024;

/// Lets a kernel use `bytes` of dynamic shared memory.
template <typename... P>
void make_room(void (*kernel)(P...), unsigned bytes) {
  const auto set = [&](cudaFuncAttribute what, int value) {
    demos::check_cuda(cudaFuncSetAttribute(kernel, what, value), "cudaFuncSetAttribute");
  };
  set(cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

/// kRows positions of 64 channels in shared memory, at a multiple of 1,024. The swizzle of the tensor map places the
/// groups of 16 bytes of a row. It puts the groups of one column in eight neighbouring rows into different banks.
template <unsigned kRows>
struct Panel {
  static constexpr unsigned kWidth = 64;
  static constexpr unsigned kRowBytes = kWidth * sizeof(__nv_bfloat16);
  static constexpr unsigned kBytes = kRows * kRowBytes;
  static_assert(kRowBytes == 128 && kRows % 16 == 0);
};

/// The part that a thread has of its group's product: channels `channel` and `channel` + 8 of 64, and positions
/// `position` and `position` + 1 of each eight positions.
struct Lane {
  unsigned group = __shfl_sync(~0U, threadIdx.x / kGroupThreads, 0);  // tells the compiler that a warp has one group
  unsigned warp = threadIdx.x / kWarp % (kGroupThreads / kWarp);      // in the group
  unsigned number = threadIdx.x % kWarp;
  unsigned channel = warp * 16 + number / 4;
  unsigned position = number % 4 * 2;

  /// The first channel of the group, in kernels whose groups have different channels.
  __device__ unsigned first_channel() const { return blockIdx.y * kProductChannels + group * kGroupChannels; }
  __device__ bool is_first_of_group() const { return threadIdx.x % kGroupThreads == 0; }
  /// The offset in the group's panel at which this lane loads or stores 16 positions of the warp's channels. The next
  /// 16 positions are 16 rows further on. A pair of matrices is eight positions of the warp's first and last eight
  /// channels.
  __device__ unsigned place() const {
    const unsigned row = number % 8 + number / 16 * 8;
    const unsigned vector = warp * 2 + number / 8 % 2;
    return row * 128 + (vector ^ number % 8) * 16;
  }
};

__device__ inline float2 values_of(unsigned pair) {
  return {__uint_as_float(pair << 16U), __uint_as_float(pair & 0xffff0000U)};
}
__device__ inline unsigned pair_of(float2 values) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(values.x, values.y);
  return *reinterpret_cast<const unsigned*>(&pair);
}

__device__ inline void add(float2& sum, float2 x) {
  sum.x += x.x;
  sum.y += x.y;
}
__device__ inline void add_product(float2& sum, float2 x, float2 y) {
  sum.x = fmaf(x.x, y.x, sum.x);
  sum.y = fmaf(x.y, y.y, sum.y);
}
__device__ inline float2 difference(float2 x, float y) { return {x.x - y, x.y - y}; }

/// The order of a filter in memory: [channels, depth] or [depth, channels].
enum class FilterOrder { kByChannel, kByDepth };

/// The part of the filters that a thread keeps in registers.
template <unsigned kDepth>
struct FilterPart {
  static constexpr unsigned kSteps = kDepth / 16;
  unsigned left[kSteps][4];

  template <FilterOrder kOrder>
  static __device__ FilterPart load(const Lane& lane, const __nv_bfloat16* filter, std::size_t channels) {
    FilterPart own;
#pragma unroll
    for (unsigned step = 0; step < kSteps; ++step) {
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const std::size_t channel = lane.first_channel() + lane.channel + i % 2 * 8;
        const std::size_t depth = step * 16 + i / 2 * 8 + lane.number % 4 * 2;
        if constexpr (kOrder == FilterOrder::kByChannel) {
          own.left[step][i] = *reinterpret_cast<const unsigned*>(filter + channel * kDepth + depth);
        } else {
          const auto* const bits = reinterpret_cast<const unsigned short*>(filter) + depth * channels + channel;
          own.left[step][i] = bits[0] | unsigned{bits[channels]} << 16U;
        }
      }
    }
    return own;
  }
};

/// The part of the product of a tile that a thread has.
template <unsigned kRows>
struct ProductPart {
  float v[kRows / 8][4];

  /// Begins to multiply panels in shared memory. All threads of the group call it. The panels must not be written
  /// before end().
  template <unsigned kDepth>
  __device__ void begin(unsigned input, const FilterPart<kDepth>& filter) {
    constexpr unsigned kStepsOfPanel = Panel<kRows>::kWidth / 16;
    const std::uint64_t rows = rows_at(input);
    products_begin();
    multiply_add<false>(v, filter.left[0], rows);
#pragma unroll
    for (unsigned step = 1; step < kDepth / 16; ++step) {
      const unsigned place = step / kStepsOfPanel * Panel<kRows>::kBytes + step % kStepsOfPanel * 32;
      multiply_add<true>(v, filter.left[step], moved(rows, place));
    }
  }
  __device__ void end() {
    products_end();
    wait_for_products();
#pragma unroll
    for (auto& eight : v) {
#pragma unroll
      for (float& value : eight) asm volatile("" : "+f"(value));  // the compiler must not use the values earlier
    }
  }
  /// The thread's two neighbouring positions of matrix 4 t + i, in the order of Lane::place.
  __device__ float2 pair(unsigned t, unsigned i) const {
    const auto& eight = v[2 * t + i / 2];
    return {eight[i % 2 * 2], eight[i % 2 * 2 + 1]};
  }
};

/// The tiles of positions of a block, from the last to the first (see Direction). Neighbouring blocks take neighbouring
/// tiles. Blocks of other channels take the same tiles at about the same time, so that they find them in the cache.
/// With kRows = 1, the tiles may be of any kind, and their numbers take the place of first positions. kStages tiles are
/// in shared memory: some are in use, and others are being copied. One thread begins the copies. For each tile,
/// kReleases threads must call release or release_last when they no longer need it.
template <unsigned kRows, unsigned kStages, unsigned kReleases, class Fetch>
class OwnTiles {
 public:
  static_assert(kStages > 1, "a tile's copies begin while the one before is worked on");

  /// One thread calls fetch(stage, first position, barrier), which begins the copies of a tile.
  __device__ OwnTiles(unsigned positions, unsigned barriers, Fetch fetch)
      : tiles_((positions + kRows - 1) / kRows), barriers_(barriers), fetch_(fetch) {
    if (threadIdx.x == 0) {
#pragma unroll
      for (unsigned stage = 0; stage < kStages; ++stage) {
        barrier_init(arrived(stage), 1);
        barrier_init(released(stage), kReleases);
      }
      barriers_are_made();
      for (unsigned i = 0; i < kStages && counted(i) < tiles_; ++i) fetch_(i, first(i), arrived(i));
    }
    __syncthreads();
  }

  /// All threads call use(stage, first position) for each tile, when its copies are complete.
  template <class Use>
  __device__ void for_each(Use use) {
    for (; counted(now_) < tiles_; ++now_) {
      barrier_wait(arrived(stage_of(now_)), parity_of(now_));
      use(stage_of(now_), first(now_));
    }
  }
  __device__ void release() const { barrier_arrive(released(stage_of(now_))); }
  /// Releases the tile before, if there was one.
  __device__ void release_last() const {
    if (now_ > 0) barrier_arrive(released(stage_of(now_ - 1)));
  }
  /// Begins to copy the next tile to the place of the tile before. All threads call it once for each tile.
  __device__ void fetch_next() const {
    if (threadIdx.x == 0 && now_ > 0 && counted(now_ - 1 + kStages) < tiles_) {
      const unsigned stage = stage_of(now_ - 1);
      barrier_wait(released(stage), parity_of(now_ - 1));
      fetch_(stage, first(now_ - 1 + kStages), arrived(stage));
    }
    __syncwarp();
  }

 private:
  __device__ static unsigned stage_of(unsigned i) { return i % kStages; }
  __device__ static unsigned parity_of(unsigned i) { return i / kStages % 2; }
  __device__ unsigned arrived(unsigned stage) const { return barriers_ + stage * 8; }
  __device__ unsigned released(unsigned stage) const { return barriers_ + (kStages + stage) * 8; }
  __device__ unsigned counted(unsigned i) const { return blockIdx.x + i * gridDim.x; }
  __device__ unsigned first(unsigned i) const { return (tiles_ - 1 - counted(i)) * kRows; }

  unsigned tiles_;
  unsigned barriers_;
  Fetch fetch_;
  unsigned now_ = 0;
};

/// One value for each of a thread's channels, from the values of its group [64].
struct ChannelPart {
  float v[2];

  __device__ ChannelPart(const Lane& lane, const float* of_group)
      : v{of_group[lane.channel], of_group[lane.channel + 8]} {}
};

/// Several sums for each of a thread's channels, with separate sums for even and odd positions.
template <int kSums>
struct SumPart {
  float2 v[kSums][2] = {};

  /// Adds up the sums over the block, and over all blocks (see sum_over_blocks). kSharing groups have the same
  /// channels: one, or all. `shared` is kBytes of shared memory of tiles that are no longer needed.
  template <unsigned kSharing, unsigned kBytes, class Finish>
  __device__ void add_up(const Lane& lane, void* shared, unsigned channels, const SumPlace& place,
                         Finish finish) const {
    static_assert(kSharing == 1 || kSharing == kProductGroups);
    constexpr unsigned kWidth = kProductChannels / kSharing;
    using Memory = SumMemory<kSums, kProductThreads, kWidth>;
    static_assert(sizeof(Memory) <= kBytes);
    auto& memory = *static_cast<Memory*>(shared);
    const unsigned group_channel = kSharing == 1 ? lane.group * kGroupChannels : 0;
    __syncthreads();
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        float sum = v[s][half].x + v[s][half].y;
        sum += __shfl_xor_sync(~0U, sum, 1);
        sum += __shfl_xor_sync(~0U, sum, 2);
        if (lane.number % 4 == 0)
          memory.of_warps[lane.group % kSharing][s][group_channel + lane.channel + half * 8] = sum;
      }
    }
    const SumChannels own{blockIdx.y * kWidth, kWidth, channels};
    sum_warps_over_blocks<kSharing>(memory, threadIdx.x, own, place, finish);
  }
};

/// Writes the products of a group to memory, through two panels that are used in turn. Also computes the sums for
/// `statistics`, of the distances of the written values from `center`.
template <unsigned kRows>
class StatisticsOutput {
 public:
  static constexpr unsigned kBytes = 2 * kProductGroups * Panel<kRows>::kBytes;  // for all groups

  __device__ StatisticsOutput(const Lane& lane, unsigned shared, const ChannelPart& center)
      : lane_(lane),
        center_(center),
        own_(shared + lane.group * Panel<kRows>::kBytes),
        other_(own_ + kProductGroups * Panel<kRows>::kBytes) {}

  /// Writes a tile of `rows` rows to column and row of y. All threads of the group call it.
  __device__ void write(const ProductPart<kRows>& product, unsigned rows, const CUtensorMap& y, unsigned column,
                        unsigned row) {
    rows >= kRows ? take<true>(product, rows) : take<false>(product, rows);
    show_to_copies();
    if (lane_.is_first_of_group()) wait_for_reads();  // of the tile before, whose panel the next tile is written to
    sync_group(lane_.group);
    if (lane_.is_first_of_group()) store_box(own_, y, column, row);
    std::swap(own_, other_);
  }
  /// Call it after the last write. Afterwards the panels are free. Returns the complete sums.
  __device__ const SumPart<2>& end() const {
    if (lane_.is_first_of_group()) wait_for_reads();
    return sums_;
  }

 private:
  template <bool kIsWhole>
  __device__ void take(const ProductPart<kRows>& product, unsigned rows) {
    SumPart<2> of_tile;  // summed separately, because adding many values to one large sum would lose bits
#pragma unroll
    for (unsigned t = 0; t < kRows / 16; ++t) {
      unsigned pairs[4];
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        pairs[i] = pair_of(product.pair(t, i));
        const unsigned half = i % 2;
        const unsigned position = t * 16 + i / 2 * 8 + lane_.position;
        float2 distance = difference(values_of(pairs[i]), center_.v[half]);
        if (!kIsWhole && position >= rows) distance.x = 0;
        if (!kIsWhole && position + 1 >= rows) distance.y = 0;
        add(of_tile.v[0][half], distance);
        add_product(of_tile.v[1][half], distance, distance);
      }
      store_columns(own_ + lane_.place() + t * 16 * Panel<kRows>::kRowBytes, pairs);
    }
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) add(sums_.v[i / 2][i % 2], of_tile.v[i / 2][i % 2]);
  }

  Lane lane_;
  ChannelPart center_;
  SumPart<2> sums_;
  unsigned own_;
  unsigned other_;
};

}  // namespace resnet::cuda

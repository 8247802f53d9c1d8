// The gradient of the first convolution's filter, computed from the gradient of the max-pool's output: see the header.
// A block goes through pairs of lines of y. It combines the gradient of each window of the pool with the number of the
// pixel that the gradient belongs to. From these and from y, a thread computes the gradient of two channels of y at
// some positions, and keeps it in registers. It is the left side of products. The right side is the image in shared
// memory.

#include <algorithm>
#include <type_traits>
#include <utility>

#include "demos/resnet/network/cuda/cuda_pool_windows.cuh"
#include "demos/resnet/network/hopper/cuda_stem_tiles.cuh"

namespace resnet::cuda {
namespace {

using Element = __nv_bfloat16;

extern __shared__ __align__(1024) std::byte stem_backward_memory[];

constexpr unsigned kGroups = 2;  // not four, so that a thread can use twice the registers: it keeps over 100 sums
constexpr unsigned kBackwardThreads = kGroups * kGroupThreads;
constexpr unsigned kWidth = kStemWidth;
constexpr unsigned kLines = 2;
constexpr unsigned kWindow = 3;
constexpr unsigned kFilterElements = kStemChannels * kFoldedKernel * kFoldedKernel * kFoldedChannels;

/// The layout of the shared memory. A tile is kLines lines of kWidth positions.
struct BackwardMemory {
  static constexpr unsigned kStages = 2;
  using Tile = StemTile<kLines>;
  using Line = Panel<kWidth>;
  static constexpr unsigned kY = 2 * Tile::kHalf;
  // The windows that contain positions of the tile: one for every other position, and those that follow.
  static constexpr unsigned kWindowLines = 2;
  static constexpr unsigned kWindowColumns = kWidth / 2 + 1;
  static constexpr unsigned kWindows = kWindowLines * kWindowColumns;
  static constexpr unsigned kGradientBytes = kWindows * kStemChannels * sizeof(Element);
  static constexpr unsigned kWhichBytes = kWindows * kStemChannels;
  static constexpr unsigned kG1 = kY + kLines * Line::kBytes;
  static constexpr unsigned kG2 = kG1 + kGradientBytes;
  static constexpr unsigned kWhich = kG2 + kGradientBytes;
  static constexpr unsigned kStageBytes = (kWhich + kWhichBytes + 1023) / 1024 * 1024;
  // One word per window and channel, for two tiles in turn.
  static constexpr unsigned kWords = kStages * kStageBytes;
  static constexpr unsigned kWordBytes = kWindows * kStemChannels * 4;
  static constexpr unsigned kBarriers = kWords + 2 * kWordBytes;
  static constexpr unsigned kBytes = kBarriers + 2 * kStages * 8;
  static_assert(kY % 1024 == 0 && kG1 % 128 == 0 && kG2 % 128 == 0 && kWhich % 128 == 0);
  static_assert(kFilterElements * sizeof(float) <= kWords);
};

struct BackwardMaps {
  CUtensorMap x;
  CUtensorMap y;
  CUtensorMap g1;
  CUtensorMap g2;
  CUtensorMap which;
};

/// Begins the copies of a tile.
__device__ void fetch_backward_tile(unsigned stage, const BackwardMaps& maps, bool has_g2,
                                    const BackwardMemory::Tile& tile, unsigned size, unsigned barrier) {
  using Memory = BackwardMemory;
  barrier_expect(barrier, 2 * Memory::Tile::kHalfBytes + kLines * Memory::Line::kBytes +
                              (has_g2 ? 2 : 1) * Memory::kGradientBytes + Memory::kWhichBytes);
  tile.fetch_image(stage, maps.x, barrier);
#pragma unroll
  for (unsigned line = 0; line < kLines; ++line)
    fetch_box(stage + Memory::kY + line * Memory::Line::kBytes, maps.y, 0,
              (tile.row * size + tile.line + line) * size + tile.column, barrier);
  const unsigned windows[4] = {0, tile.column / 2, tile.line / 2, tile.row};
  fetch_box(stage + Memory::kG1, maps.g1, windows, barrier);
  if (has_g2) fetch_box(stage + Memory::kG2, maps.g2, windows, barrier);
  fetch_box(stage + Memory::kWhich, maps.which, windows, barrier);
}

/// The place of the word of a window and a channel. The words of eight channels of four neighbouring windows are in
/// different banks.
__device__ unsigned word_at(unsigned window, unsigned channel) {
  return window * kStemChannels + (channel ^ window % 4 * kVector);
}

/// Writes one word for each window: its gradient in float32, with the number of the pixel in place of the last bits.
__device__ void combine_windows(const std::byte* stage, bool has_g2, float* words) {
  using Memory = BackwardMemory;
  constexpr unsigned kVectors = kStemChannels / kVector;
  const auto* const g1 = reinterpret_cast<const Element*>(stage + Memory::kG1);
  const auto* const g2 = has_g2 ? reinterpret_cast<const Element*>(stage + Memory::kG2) : nullptr;
  const auto* const which = reinterpret_cast<const std::uint8_t*>(stage + Memory::kWhich);
#pragma unroll 2
  for (unsigned item = threadIdx.x; item < Memory::kWindows * kVectors; item += kBackwardThreads) {
    const std::size_t element = item * kVector;
    const auto window = PoolLoad<Element>::at(g1, g2, which, element);
    Vector sum = window.gradient();
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      sum.v[i] = __uint_as_float((__float_as_uint(sum.v[i]) & ~0xFU) | window.number(i));
    store(words + word_at(item / kVectors, item % kVectors * kVector), sum);
  }
}

/// The coefficients of the normalisation of a channel: see NormPlace.
struct ChannelLine {
  float factor, offset, slope, of_x, constant;
  __device__ ChannelLine(const NormPlace& norm, unsigned c)
      : factor(norm.factor[c]),
        offset(norm.offset[c]),
        slope(norm.backward[c]),
        of_x(norm.backward[kStemChannels + c]),
        constant(norm.backward[2 * kStemChannels + c]) {}
  /// The gradient with respect to y, from the gradient with respect to the output of the ReLU.
  __device__ float of(float dz, float y) const {
    if (fmaf(factor, y, offset) <= 0) dz = 0;
    return fmaf(slope, dz, fmaf(of_x, y, constant));
  }
};

/// The gradients that two neighbouring positions of an even or odd line get from the windows that contain them.
/// `window` is the window of the first position in the first line of windows.
template <bool kIsOdd>
__device__ float2 arriving(const float* words, unsigned window, unsigned channel) {
  float2 sum{0, 0};
#pragma unroll
  for (unsigned v = 0; v <= (kIsOdd ? 1 : 0); ++v) {
    // The number of the line's first pixel in these windows.
    const unsigned line = kIsOdd ? (v == 0 ? 2 * kWindow : 0) : kWindow;
    const unsigned first = window + v * BackwardMemory::kWindowColumns;
    const float own = words[word_at(first, channel)];
    const float next = words[word_at(first + 1, channel)];
    const unsigned number = __float_as_uint(own) & 0xFU;
    sum.x += number == line + 1 ? own : 0;
    sum.y += number == line + 2 ? own : 0;
    sum.y += (__float_as_uint(next) & 0xFU) == line ? next : 0;
  }
  return sum;
}

/// The gradient of 16 positions of a line, from `column` on, in the layout of the left side of a product.
template <bool kIsOdd>
__device__ void gradient_at(const Lane& lane, unsigned stage, const float* words, unsigned column,
                            const ChannelLine (&channels)[2], unsigned (&gradient)[4]) {
  using Line = BackwardMemory::Line;
  unsigned y[4];
  load_columns(stage + BackwardMemory::kY + (kIsOdd ? Line::kBytes : 0) + column * Line::kRowBytes + lane.place(), y);
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned window = column / 2 + i / 2 * 4 + lane.position / 2;
    const float2 value = values_of(y[i]);
    const float2 dz = arriving<kIsOdd>(words, window, lane.channel + i % 2 * 8);
    const ChannelLine& channel = channels[i % 2];
    gradient[i] = pair_of({channel.of(dz.x, value.x), channel.of(dz.y, value.y)});
  }
}

/// The sums of a thread. For each line of the filter and each half of its channels, there are 32 elements of two
/// channels.
struct FilterSums {
  static constexpr unsigned kParts = 2 * kFoldedKernel;
  static constexpr unsigned kCount = kParts * 16;
  float v[kParts][4][4] = {};

  /// Adds the products of 16 positions. `pixels` is the address of their first pixel in the first line. `gradient` must
  /// not change until wait_for_products.
  __device__ void add(unsigned pixels, const unsigned (&gradient)[4]) {
    using Tile = BackwardMemory::Tile;
    const std::uint64_t first = matrices_at(pixels, Tile::kPixelBytes, 8 * Tile::kPixelBytes);
    products_begin();
#pragma unroll
    for (unsigned part = 0; part < kParts; ++part)
      multiply_add_down(v[part], gradient, moved(first, part % 2 * Tile::kHalf + part / 2 * Tile::kLineBytes));
    products_end();
  }
  /// Calls use(i, value) for each sum.
  template <class Use>
  __device__ void for_each(Use use) {
#pragma unroll
    for (unsigned i = 0; i < kCount; ++i) use(i, v[i / 16][i / 4 % 4][i % 4]);
  }
};
static_assert(FilterSums::kCount * kGroupThreads == kFilterElements);

/// The place in a folded filter of value `value` of thread `thread` of a group.
__device__ unsigned folded_place(unsigned value, unsigned thread) {
  const unsigned warp = thread / kWarp;
  const unsigned lane = thread % kWarp;
  const unsigned channel = warp * 16 + value / 2 % 2 * 8 + lane / 4;
  const unsigned line = value / 32;
  const unsigned pixel = value / 4 % 4;
  const unsigned channel_in = value / 16 % 2 * BackwardMemory::Tile::kHalfChannels + lane % 4 * 2 + value % 2;
  return ((channel * kFoldedKernel + line) * kFoldedKernel + pixel) * kFoldedChannels + channel_in;
}

/// Keeps the compiler from overwriting these values before this point, because products in flight read them.
__device__ void keep(const unsigned (&values)[4]) {
  asm volatile("" ::"r"(values[0]), "r"(values[1]), "r"(values[2]), "r"(values[3]));
}

/// Writes sums [blocks, values, threads of a group].
__global__ void __launch_bounds__(kBackwardThreads)
    stem_filter_kernel(StemShape shape, const __grid_constant__ BackwardMaps maps, bool has_g2, NormPlace norm,
                       float* sums) {
  using Memory = BackwardMemory;
  const auto size = static_cast<unsigned>(shape.size_out);
  const auto tile_count = static_cast<unsigned>(shape.rows) * Memory::Tile::count_in(size);
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(stem_backward_memory));
  const auto fetch = [=, &maps](unsigned stage, unsigned number, unsigned barrier) {
    fetch_backward_tile(shared + stage * Memory::kStageBytes, maps, has_g2, Memory::Tile(number, size), size, barrier);
  };
  OwnTiles<1, Memory::kStages, kBackwardThreads / kWarp, decltype(fetch)> tiles(tile_count, shared + Memory::kBarriers,
                                                                                fetch);
  const Lane lane;
  const ChannelLine channels[2] = {ChannelLine(norm, lane.channel), ChannelLine(norm, lane.channel + 8)};
  auto* words = reinterpret_cast<float*>(stem_backward_memory + Memory::kWords);
  auto* other_words = words + Memory::kWordBytes / sizeof(float);
  FilterSums filter;
  tiles.for_each([&](unsigned number, unsigned) {
    const unsigned stage = shared + number * Memory::kStageBytes;
    tiles.fetch_next();
    combine_windows(stem_backward_memory + number * Memory::kStageBytes, has_g2, words);
    __syncthreads();
    unsigned in_use[4] = {};
    const auto take = [&](auto is_odd, unsigned step) {
      constexpr bool kIsOdd = decltype(is_odd)::value;
      unsigned gradient[4];
      gradient_at<kIsOdd>(lane, stage, words, step * 16, channels, gradient);
      wait_for_products();
      keep(in_use);
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) in_use[i] = gradient[i];
      filter.add(stage + (kIsOdd ? Memory::Tile::kLineBytes : 0) + step * 16 * Memory::Tile::kPixelBytes, in_use);
    };
    // Each group takes every other 16 positions of each line, because odd lines are more work than even ones.
    constexpr unsigned kSteps = kWidth / 16;
#pragma unroll
    for (unsigned step = 0; step + 1 < kSteps; step += 2) {
      take(std::false_type{}, step + lane.group);
      take(std::true_type{}, step + 1 - lane.group);
    }
    static_assert(kSteps % 2 == 1 && kGroups == 2);
    lane.group == 0 ? take(std::false_type{}, kSteps - 1) : take(std::true_type{}, kSteps - 1);
    wait_for_products();
    keep(in_use);
    filter.for_each([](unsigned, float& value) { asm volatile("" : "+f"(value)); });
    if (lane.number == 0) tiles.release();
    // These words are written again only after a later synchronization of all threads, and so after all threads have
    // read them.
    std::swap(words, other_words);
  });
  __syncthreads();
  auto* const of_other = reinterpret_cast<float*>(stem_backward_memory);
  const unsigned thread = threadIdx.x % kGroupThreads;
  if (lane.group == 1) filter.for_each([&](unsigned i, float value) { of_other[i * kGroupThreads + thread] = value; });
  __syncthreads();
  if (lane.group == 1) return;
  float* const own = sums + std::size_t{blockIdx.x} * kFilterElements;
  filter.for_each(
      [&](unsigned i, float value) { own[i * kGroupThreads + thread] = value + of_other[i * kGroupThreads + thread]; });
}

/// Adds up the sums of all blocks to the gradient of a folded filter.
__global__ void sum_filters_kernel(unsigned blocks, const float* sums, float* folded) {
  const unsigned item = blockIdx.x * kThreads + threadIdx.x;
  float sum = 0;
#pragma unroll 12
  for (unsigned block = 0; block < blocks; ++block) sum += sums[std::size_t{block} * kFilterElements + item];
  folded[folded_place(item / kGroupThreads, item % kGroupThreads)] = sum;
}
static_assert(kFilterElements % kThreads == 0);

}  // namespace

void make_room_for_stem_backward() {
  static_assert(BackwardMemory::kBytes <= kMostProductMemory);
  make_room(stem_filter_kernel, BackwardMemory::kBytes);
}

std::size_t stem_scratch_elements(const ProductDevice& device) {
  return (device.blocks + std::size_t{1}) * kFilterElements;
}

void stem_filter_gradient(const ProductDevice& device, const StemShape& shape, const void* x,
                          const PoolGradient& gradient, const NormSide& side, float* scratch, float* filter_gradient,
                          CUstream_st* stream) {
  using Memory = BackwardMemory;
  void* const encoder = device.tensor_map_encoder;
  const auto of_windows = [&](const void* data, std::size_t bytes) {
    return map_of_images(encoder, {data, shape.rows, shape.size_out / 2, kStemChannels, bytes},
                         {Memory::kWindowLines, Memory::kWindowColumns, kStemChannels});
  };
  const BackwardMaps maps{
      Memory::Tile::map_of(encoder, shape, x),
      map_of_bfloat16(encoder, {side.x, shape.rows * shape.size_out * shape.size_out, kStemChannels}, kWidth),
      of_windows(gradient.g1, sizeof(Element)),
      of_windows(gradient.g2 == nullptr ? gradient.g1 : gradient.g2, sizeof(Element)), of_windows(gradient.which, 1)};
  const std::size_t tiles = shape.rows * Memory::Tile::count_in(static_cast<unsigned>(shape.size_out));
  const auto blocks = static_cast<unsigned>(std::clamp<std::size_t>(tiles, 1, device.blocks));
  stem_filter_kernel<<<blocks, kBackwardThreads, Memory::kBytes, stream>>>(shape, maps, gradient.g2 != nullptr,
                                                                           side.norm, scratch);
  demos::check_cuda(cudaGetLastError(), "the first filter's gradient");
  float* const folded_gradient = scratch + std::size_t{blocks} * kFilterElements;
  sum_filters_kernel<<<kFilterElements / kThreads, kThreads, 0, stream>>>(blocks, scratch, folded_gradient);
  demos::check_cuda(cudaGetLastError(), "sums of the first filter's gradient");
  unfold_filter_gradient(CudaMath::kFloat32, kStemChannels, folded_gradient, filter_gradient, stream);
}

}  // namespace resnet::cuda

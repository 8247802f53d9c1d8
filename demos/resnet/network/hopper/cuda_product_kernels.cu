// Matrix products that also compute sums of their results: see the header.

#include "demos/resnet/network/hopper/cuda_product_kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "demos/resnet/network/cuda/cuda_norm_sums.cuh"
#include "demos/resnet/network/hopper/cuda_product_tiles.cuh"
#include "demos/resnet/network/hopper/cuda_stem_kernels.hpp"
#include "demos/resnet/network/hopper/cuda_tensor_map.hpp"

namespace resnet::cuda {
namespace {

using Element = __nv_bfloat16;

extern __shared__ __align__(1024) std::byte product_memory[];
__device__ unsigned shared_address() { return static_cast<unsigned>(__cvta_generic_to_shared(product_memory)); }

/// The layout of the shared memory of product_statistics_kernel. The sizes and numbers of stages, here and below, are
/// chosen by measurement: see docs/performance-notes.md.
template <unsigned kOfDepth>
struct StatisticsMemory {
  static constexpr unsigned kDepth = kOfDepth;
  static constexpr unsigned kRows = 64;
  static constexpr unsigned kStages = kDepth == 64 ? 4 : 3;
  using Tile = Panel<kRows>;
  static constexpr unsigned kInputPanels = kDepth / Tile::kWidth;
  static constexpr unsigned kStageBytes = kInputPanels * Tile::kBytes;
  static constexpr unsigned kOutput = kStages * kStageBytes;
  static constexpr unsigned kBarriers = kOutput + StatisticsOutput<kRows>::kBytes;
  static constexpr unsigned kBytes = kBarriers + 2 * kStages * 8;
};

struct StatisticsMaps {
  CUtensorMap x;
  CUtensorMap y;
};

/// The statistics are those of y after it is rounded for memory. Each block reads the running mean before it delivers
/// its sums, because the last block that delivers updates the running mean.
template <unsigned kDepth>
__global__ void __launch_bounds__(kProductThreads)
    product_statistics_kernel(NormShape shape, const __grid_constant__ StatisticsMaps maps, const Element* filters,
                              NormPlace norm, SumPlace place, Ranks ranks) {
  using Memory = StatisticsMemory<kDepth>;
  using Tile = typename Memory::Tile;
  constexpr unsigned kWarps = kProductThreads / kWarp;
  const auto positions = static_cast<unsigned>(shape.positions);
  const unsigned shared = shared_address();
  const auto fetch = [&maps, shared](unsigned stage, unsigned first, unsigned barrier) {
    barrier_expect(barrier, Memory::kStageBytes);
#pragma unroll
    for (unsigned panel = 0; panel < Memory::kInputPanels; ++panel)
      fetch_box(shared + stage * Memory::kStageBytes + panel * Tile::kBytes, maps.x, panel * Tile::kWidth, first,
                barrier);
  };
  OwnTiles<Memory::kRows, Memory::kStages, kWarps, decltype(fetch)> tiles(positions, shared + Memory::kBarriers, fetch);
  const Lane lane;
  const auto filter = FilterPart<kDepth>::template load<FilterOrder::kByChannel>(lane, filters, shape.channels);
  StatisticsOutput<Memory::kRows> output(lane, shared + Memory::kOutput,
                                         ChannelPart(lane, norm.running_mean + lane.first_channel()));
  tiles.for_each([&](unsigned stage, unsigned first) {
    ProductPart<Memory::kRows> product;
    tiles.fetch_next();
    product.begin(shared + stage * Memory::kStageBytes, filter);
    product.end();
    if (lane.number == 0) tiles.release();
    output.write(product, positions - first, maps.y, lane.first_channel(), first);
  });
  output.end().template add_up<1, Memory::kBarriers>(
      lane, product_memory, static_cast<unsigned>(shape.channels), place,
      [&](unsigned c, const double(&total)[2]) { finish_statistics(norm, c, shape, total[0], total[1], ranks); });
}

/// The layout of the shared memory of product_sums_block_kernel. The first places are offsets in a stage.
template <unsigned kOfDepth, bool kOfShortcut>
struct BlockMemory {
  static constexpr unsigned kDepth = kOfDepth;
  static constexpr bool kHasShortcut = kOfShortcut;
  static constexpr unsigned kRows = kDepth == 256 || kHasShortcut ? 32 : 64;
  static constexpr unsigned kStages = kHasShortcut || kDepth == 64 ? 3 : kDepth == 128 ? 2 : 4;
  using Tile = Panel<kRows>;
  static constexpr unsigned kInputPanels = kDepth / Tile::kWidth;
  static constexpr unsigned kInputBytes = kInputPanels * Tile::kBytes;
  static constexpr unsigned kWideBytes = kProductGroups * Tile::kBytes;
  static constexpr unsigned kPassesBytes = kRows * kProductChannels / 8;
  static constexpr unsigned kPassed = kInputBytes;  // first g2, then dz
  static constexpr unsigned kX = kPassed + kWideBytes;
  static constexpr unsigned kShortcut = kX + kWideBytes;
  static constexpr unsigned kStageBytes = kShortcut + (kHasShortcut ? kWideBytes : 0);
  static constexpr unsigned kPasses = kStages * kStageBytes;  // after all stages; one part for each stage
  static constexpr unsigned kBarriers = kPasses + kStages * kPassesBytes;
  static constexpr unsigned kBytes = kBarriers + 2 * kStages * 8;
};

struct BlockMaps {
  CUtensorMap gradient;
  CUtensorMap g2;
  CUtensorMap dz;
  CUtensorMap x;
  CUtensorMap shortcut;
  CUtensorMap passes;
};

/// Begins the copies of a tile, to a stage and to the stage's part for `passes`.
template <class Memory>
__device__ void fetch_block_tile(unsigned stage, unsigned passes, const BlockMaps& maps, bool has_g2, unsigned first,
                                 unsigned barrier) {
  using Tile = typename Memory::Tile;
  const unsigned channel = blockIdx.y * kProductChannels;
  const auto fetch = [&](unsigned place, const CUtensorMap& map) {
#pragma unroll
    for (unsigned group = 0; group < kProductGroups; ++group)
      fetch_box(stage + place + group * Tile::kBytes, map, channel + group * Tile::kWidth, first, barrier);
  };
  barrier_expect(barrier, Memory::kStageBytes + Memory::kPassesBytes - (has_g2 ? 0 : Memory::kWideBytes));
#pragma unroll
  for (unsigned panel = 0; panel < Memory::kInputPanels; ++panel)
    fetch_box(stage + panel * Tile::kBytes, maps.gradient, panel * Tile::kWidth, first, barrier);
  if (has_g2) fetch(Memory::kPassed, maps.g2);
  fetch(Memory::kX, maps.x);
  if constexpr (Memory::kHasShortcut) fetch(Memory::kShortcut, maps.shortcut);
  fetch_box(passes, maps.passes, channel / 8, first, barrier);
}

/// Computes the same as sums_block_kernel.
template <unsigned kDepth, bool kHasShortcut>
__global__ void __launch_bounds__(kProductThreads)
    product_sums_block_kernel(NormShape shape, const __grid_constant__ BlockMaps maps, bool has_g2,
                              const Element* filters, NormSide last, NormSide shortcut, SumPlace place, Ranks ranks) {
  using Memory = BlockMemory<kDepth, kHasShortcut>;
  using Tile = typename Memory::Tile;
  constexpr int kSums = kHasShortcut ? 3 : 2;
  const unsigned shared = shared_address();
  const auto passes_of = [shared](unsigned stage) { return shared + Memory::kPasses + stage * Memory::kPassesBytes; };
  const auto fetch = [=, &maps](unsigned stage, unsigned first, unsigned barrier) {
    fetch_block_tile<Memory>(shared + stage * Memory::kStageBytes, passes_of(stage), maps, has_g2, first, barrier);
  };
  OwnTiles<Memory::kRows, Memory::kStages, kProductGroups, decltype(fetch)> tiles(
      static_cast<unsigned>(shape.positions), shared + Memory::kBarriers, fetch);
  const Lane lane;
  const auto filter = FilterPart<kDepth>::template load<FilterOrder::kByDepth>(lane, filters, shape.channels);
  const ChannelPart mean(lane, last.norm.mean + lane.first_channel());
  const ChannelPart shortcut_mean(lane, (kHasShortcut ? shortcut : last).norm.mean + lane.first_channel());
  SumPart<kSums> sums;
  tiles.for_each([&](unsigned number, unsigned first) {
    const unsigned stage = shared + number * Memory::kStageBytes;
    ProductPart<Memory::kRows> product;
    if (lane.is_first_of_group()) {
      wait_for_reads();
      tiles.release_last();
    }
    tiles.fetch_next();
    product.begin(stage, filter);
    const unsigned own = stage + lane.group * Tile::kBytes + lane.place();
    const unsigned passes = passes_of(number) + lane.group * (kGroupChannels / 8) + lane.warp * 2;
    product.end();
#pragma unroll
    for (unsigned t = 0; t < Memory::kRows / 16; ++t) {
      const unsigned place = own + t * 16 * Tile::kRowBytes;
      unsigned more[4] = {};
      unsigned x[4];
      unsigned other[4];
      if (has_g2) load_columns(place + Memory::kPassed, more);
      load_columns(place + Memory::kX, x);
      if constexpr (kHasShortcut) load_columns(place + Memory::kShortcut, other);
      unsigned dz_pairs[4];
#pragma unroll
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned half = i % 2;
        // No gradient passes beyond the last position, because the copy has put zeros there.
        const unsigned row = t * 16 + i / 2 * 8 + lane.position;
        const unsigned bit = 1U << (half * 8 + lane.number / 4);
        const unsigned even = load_half(passes + row * (kProductChannels / 8));
        const unsigned odd = load_half(passes + (row + 1) * (kProductChannels / 8));
        float2 dz = product.pair(t, i);
        add(dz, values_of(more[i]));
        if ((even & bit) == 0) dz.x = 0;
        if ((odd & bit) == 0) dz.y = 0;
        dz_pairs[i] = pair_of(dz);
        add(sums.v[0][half], dz);
        add_product(sums.v[1][half], dz, difference(values_of(x[i]), mean.v[half]));
        if constexpr (kHasShortcut)
          add_product(sums.v[2][half], dz, difference(values_of(other[i]), shortcut_mean.v[half]));
      }
      store_columns(place + Memory::kPassed, dz_pairs);
    }
    show_to_copies();
    sync_group(lane.group);
    if (lane.is_first_of_group())
      store_box(stage + Memory::kPassed + lane.group * Tile::kBytes, maps.dz, lane.first_channel(), first);
  });
  if (lane.is_first_of_group()) wait_for_reads();
  sums.template add_up<1, Memory::kBarriers>(
      lane, product_memory, static_cast<unsigned>(shape.channels), place, [&](unsigned c, const double(&total)[kSums]) {
        finish_backward(last.norm, last.sums, c, shape, total[0], total[1], ranks);
        if constexpr (kHasShortcut) finish_backward(shortcut.norm, shortcut.sums, c, shape, total[0], total[2], ranks);
      });
}

/// Calls `body` with the depth as a compile-time constant.
template <class Body>
void with_depth(std::size_t depth, Body body) {
  switch (depth) {
    case 64: return body(std::integral_constant<unsigned, 64>{});
    case 128: return body(std::integral_constant<unsigned, 128>{});
    default: return body(std::integral_constant<unsigned, 256>{});
  }
}

int attribute(cudaDeviceAttr of, int device) {
  int value = 0;
  demos::check_cuda(cudaDeviceGetAttribute(&value, of, device), "cudaDeviceGetAttribute");
  return value;
}

template <unsigned kDepth>
void make_room_for_depth() {
  static_assert(StatisticsMemory<kDepth>::kBytes <= kMostProductMemory &&
                BlockMemory<kDepth, false>::kBytes <= kMostProductMemory &&
                BlockMemory<kDepth, true>::kBytes <= kMostProductMemory);
  make_room(product_statistics_kernel<kDepth>, StatisticsMemory<kDepth>::kBytes);
  make_room(product_sums_block_kernel<kDepth, false>, BlockMemory<kDepth, false>::kBytes);
  make_room(product_sums_block_kernel<kDepth, true>, BlockMemory<kDepth, true>::kBytes);
}

/// Launches as many blocks as the device can run at once, but not more than there are tiles for.
template <class Memory, typename... P, typename... A>
void launch_product(const char* what, void (*kernel)(P...), const ProductDevice& device, NormShape shape,
                    cudaStream_t stream, A... arguments) {
  const auto columns = static_cast<unsigned>(shape.channels / kProductChannels);
  const std::size_t tiles = (shape.positions + Memory::kRows - 1) / Memory::kRows;
  const std::size_t most = std::clamp<std::size_t>(device.blocks / columns, 1, kMostPartials);
  const auto rows = static_cast<unsigned>(std::clamp<std::size_t>(tiles, 1, most));
  kernel<<<dim3(rows, columns), kProductThreads, Memory::kBytes, stream>>>(shape, arguments...);
  demos::check_cuda(cudaGetLastError(), what);
}

}  // namespace

std::optional<ProductDevice> product_device() {
  int device = 0;
  demos::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  if (major != 9 || minor != 0) return std::nullopt;
  void* const encoder = find_tensor_map_encoder();
  if (encoder == nullptr) return std::nullopt;
  make_room_for_depth<64>();
  make_room_for_depth<128>();
  make_room_for_depth<256>();
  make_room_for_stem();
  make_room_for_stem_backward();
  return ProductDevice{static_cast<unsigned>(attribute(cudaDevAttrMultiProcessorCount, device)), encoder};
}

void product_statistics(const ProductDevice& device, NormShape shape, const Product& product, void* y,
                        const NormPlace& norm, const SumPlace& place, Ranks ranks, CUstream_st* stream) {
  with_depth(product.depth, [&](auto depth) {
    using Memory = StatisticsMemory<decltype(depth)::value>;
    const auto map = [&](const void* data, std::size_t width) {
      return map_of_bfloat16(device.tensor_map_encoder, {data, shape.positions, width}, Memory::kRows);
    };
    const StatisticsMaps maps{map(product.x, product.depth), map(y, shape.channels)};
    launch_product<Memory>("a product and its statistics", product_statistics_kernel<Memory::kDepth>, device, shape,
                           stream, maps, static_cast<const Element*>(product.filter), norm, place, ranks);
  });
}

void product_sums_block(const ProductDevice& device, NormShape shape, const Product& product, const void* g2,
                        const std::uint8_t* passes, void* dz, const NormSide& last, const NormSide* shortcut,
                        const SumPlace& place, Ranks ranks, CUstream_st* stream) {
  const auto run = [&](auto depth, auto has_shortcut) {
    using Memory = BlockMemory<decltype(depth)::value, decltype(has_shortcut)::value>;
    const NormSide& other = shortcut == nullptr ? last : *shortcut;
    const auto map = [&](const void* data, std::size_t width) {
      return map_of_bfloat16(device.tensor_map_encoder, {data, shape.positions, width}, Memory::kRows);
    };
    const CUtensorMap bits = map_of_bytes(device.tensor_map_encoder, {passes, shape.positions, shape.channels / 8},
                                          kProductChannels / 8, Memory::kRows);
    const BlockMaps maps{map(product.x, product.depth), map(g2 == nullptr ? dz : g2, shape.channels),
                         map(dz, shape.channels),       map(last.x, shape.channels),
                         map(other.x, shape.channels),  bits};
    launch_product<Memory>("a product and a block's gradient",
                           product_sums_block_kernel<Memory::kDepth, Memory::kHasShortcut>, device, shape, stream, maps,
                           g2 != nullptr, static_cast<const Element*>(product.filter), last, other, place, ranks);
  };
  with_depth(product.depth,
             [&](auto depth) { shortcut == nullptr ? run(depth, std::false_type{}) : run(depth, std::true_type{}); });
}

}  // namespace resnet::cuda

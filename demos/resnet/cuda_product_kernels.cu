// Matrix products that take sums of what they compute: see the header.

#include "demos/resnet/cuda_product_kernels.hpp"

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "demos/resnet/cuda_norm_sums.cuh"
#include "demos/resnet/cuda_product_tiles.cuh"

namespace resnet::cuda {
namespace {

using Element = __nv_bfloat16;
using Pair = __nv_bfloat162;

extern __shared__ uint4 product_memory[];
__device__ std::byte* shared_memory() { return reinterpret_cast<std::byte*>(product_memory); }
__device__ unsigned shared_address() { return static_cast<unsigned>(__cvta_generic_to_shared(product_memory)); }

__device__ void add(float2& sum, float2 x) {
  sum.x += x.x;
  sum.y += x.y;
}
__device__ void add_product(float2& sum, float2 x, float2 y) {
  sum.x = fmaf(x.x, y.x, sum.x);
  sum.y = fmaf(x.y, y.y, sum.y);
}
__device__ float2 difference(float2 x, float2 y) { return {x.x - y.x, x.y - y.y}; }

/// Where product_statistics_kernel has its tiles. Sizes and stages, here and below, by measurement: see docs/benchmarks.md.
template <unsigned kDepth>
struct StatisticsMemory {
  static constexpr unsigned kRows = kDepth == 64 ? 64 : 128;
  static constexpr unsigned kStages = kDepth == 64 ? 3 : 2;
  using Input = Tile<kRows, kDepth>;
  using Output = Tile<kRows, kProductChannels>;
  static constexpr unsigned kOutput = kStages * Input::kBytes;
  static constexpr unsigned kBytes = kOutput + Output::kBytes;
};

/// The statistics are those of y as it is stored. The running mean is read before this block arrives with its sums: the last
/// one that does moves it.
template <unsigned kDepth>
__global__ void __launch_bounds__(kProductThreads, 2)
    product_statistics_kernel(NormShape shape, const Element* x, const Element* filters, Element* y, NormPlace norm,
                              SumPlace place, Ranks ranks) {
  using Memory = StatisticsMemory<kDepth>;
  using Input = typename Memory::Input;
  using Output = typename Memory::Output;
  using Part = WarpPart<kDepth, Memory::kRows, 32>;
  const auto positions = static_cast<unsigned>(shape.positions);
  const unsigned shared = shared_address();
  const auto fetch = [=](unsigned stage, unsigned first) {
    fetch_tile<Input>(shared + stage * Input::kBytes, x, kDepth, first, positions);
  };
  OwnTiles<Memory::kRows, Memory::kStages, decltype(fetch)> tiles(positions, fetch);
  const Part part;
  const auto filter = FilterPart<Part>::template load<FilterOrder::kByChannel>(part, filters, shape.channels);
  const ChannelPart<Part> center(part, norm.running_mean);
  SumPart<Part, 2> sums;
  Element* const own_y = y + blockIdx.y * kProductChannels;
  std::byte* const output = shared_memory() + Memory::kOutput;
  const auto work = [&](auto is_whole, unsigned stage, unsigned first, unsigned rows) {
#pragma unroll(kDepth == 64 ? Part::kSquares : 1)
    for (unsigned s = 0; s < Part::kSquares; ++s) {
      ProductPart<Part> product;
      product.template multiply<Input>(part, s, shared + stage * Input::kBytes, filter);
      product.for_each_pair(part, s, [&](unsigned row, unsigned i, float low, float high) {
        const Pair pair = __floats2bfloat162_rn(low, high);
        *reinterpret_cast<Pair*>(output + Output::at(row, part.channel / kVector + i) + part.pair * sizeof(Element)) =
            pair;
        const bool counts = is_whole() || row < rows;
        const float2 distance = counts ? difference(__bfloat1622float2(pair), center.v[i]) : float2{0, 0};
        add(sums.v[0][i], distance);
        add_product(sums.v[1][i], distance, distance);
      });
    }
    store_part<Output>(part, output, own_y, shape.channels, first, rows);
  };
  tiles.for_each([&](unsigned stage, unsigned first) {
    const unsigned rows = min(Memory::kRows, positions - first);
    rows == Memory::kRows ? work(std::true_type{}, stage, first, rows) : work(std::false_type{}, stage, first, rows);
  });
  sums.add_up(part, static_cast<unsigned>(shape.channels), place, [&](unsigned c, const double(&total)[2]) {
    finish_statistics(norm, c, shape, total[0], total[1], ranks);
  });
}

/// Where product_sums_block_kernel has its tiles: bytes in a stage.
template <unsigned kDepth, bool kHasShortcut>
struct BlockMemory {
  static constexpr unsigned kRows = 32;
  static constexpr unsigned kStages = kDepth == 64 ? 2 : 3;
  using Input = Tile<kRows, kDepth>;
  using Wide = Tile<kRows, kProductChannels>;
  static constexpr unsigned kPassed = Input::kBytes;  // g2, and in its place dz
  static constexpr unsigned kX = kPassed + Wide::kBytes;
  static constexpr unsigned kShortcut = kX + Wide::kBytes;
  static constexpr unsigned kPasses = kShortcut + (kHasShortcut ? Wide::kBytes : 0);
  static constexpr unsigned kStageBytes = kPasses + kRows * kVectorBytes;  // a vector of bits is a row's
  static constexpr unsigned kBytes = kStages * kStageBytes;
  static_assert(kProductChannels / 8 == kVectorBytes && kRows <= kProductThreads);
};

/// What product_sums_block_kernel works on beside the product.
struct BlockArrays {
  const Element* g2;  // may be null
  const std::uint8_t* passes;
  Element* dz;  // may be g2
  NormSide last;
  NormSide shortcut;
};

/// Begins the copies of a tile.
template <class Memory, bool kHasShortcut>
__device__ void fetch_block_tile(unsigned stage, const Element* gradient, const BlockArrays& arrays, unsigned first,
                                 NormShape shape) {
  using Input = typename Memory::Input;
  using Wide = typename Memory::Wide;
  const auto positions = static_cast<unsigned>(shape.positions);
  const std::size_t channel = blockIdx.y * kProductChannels;
  const auto fetch = [&](unsigned place, const void* from) {
    fetch_tile<Wide>(stage + place, static_cast<const Element*>(from) + channel, shape.channels, first, positions);
  };
  fetch_tile<Input>(stage, gradient, Input::kVectors * kVector, first, positions);
  if (arrays.g2 != nullptr) fetch(Memory::kPassed, arrays.g2);
  fetch(Memory::kX, arrays.last.x);
  if constexpr (kHasShortcut) fetch(Memory::kShortcut, arrays.shortcut.x);
  if (threadIdx.x >= Memory::kRows) return;
  const bool is_there = first + threadIdx.x < positions;
  const std::size_t position = is_there ? first + threadIdx.x : 0;
  fetch_vector(stage + Memory::kPasses + threadIdx.x * kVectorBytes,
               arrays.passes + (position * shape.channels + channel) / 8, is_there);
}

/// As sums_block_kernel.
template <unsigned kDepth, bool kHasShortcut>
__global__ void __launch_bounds__(kProductThreads, 2)
    product_sums_block_kernel(NormShape shape, const Element* gradient, const Element* filters, BlockArrays arrays,
                              SumPlace place, Ranks ranks) {
  using Memory = BlockMemory<kDepth, kHasShortcut>;
  using Input = typename Memory::Input;
  using Wide = typename Memory::Wide;
  using Part = WarpPart<kDepth, Memory::kRows, 2048 / kDepth>;
  constexpr int kSums = kHasShortcut ? 3 : 2;
  const auto positions = static_cast<unsigned>(shape.positions);
  const unsigned shared = shared_address();
  const auto fetch = [&, shared](unsigned stage, unsigned first) {
    fetch_block_tile<Memory, kHasShortcut>(shared + stage * Memory::kStageBytes, gradient, arrays, first, shape);
  };
  OwnTiles<Memory::kRows, Memory::kStages, decltype(fetch)> tiles(positions, fetch);
  const Part part;
  const auto filter = FilterPart<Part>::template load<FilterOrder::kByDepth>(part, filters, shape.channels);
  const ChannelPart<Part> mean(part, arrays.last.norm.mean);
  const ChannelPart<Part> shortcut_mean(part, (kHasShortcut ? arrays.shortcut : arrays.last).norm.mean);
  SumPart<Part, kSums> sums;
  Element* const own_dz = arrays.dz + blockIdx.y * kProductChannels;
  tiles.for_each([&](unsigned number, unsigned first) {
    std::byte* const stage = shared_memory() + number * Memory::kStageBytes;
#pragma unroll
    for (unsigned s = 0; s < Part::kSquares; ++s) {
      ProductPart<Part> product;
      product.template multiply<Input>(part, s, shared + number * Memory::kStageBytes, filter);
      product.for_each_pair(part, s, [&](unsigned row, unsigned i, float low, float high) {
        const unsigned vector = part.channel / kVector + i;
        const auto pair_of = [&](unsigned tile) -> Pair& {
          return *reinterpret_cast<Pair*>(stage + tile + Wide::at(row, vector) + part.pair * sizeof(Element));
        };
        // Beyond the last position nothing passes: what was fetched is zero there.
        const auto passes =
            std::to_integer<unsigned>(stage[Memory::kPasses + row * kVectorBytes + vector]) >> part.pair;
        const float2 more = arrays.g2 == nullptr ? float2{0, 0} : __bfloat1622float2(pair_of(Memory::kPassed));
        const float2 dz{(passes & 1U) == 0 ? 0.0F : low + more.x, (passes & 2U) == 0 ? 0.0F : high + more.y};
        pair_of(Memory::kPassed) = __floats2bfloat162_rn(dz.x, dz.y);
        add(sums.v[0][i], dz);
        add_product(sums.v[1][i], dz, difference(__bfloat1622float2(pair_of(Memory::kX)), mean.v[i]));
        if constexpr (kHasShortcut) {
          const float2 other = __bfloat1622float2(pair_of(Memory::kShortcut));
          add_product(sums.v[2][i], dz, difference(other, shortcut_mean.v[i]));
        }
      });
    }
    store_part<Wide>(part, stage + Memory::kPassed, own_dz, shape.channels, first,
                     min(Memory::kRows, positions - first));
  });
  sums.add_up(part, static_cast<unsigned>(shape.channels), place, [&](unsigned c, const double(&total)[kSums]) {
    const NormSide& last = arrays.last;
    const NormSide& shortcut = arrays.shortcut;
    finish_backward(last.norm, last.sums, c, shape, total[0], total[1], ranks);
    if constexpr (kHasShortcut) finish_backward(shortcut.norm, shortcut.sums, c, shape, total[0], total[2], ranks);
  });
}

using Depth64 = std::integral_constant<unsigned, 64>;
using Depth128 = std::integral_constant<unsigned, 128>;

/// Calls `body` with the depth as a constant.
template <class Body>
void with_depth(std::size_t depth, Body body) {
  if (depth == Depth64::value) {
    body(Depth64{});
  } else {
    body(Depth128{});
  }
}

int attribute(cudaDeviceAttr of, int device) {
  int value = 0;
  demos::check_cuda(cudaDeviceGetAttribute(&value, of, device), "cudaDeviceGetAttribute");
  return value;
}

/// Whether two blocks with so much memory fit on a multiprocessor; then they may have it.
template <typename... P>
bool make_room(void (*kernel)(P...), unsigned bytes, int device) {
  using demos::check_cuda;
  cudaFuncAttributes own{};
  check_cuda(cudaFuncGetAttributes(&own, kernel), "cudaFuncGetAttributes");
  const auto most = static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  if (own.sharedSizeBytes + bytes > most) return false;
  const auto set = [&](cudaFuncAttribute what, int value) {
    check_cuda(cudaFuncSetAttribute(kernel, what, value), "cudaFuncSetAttribute");
  };
  set(cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  int blocks = 0;
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kProductThreads, bytes),
             "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks >= 2;
}

template <unsigned kDepth>
bool make_room_for_depth(int device) {
  return make_room(product_statistics_kernel<kDepth>, StatisticsMemory<kDepth>::kBytes, device) &&
         make_room(product_sums_block_kernel<kDepth, false>, BlockMemory<kDepth, false>::kBytes, device) &&
         make_room(product_sums_block_kernel<kDepth, true>, BlockMemory<kDepth, true>::kBytes, device);
}

/// As many blocks as stay on the device, or as there are tiles for.
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
  if (attribute(cudaDevAttrComputeCapabilityMajor, device) < 8) return std::nullopt;
  if (!make_room_for_depth<64>(device) || !make_room_for_depth<128>(device)) return std::nullopt;
  return ProductDevice{2 * static_cast<unsigned>(attribute(cudaDevAttrMultiProcessorCount, device))};
}

void product_statistics(const ProductDevice& device, NormShape shape, const Product& product, void* y,
                        const NormPlace& norm, const SumPlace& place, Ranks ranks, CUstream_st* stream) {
  with_depth(product.depth, [&](auto depth) {
    constexpr unsigned kDepth = decltype(depth)::value;
    launch_product<StatisticsMemory<kDepth>>("a product and its statistics", product_statistics_kernel<kDepth>, device,
                                             shape, stream, static_cast<const Element*>(product.x),
                                             static_cast<const Element*>(product.filter), static_cast<Element*>(y),
                                             norm, place, ranks);
  });
}

void product_sums_block(const ProductDevice& device, NormShape shape, const Product& product, const void* g2,
                        const std::uint8_t* passes, void* dz, const NormSide& last, const NormSide* shortcut,
                        const SumPlace& place, Ranks ranks, CUstream_st* stream) {
  const BlockArrays arrays{static_cast<const Element*>(g2), passes, static_cast<Element*>(dz), last,
                           shortcut == nullptr ? last : *shortcut};
  with_depth(product.depth, [&](auto depth) {
    constexpr unsigned kDepth = decltype(depth)::value;
    const auto run = [&](auto has_shortcut) {
      constexpr bool kHasShortcut = decltype(has_shortcut)::value;
      launch_product<BlockMemory<kDepth, kHasShortcut>>(
          "a product and a block's gradient", product_sums_block_kernel<kDepth, kHasShortcut>, device, shape, stream,
          static_cast<const Element*>(product.x), static_cast<const Element*>(product.filter), arrays, place, ranks);
    };
    shortcut == nullptr ? run(std::false_type{}) : run(std::true_type{});
  });
}

}  // namespace resnet::cuda

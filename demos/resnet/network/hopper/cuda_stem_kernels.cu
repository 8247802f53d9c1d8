// The first convolution as a matrix product: see the header. In folded images, the input of a position is 16 channels
// of four neighbouring pixels in each of four lines. The image lies in shared memory in halves of 8 channels. So the
// inputs of neighbouring positions are 16 bytes apart, for each of the four pixels. This is the layout of rows that
// products require, so the kernel does not unfold the image, and writes nothing twice.

#include "demos/resnet/network/hopper/cuda_stem_kernels.hpp"

#include <algorithm>

#include "demos/resnet/network/cuda/cuda_norm_sums.cuh"
#include "demos/resnet/network/hopper/cuda_stem_tiles.cuh"

namespace resnet::cuda {
namespace {

extern __shared__ __align__(1024) std::byte stem_memory[];

/// The layout of the shared memory. A tile is kStemWidth positions of kProductGroups lines. A panel of the filter is a
/// line.
struct StemMemory {
  static constexpr unsigned kStages = 3;
  using Tile = StemTile<kProductGroups>;
  static constexpr unsigned kStageBytes = 2 * Tile::kHalf;
  using FilterLine = Panel<kStemChannels>;
  static constexpr unsigned kFilterBytes = kFoldedKernel * FilterLine::kBytes;
  static_assert(FilterLine::kWidth == kFoldedKernel * kFoldedChannels);
  static constexpr unsigned kOutput = kFilterBytes;
  static constexpr unsigned kTiles = kOutput + StatisticsOutput<kStemWidth>::kBytes;
  static constexpr unsigned kBarriers = kTiles + kStages * kStageBytes;
  static constexpr unsigned kFilterBarrier = kBarriers + 2 * kStages * 8;
  static constexpr unsigned kBytes = kFilterBarrier + 8;
};

struct StemMaps {
  CUtensorMap x;
  CUtensorMap filter;
  CUtensorMap y;
};

/// One thread begins to copy the filter, and all threads wait for the copy.
__device__ void fetch_filter(unsigned shared, const CUtensorMap& filter) {
  const unsigned barrier = shared + StemMemory::kFilterBarrier;
  if (threadIdx.x == 0) {
    barrier_init(barrier, 1);
    barriers_are_made();
    barrier_expect(barrier, StemMemory::kFilterBytes);
#pragma unroll
    for (unsigned line = 0; line < kFoldedKernel; ++line) {
      constexpr unsigned kBytes = StemMemory::FilterLine::kBytes, kWidth = StemMemory::FilterLine::kWidth;
      fetch_box(shared + line * kBytes, filter, line * kWidth, 0, barrier);
    }
  }
  __syncthreads();
  barrier_wait(barrier, 0);
}

__device__ void begin_line(ProductPart<kStemWidth>& product, unsigned pixels, unsigned filter) {
  using Memory = StemMemory;
  const std::uint64_t left = rows_at(filter);
  const std::uint64_t right = matrices_at(pixels, 8 * Memory::Tile::kPixelBytes, Memory::Tile::kHalf);
  products_begin();
#pragma unroll
  for (unsigned line = 0; line < kFoldedKernel; ++line) {
#pragma unroll
    for (unsigned pixel = 0; pixel < kFoldedKernel; ++pixel) {
      const auto of_filter = moved(left, line * Memory::FilterLine::kBytes + pixel * kFoldedChannels * 2);
      const auto of_image = moved(right, line * Memory::Tile::kLineBytes + pixel * Memory::Tile::kPixelBytes);
      line + pixel == 0 ? multiply_add<false>(product.v, of_filter, of_image)
                        : multiply_add<true>(product.v, of_filter, of_image);
    }
  }
}

/// Computes the statistics as product_statistics_kernel does.
__global__ void __launch_bounds__(kProductThreads)
    stem_statistics_kernel(StemShape shape, const __grid_constant__ StemMaps maps, NormPlace norm, SumPlace place,
                           Ranks ranks) {
  using Memory = StemMemory;
  constexpr unsigned kWarps = kProductThreads / kWarp;
  const auto size = static_cast<unsigned>(shape.size_out);
  const auto tile_count = static_cast<unsigned>(shape.rows) * StemMemory::Tile::count_in(size);
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(stem_memory));
  const auto fetch = [=, &maps](unsigned stage, unsigned number, unsigned barrier) {
    barrier_expect(barrier, 2 * Memory::Tile::kHalfBytes);
    Memory::Tile(number, size).fetch_image(shared + Memory::kTiles + stage * Memory::kStageBytes, maps.x, barrier);
  };
  OwnTiles<1, Memory::kStages, kWarps, decltype(fetch)> tiles(tile_count, shared + Memory::kBarriers, fetch);
  fetch_filter(shared, maps.filter);
  const Lane lane;
  StatisticsOutput<kStemWidth> output(lane, shared + Memory::kOutput, ChannelPart(lane, norm.running_mean));
  tiles.for_each([&](unsigned stage, unsigned number) {
    const Memory::Tile tile(number, size);
    ProductPart<kStemWidth> product;
    tiles.fetch_next();
    begin_line(product, shared + Memory::kTiles + stage * Memory::kStageBytes + lane.group * Memory::Tile::kLineBytes,
               shared);
    product.end();
    if (lane.number == 0) tiles.release();
    const unsigned line = tile.row * size + tile.line + lane.group;
    output.write(product, kStemWidth, maps.y, 0, line * size + tile.column);
  });
  const NormShape norm_shape{shape.rows * size * size, kStemChannels};
  output.end().template add_up<kProductGroups, Memory::kBarriers>(
      lane, stem_memory, kStemChannels, place,
      [&](unsigned c, const double(&total)[2]) { finish_statistics(norm, c, norm_shape, total[0], total[1], ranks); });
}

}  // namespace

void make_room_for_stem() {
  static_assert(StemMemory::kBytes <= kMostProductMemory);
  make_room(stem_statistics_kernel, StemMemory::kBytes);
}

void stem_statistics(const ProductDevice& device, const StemShape& shape, const void* x, const void* filter, void* y,
                     const NormPlace& norm, const SumPlace& place, Ranks ranks, CUstream_st* stream) {
  void* const encoder = device.tensor_map_encoder;
  const MappedArray filters{filter, kStemChannels, kFoldedKernel * kFoldedKernel * kFoldedChannels};
  const MappedArray result{y, shape.rows * shape.size_out * shape.size_out, kStemChannels};
  const StemMaps maps{StemMemory::Tile::map_of(encoder, shape, x), map_of_bfloat16(encoder, filters, kStemChannels),
                      map_of_bfloat16(encoder, result, kStemWidth)};
  const std::size_t tiles = shape.rows * StemMemory::Tile::count_in(static_cast<unsigned>(shape.size_out));
  const auto blocks =
      static_cast<unsigned>(std::clamp<std::size_t>(tiles, 1, std::min<std::size_t>(device.blocks, kMostPartials)));
  stem_statistics_kernel<<<blocks, kProductThreads, StemMemory::kBytes, stream>>>(shape, maps, norm, place, ranks);
  demos::check_cuda(cudaGetLastError(), "the first convolution and its statistics");
}

}  // namespace resnet::cuda

// Makes tensor maps with the driver's encoder.

#include "demos/resnet/network/hopper/cuda_tensor_map.hpp"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

namespace resnet::cuda {
namespace {

/// The array of a map. The first dimension is the one whose elements are neighbours.
template <std::size_t kDimensions>
struct Layout {
  CUtensorMapDataType type;
  std::size_t element_bytes;
  std::array<std::size_t, kDimensions> sizes;
  std::array<unsigned, kDimensions> box;
  CUtensorMapSwizzle swizzle;
};

template <std::size_t kDimensions>
CUtensorMap encode(void* encoder, const void* data, const Layout<kDimensions>& layout) {
  std::array<cuuint64_t, kDimensions> sizes{};
  std::array<cuuint64_t, kDimensions> strides{};  // strides[i] is that of dimension i + 1
  std::array<cuuint32_t, kDimensions> box{};
  std::array<cuuint32_t, kDimensions> steps{};
  std::size_t stride = layout.element_bytes;
  for (std::size_t i = 0; i < kDimensions; ++i) {
    sizes[i] = std::max<std::size_t>(layout.sizes[i], 1);  // a map needs sizes from 1; nothing reads an empty array
    strides[i] = stride *= sizes[i];
    box[i] = layout.box[i];
    steps[i] = 1;
  }
  CUtensorMap map{};
  const auto call = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(encoder);
  const CUresult result = call(&map, layout.type, kDimensions, const_cast<void*>(data), sizes.data(), strides.data(),
                               box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, layout.swizzle,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  std::string text = "cuTensorMapEncodeTiled for an array of ";
  for (std::size_t i = kDimensions; i > 0; --i) text += std::to_string(layout.sizes[i - 1]) + (i > 1 ? " x " : "");
  throw std::runtime_error(text + ": CUresult " + std::to_string(result));
}

}  // namespace

void* find_tensor_map_encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
  constexpr unsigned kSince = 12000;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault, &status);
#else
  const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &status);
#endif
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());  // clears the error for later checks
  return error == cudaSuccess && status == cudaDriverEntryPointSuccess ? found : nullptr;
}

CUtensorMap map_of_bfloat16(void* encoder, const MappedArray& array, unsigned box_rows) {
  constexpr unsigned kBoxWidth = 64;
  return encode<2>(encoder, array.data,
                   {.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                    .element_bytes = 2,
                    .sizes = {array.width, array.rows},
                    .box = {kBoxWidth, box_rows},
                    .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

CUtensorMap map_of_bytes(void* encoder, const MappedArray& array, unsigned box_width, unsigned box_rows) {
  return encode<2>(encoder, array.data,
                   {.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                    .element_bytes = 1,
                    .sizes = {array.width, array.rows},
                    .box = {box_width, box_rows},
                    .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE});
}

CUtensorMap map_of_images(void* encoder, const MappedImages& images, const ImageBox& box) {
  const bool is_bytes = images.element_bytes == 1;
  return encode<4>(encoder, images.data,
                   {.type = is_bytes ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                    .element_bytes = images.element_bytes,
                    .sizes = {images.channels, images.size, images.size, images.rows},
                    .box = {box.channels, box.columns, box.lines, 1},
                    .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE});
}

}  // namespace resnet::cuda

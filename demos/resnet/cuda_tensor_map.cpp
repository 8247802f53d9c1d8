// Tensor maps by the driver: see the header.

#include "demos/resnet/cuda_tensor_map.hpp"

#include <cuda_runtime.h>
#include <cudaTypedefs.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace resnet::cuda {
namespace {

CUtensorMap encode(void* encoder, const MappedArray& array, CUtensorMapDataType type, std::size_t element_bytes,
                   unsigned box_width, unsigned box_rows, CUtensorMapSwizzle swizzle) {
  constexpr unsigned kDimensions = 2;
  const cuuint64_t sizes[kDimensions] = {array.width, std::max<std::size_t>(array.rows, 1)};
  const cuuint64_t strides[kDimensions - 1] = {array.width * element_bytes};
  const cuuint32_t box[kDimensions] = {box_width, box_rows};
  const cuuint32_t steps[kDimensions] = {1, 1};
  CUtensorMap map{};
  const auto call = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(encoder);
  const CUresult result = call(&map, type, kDimensions, const_cast<void*>(array.data), sizes, strides, box, steps,
                               CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  throw std::runtime_error("cuTensorMapEncodeTiled for an array of " + std::to_string(array.rows) + " x " +
                           std::to_string(array.width) + ": CUresult " + std::to_string(result));
}

}  // namespace

void* find_tensor_map_encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  constexpr unsigned kSince = 12000;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kSince, cudaEnableDefault, &status);
  return error == cudaSuccess && status == cudaDriverEntryPointSuccess ? found : nullptr;
}

CUtensorMap map_of_bfloat16(void* encoder, const MappedArray& array, unsigned box_rows) {
  constexpr std::size_t kElementBytes = 2;
  constexpr unsigned kBoxWidth = 64;
  return encode(encoder, array, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kElementBytes, kBoxWidth, box_rows,
                CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap map_of_bytes(void* encoder, const MappedArray& array, unsigned box_width, unsigned box_rows) {
  return encode(encoder, array, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, box_width, box_rows, CU_TENSOR_MAP_SWIZZLE_NONE);
}

}  // namespace resnet::cuda

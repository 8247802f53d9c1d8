#pragma once

// Tensor maps: what a kernel is told of an array in device memory that it copies in boxes.

#include <cuda.h>

#include <cstddef>
#include <optional>

namespace resnet::cuda {

/// A row-major array [rows, width].
struct MappedArray {
  const void* data;
  std::size_t rows;
  std::size_t width;
};

/// Images [rows, size, size, 16].
struct MappedImages {
  const void* data;
  std::size_t rows;
  std::size_t size;
};

/// The driver's cuTensorMapEncodeTiled; null where it has none.
void* find_tensor_map_encoder();

/// Boxes of so many rows and 64 elements of 16 bits, swizzled by 128 bytes. The encoder is that of find_tensor_map_encoder.
CUtensorMap map_of_bfloat16(void* encoder, const MappedArray& array, unsigned box_rows);
/// Boxes of so many rows and bytes, a multiple of 16.
CUtensorMap map_of_bytes(void* encoder, const MappedArray& array, unsigned box_width, unsigned box_rows);
/// Boxes of an image's so many lines and columns and 8 of its 16 channels of 16 bits.
CUtensorMap map_of_images(void* encoder, const MappedImages& images, unsigned box_width, unsigned box_lines);

}  // namespace resnet::cuda

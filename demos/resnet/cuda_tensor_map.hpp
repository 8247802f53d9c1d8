#pragma once

// Tensor maps: what a kernel is told of an array in device memory that it copies in boxes.

#include <cuda.h>

#include <cstddef>

namespace resnet::cuda {

/// A row-major array [rows, width].
struct MappedArray {
  const void* data;
  std::size_t rows;
  std::size_t width;
};

/// Images [rows, size, size, channels] of bytes or elements of 16 bits, and so much of one as a box.
struct MappedImages {
  const void* data;
  std::size_t rows;
  std::size_t size;
  std::size_t channels;
  std::size_t element_bytes;
};
struct ImageBox {
  unsigned lines;
  unsigned columns;
  unsigned channels;
};

/// The driver's cuTensorMapEncodeTiled; null where it has none.
void* find_tensor_map_encoder();

/// Boxes of so many rows and 64 elements of 16 bits, swizzled by 128 bytes. The encoder is that of find_tensor_map_encoder.
CUtensorMap map_of_bfloat16(void* encoder, const MappedArray& array, unsigned box_rows);
/// Boxes of so many rows and bytes, a multiple of 16.
CUtensorMap map_of_bytes(void* encoder, const MappedArray& array, unsigned box_width, unsigned box_rows);
/// By channel, column, line and row, as they lie.
CUtensorMap map_of_images(void* encoder, const MappedImages& images, const ImageBox& box);

}  // namespace resnet::cuda

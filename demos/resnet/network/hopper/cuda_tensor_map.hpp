#pragma once

// Tensor maps. A tensor map describes an array in device memory to a kernel that copies boxes of it.

#include <cuda.h>

#include <cstddef>

namespace resnet::cuda {

/// A row-major array [rows, width].
struct MappedArray {
  const void* data;
  std::size_t rows;
  std::size_t width;
};

/// Images [rows, size, size, channels] with elements of 8 or 16 bits. A box is a part of one image.
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

/// The driver's function cuTensorMapEncodeTiled, or null if the driver does not have it.
void* find_tensor_map_encoder();

/// Boxes of `box_rows` rows and 64 elements of 16 bits, swizzled by 128 bytes. `encoder`, here and below, is the result
/// of find_tensor_map_encoder.
CUtensorMap map_of_bfloat16(void* encoder, const MappedArray& array, unsigned box_rows);
/// Boxes of `box_rows` rows and `box_width` bytes, a multiple of 16.
CUtensorMap map_of_bytes(void* encoder, const MappedArray& array, unsigned box_width, unsigned box_rows);
/// Boxes of images. The coordinates of a box are channel, column, line and row.
CUtensorMap map_of_images(void* encoder, const MappedImages& images, const ImageBox& box);

}  // namespace resnet::cuda

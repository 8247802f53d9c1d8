// Headers of .npy files.

#include "common/arrays/npy.hpp"

#include "tests/fuzz/fuzzing.hpp"

namespace {

using namespace syncrun::detail;

/// Checks a header that was read. Written out and read again, it must be the same.
void check(const arrays::NpyHeader& header, std::size_t size) {
  fuzzing::expect(header.data_offset <= size && header.data_offset <= arrays::kLongestNpyHeader,
                  "a header within the bytes");
  for (const std::int64_t extent : header.shape) fuzzing::expect(extent >= 0, "extents from 0");
  fuzzing::accepts(syncrun::ErrorKind::usage, [&] { arrays::npy_data_bytes(header, size); });

  const std::string text = arrays::npy_header(header.dtype, header.shape);
  const arrays::NpyHeader again =
      arrays::parse_npy_header({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  fuzzing::expect(again.dtype == header.dtype && again.shape == header.shape, "a header is read as it was written");
  fuzzing::expect(again.data_offset == text.size() && text.size() % 64 == 0, "elements are aligned");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzzing::accepts(syncrun::ErrorKind::usage, [&] {
    check(arrays::parse_npy_header({reinterpret_cast<const std::byte*>(data), size}), size);
  });
  return 0;
}

// Headers of safetensors files.

#include <string>

#include "libtorch/safetensors_header.hpp"
#include "tests/fuzz/fuzzing.hpp"

namespace {

using namespace syncrun::libtorch::detail;

SafetensorsHeader parse(const void* data, std::size_t size) {
  return parse_safetensors({static_cast<const std::byte*>(data), size}, size, "input");
}

/// Checks a header that was read. Written out and read again, it must be the same.
void check(const SafetensorsHeader& header, std::size_t size) {
  std::uint64_t end = 0;
  for (const StoredTensor& tensor : header.tensors) {
    fuzzing::expect(tensor.begin == end && tensor.end >= tensor.begin, "tensors without gaps");
    fuzzing::expect(stored_bytes(tensor.type, tensor.shape) == tensor.end - tensor.begin, "as many bytes as elements");
    end = tensor.end;
  }
  fuzzing::expect(header.data_at + end == size, "all bytes of the file");

  auto tensors = header.tensors;
  std::string file = make_safetensors_header(tensors, header.metadata);
  file.resize(file.size() + end);
  const SafetensorsHeader again = parse(file.data(), file.size());
  fuzzing::expect(again.tensors.size() == tensors.size() && again.metadata == header.metadata,
                  "a header is read as it was written");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzzing::accepts(syncrun::ErrorKind::usage, [&] { check(parse(data, size), size); });
  return 0;
}

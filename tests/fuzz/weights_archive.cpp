// Archives of torch.save and torch.jit.save: their directory, their pickle and the code of TorchScript.

#include "libtorch/weights_archive.hpp"
#include "tests/fuzz/fuzzing.hpp"

namespace {

using namespace syncrun::libtorch::detail;

/// Checks that all elements of a tensor are in the file.
void check(const ArchivedTensor& tensor, const std::byte* file, std::size_t size) {
  if (!tensor.unread.empty() || tensor.elements.empty()) return;
  const std::byte* begin = tensor.elements.data();
  fuzzing::expect(begin >= file && begin + tensor.elements.size() <= file + size, "elements within the file");
  std::uint64_t last = 0;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i)
    last += static_cast<std::uint64_t>((tensor.shape[i] - 1) * tensor.strides[i]);
  fuzzing::expect((last + 1) * size_of(tensor.type) == tensor.elements.size(), "as many bytes as the strides reach");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* file = reinterpret_cast<const std::byte*>(data);
  fuzzing::accepts(syncrun::ErrorKind::usage, [&] {
    for (const ArchivedTensor& each : read_weights_archive({file, size}, "input")) check(each, file, size);
  });
  return 0;
}

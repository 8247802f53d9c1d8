// IDX files, plain and gzipped, as images and as labels.

#include "demos/common/idx.hpp"

#include "tests/fuzz/fuzzing.hpp"

namespace {

template <class Read>
void read(Read read) {
  try {
    read();
  } catch (const demos::IdxError& error) {
    fuzzing::expect(*error.what() != '\0', "an error without words");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzzing::MemoryFile file(data, size);
  read([&] {
    const demos::IdxImages images = demos::read_idx_images(file.path());
    fuzzing::expect(images.pixels.size() == images.rows * images.height * images.width, "as many pixels as it says");
    fuzzing::expect(!images.pixels.empty(), "at least one pixel");
  });
  read([&] {
    for (const std::uint8_t label : demos::read_idx_labels(file.path())) fuzzing::expect(label <= 9, "a label up to 9");
  });
  return 0;
}

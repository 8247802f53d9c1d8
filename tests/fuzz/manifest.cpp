// The manifest of a checkpoint, which is a text file.

#include "master/checkpoint/manifest.hpp"

#include "tests/fuzz/fuzzing.hpp"

using namespace syncrun::detail;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzzing::accepts(syncrun::ErrorKind::usage, [&] {
    const master::checkpoint::Manifest manifest = master::checkpoint::parse_manifest(fuzzing::text_of(data, size));
    const master::checkpoint::Manifest again =
        master::checkpoint::parse_manifest(master::checkpoint::to_text(manifest));
    fuzzing::expect(
        again.arrays == manifest.arrays && again.values == manifest.values && again.folder_id == manifest.folder_id,
        "it is read as it was written");
    for (const auto& array : manifest.arrays)
      master::checkpoint::check_name(array.name);  // it becomes a part of a file name
  });
  return 0;
}

// The description of a helper process: any file, a file with a valid beginning, and descriptions written and read back.

#include "common/protocol/helper_spec.hpp"

#include <algorithm>
#include <cstring>

#include "tests/fuzz/fuzzing.hpp"

namespace {

using namespace syncrun::detail;

void read(const void* bytes, std::size_t count) {
  const fuzzing::MemoryFile file(bytes, count);
  fuzzing::accepts(syncrun::ErrorKind::system, [&] {
    const protocol::ReceivedSpec received = protocol::read_spec(file.descriptor());
    fuzzing::expect(received.arguments.size() + sizeof(protocol::HelperSpec) <= count,
                    "no more arguments than the file holds");
  });
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read(data, size);

  // A description whose length of arguments is the input, followed by some bytes.
  constexpr std::size_t kRoom = 64;
  std::vector<std::byte> bytes(sizeof(protocol::HelperSpec) + kRoom);
  protocol::HelperSpec spec{};
  spec.magic = protocol::kMagic;
  if (size != 0) std::memcpy(&spec.arguments_bytes, data, std::min(size, sizeof(spec.arguments_bytes)));
  std::memcpy(bytes.data(), &spec, sizeof(spec));
  read(bytes.data(), bytes.size());

  const auto* arguments = reinterpret_cast<const std::byte*>(data);
  const protocol::ReceivedSpec received = protocol::read_spec(protocol::write_spec({}, {arguments, size}));
  fuzzing::expect(std::equal(received.arguments.begin(), received.arguments.end(), arguments, arguments + size),
                  "arguments arrive as they were written");
  return 0;
}

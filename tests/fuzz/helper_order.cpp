// The order of a helper process: any file, one that begins as an order does, and orders there and back.

#include "common/helper_order.hpp"

#include <algorithm>
#include <cstring>

#include "tests/fuzz/fuzzing.hpp"

namespace {

using namespace syncrun::detail;

void read(const void* bytes, std::size_t count) {
  const fuzzing::MemoryFile file(bytes, count);
  fuzzing::accepts(syncrun::ErrorKind::system, [&] {
    const ReceivedOrder received = read_order(file.descriptor());
    fuzzing::expect(received.arguments.size() + sizeof(HelperOrder) <= count, "no more arguments than the file holds");
  });
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read(data, size);

  // The bytes that decide, and room behind them.
  constexpr std::size_t kRoom = 64;
  std::vector<std::byte> bytes(sizeof(HelperOrder) + kRoom);
  HelperOrder order{};
  order.magic = kMagic;
  if (size != 0) std::memcpy(&order.arguments_bytes, data, std::min(size, sizeof(order.arguments_bytes)));
  std::memcpy(bytes.data(), &order, sizeof(order));
  read(bytes.data(), bytes.size());

  const auto* arguments = reinterpret_cast<const std::byte*>(data);
  const ReceivedOrder received = read_order(write_order({}, {arguments, size}));
  fuzzing::expect(std::equal(received.arguments.begin(), received.arguments.end(), arguments, arguments + size),
                  "arguments arrive as they were written");
  return 0;
}

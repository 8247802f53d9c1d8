#include "launcher/calls/system_commands.hpp"

#include <cerrno>

#include "syncrun/error.hpp"

namespace syncrun::detail {

void SystemCommands::give_back_pages() {
  if (!devices_.kinds().has(DeviceKind::cuda)) return;
  run_system("unpin", "", [](CommandHead& command, InFlight&) { command.begin<UnpinPayload>(); });
  heap().trim();
}

std::uint64_t SystemCommands::allocate(std::size_t bytes, SharedHeap::Contents contents, std::string_view what) {
  try {
    return heap().allocate(bytes, contents, what);
  } catch (const Error& error) {
    if (error.native_code() != ENOMEM || !devices_.kinds().has(DeviceKind::cuda)) throw;
  }
  give_back_pages();
  return heap().allocate(bytes, contents, what);
}

}  // namespace syncrun::detail

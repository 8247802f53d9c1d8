// Settings from environment variables. Each line of the input is the value of one, in a fixed order.

#include "master/settings/settings.hpp"

#include <array>

#include "common/os/environment.hpp"
#include "common/os/segment.hpp"
#include "common/text/log.hpp"
#include "tests/fuzz/fuzzing.hpp"

namespace {

using namespace syncrun::detail;

constexpr std::array kVariables{environment::kTimeout,   environment::kStartTimeout, environment::kDevices,
                                environment::kProcesses, environment::kLogLevel,     environment::kReserveBytes,
                                environment::kContexts};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  const auto lines = fuzzing::lines_of(fuzzing::text_of(data, size));
  for (std::size_t i = 0; i < kVariables.size(); ++i) {
    if (i < lines.size()) ::setenv(kVariables[i], lines[i].c_str(), 1);
    else ::unsetenv(kVariables[i]);
  }
  fuzzing::accepts(syncrun::ErrorKind::usage, [] {
    const master::settings::Settings settings = master::settings::resolve_settings({});
    constexpr os::Milliseconds kLongest{std::int64_t{1'000'000'000} * 1000};
    for (const os::Milliseconds limit : {settings.call_timeout, settings.start_timeout}) {
      fuzzing::expect(limit >= os::Milliseconds(0) && limit <= kLongest, "a time from 0 to 1e9 seconds");
    }
    fuzzing::expect(text::parse_log_level(text::to_string(settings.log_level)) == settings.log_level,
                    "a level's name is read back");
  });
  fuzzing::accepts(syncrun::ErrorKind::usage, [] { os::default_reservation_bytes(); });
  return 0;
}

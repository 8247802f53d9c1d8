#pragma once

// Time limits of tests that also run with a sanitizer.

namespace syncrun::test {

/// How many times as long a test allows for real work in builds with a sanitizer. There, the start of a process takes a tenth
/// of a second, its end too, and three test programs run on two cores.
#if defined(SYNCRUN_ADDRESS_SANITIZER) || defined(SYNCRUN_THREAD_SANITIZER)
inline constexpr int kSlowdown = 4;
#else
inline constexpr int kSlowdown = 1;
#endif

}  // namespace syncrun::test

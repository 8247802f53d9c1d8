#include "demos/common/cuda_build.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>

namespace demos {

namespace {

bool is_handled(int signal) {
  struct sigaction present {};
  return ::sigaction(signal, nullptr, &present) == 0 && present.sa_handler != SIG_DFL && present.sa_handler != SIG_IGN;
}

/// Returns only if it fails. In agents and workers, Syncrun has handled the signals that tell a job to
/// stop since its library was loaded. The other program begins with the default action, which would end it. So they are
/// blocked until its library handles and unblocks them.
void execute(const char* program, char** argv) {
  constexpr std::array kStopSignals{SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
  sigset_t blocked;
  sigset_t before;
  ::sigemptyset(&blocked);
  if (std::any_of(kStopSignals.begin(), kStopSignals.end(), is_handled)) {
    for (const int signal : kStopSignals) ::sigaddset(&blocked, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  ::execv(program, argv);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

void run_cuda_build(char** argv) {
  std::error_code unknown;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", unknown);
  const auto other = self.parent_path() / DEMOS_CUDA_PROGRAMS / self.filename();
  if (::access(other.c_str(), X_OK) != 0) return;
  // The CUDA part of Syncrun requires the same libraries as the program. Without them, the loader would end the program.
  if (::dlopen(DEMOS_CUDA_PART, RTLD_LAZY | RTLD_LOCAL) == nullptr) return;
  execute(other.c_str(), argv);
}

}  // namespace demos

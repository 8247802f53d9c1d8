#include "demos/common/cuda_build.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

namespace demos {

namespace {

bool is_handled(int signal) {
  struct sigaction present {};
  return ::sigaction(signal, nullptr, &present) == 0 && present.sa_handler != SIG_DFL && present.sa_handler != SIG_IGN;
}

/// Returns only if it fails, and then the reason. In agents and workers, Syncrun has handled the signals that tell a job to
/// stop since its library was loaded. The other program begins with the default action, which would end it. So they are
/// blocked until its library handles and unblocks them.
std::string execute(const char* program, char** argv) {
  constexpr std::array kStopSignals{SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
  sigset_t blocked;
  sigset_t before;
  ::sigemptyset(&blocked);
  if (std::any_of(kStopSignals.begin(), kStopSignals.end(), is_handled)) {
    for (const int signal : kStopSignals) ::sigaddset(&blocked, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  ::execv(program, argv);
  std::string why = std::strerror(errno);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return why;
}

}  // namespace

std::string run_cuda_build(char** argv, const char* library) {
  std::error_code unknown;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", unknown);
  const auto other = self.parent_path() / DEMOS_CUDA_PROGRAMS / self.filename();
  if (::access(other.c_str(), X_OK) != 0) return {};
  // Without these libraries, the loader would end the program. The CUDA part requires all others.
  const auto can_load = [](const char* name) { return ::dlopen(name, RTLD_LAZY | RTLD_LOCAL) != nullptr; };
  const bool can_run = (library == nullptr || can_load(library)) && can_load(DEMOS_CUDA_PART);
  const std::string why = can_run ? execute(other.c_str(), argv) : ::dlerror();
  const char* const devices = std::getenv("SYNCRUN_DEVICES");
  if (devices == nullptr || std::string_view(devices).find("cuda") == std::string_view::npos) return {};
  return "cannot run " + other.string() + ": " + why +
         ". Install what is missing, or use CPU devices: syncrun --devices cpu0";
}

}  // namespace demos

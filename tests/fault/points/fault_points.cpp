#include "tests/fault/points/fault_points.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>

#include "common/text/errors.hpp"

namespace syncrun::detail {

namespace {

constexpr const char* kVariable = "SYNCRUN_FAULT";

constexpr std::array<std::string_view, 11> kWays{"kill",   "segv", "stop",   "exit0",  "exit3", "exception",
                                                 "number", "loop", "memory", "shared", "hold"};
constexpr std::array kPhases{protocol::Phase::spawn,        protocol::Phase::attach,       protocol::Phase::device,
                             protocol::Phase::communicator, protocol::Phase::dependencies, protocol::Phase::inputs,
                             protocol::Phase::function,     protocol::Phase::vote,         protocol::Phase::reduction,
                             protocol::Phase::close,        protocol::Phase::collective,   protocol::Phase::idle};

[[noreturn]] void refuse(std::string_view text, const std::string& what) {
  text::throw_usage(std::string(kVariable) + "=\"" + std::string(text) + "\": " + what);
}

std::uint64_t number_in(std::string_view text, std::string_view value) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size())
    refuse(text, "'" + std::string(value) + "' is no number");
  return number;
}

/// Lets the worker wait here while a test makes something else fail.
void hold() {
  const char* const file = std::getenv("SYNCRUN_FAULT_UNTIL");
  while (file == nullptr || ::access(file, F_OK) != 0) ::usleep(1000);
}

/// Makes an allocation fail because the system refuses the memory.
void run_out_of_memory() {
#if defined(SYNCRUN_ADDRESS_SANITIZER) || defined(SYNCRUN_THREAD_SANITIZER)
  throw std::bad_alloc();  // the allocator of a sanitizer ends the process if it gets no memory
#else
  rlimit before{};
  ::getrlimit(RLIMIT_AS, &before);
  struct Restore {
    rlimit limit;
    ~Restore() { ::setrlimit(RLIMIT_AS, &limit); }
  } const restore{before};
  const rlimit none{0, before.rlim_max};
  ::setrlimit(RLIMIT_AS, &none);
  constexpr std::size_t kMuch = std::size_t{1} << 30U;
  ::operator delete(::operator new(kMuch));
#endif
}

}  // namespace

Fault Fault::parse(std::string_view text) {
  Fault fault;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
    const auto equals = item.find('=');
    if (equals == std::string_view::npos) refuse(text, "'" + std::string(item) + "' is no name=value");
    const std::string_view name = item.substr(0, equals);
    const std::string_view value = item.substr(equals + 1);
    if (name == "rank") {
      fault.rank = static_cast<int>(number_in(text, value));
    } else if (name == "call") {
      fault.call = number_in(text, value);
    } else if (name == "phase") {
      const auto* const found = std::find_if(
          kPhases.begin(), kPhases.end(), [&](protocol::Phase phase) { return protocol::to_string(phase) == value; });
      if (found == kPhases.end()) refuse(text, "there is no phase '" + std::string(value) + "'");
      fault.phase = *found;
    } else if (name == "way") {
      const auto* const found = std::find(kWays.begin(), kWays.end(), value);
      if (found == kWays.end()) refuse(text, "there is no way '" + std::string(value) + "'");
      fault.way = static_cast<FaultWay>(found - kWays.begin());
    } else {
      refuse(text, "there is no '" + std::string(name) + "'");
    }
  }
  return fault;
}

void Fault::strike(std::uint64_t command) const {
  const std::string what = "injected fault: " + std::string(kWays[static_cast<std::size_t>(way)]) + " on rank " +
                           std::to_string(rank) + " in phase " + std::string(protocol::to_string(phase));
  std::fprintf(stderr, "%s, call %llu, at %lld ns\n", what.c_str(), static_cast<unsigned long long>(command),
               static_cast<long long>(os::Clock::now().time_since_epoch().count()));
  std::fflush(stderr);
  switch (way) {
    case FaultWay::kill: ::kill(::getpid(), SIGKILL); break;
    case FaultWay::segv:
      ::signal(SIGSEGV, SIG_DFL);
      ::raise(SIGSEGV);
      break;
    case FaultWay::stop: ::kill(::getpid(), SIGSTOP); return;
    case FaultWay::exit0: ::_exit(0);
    case FaultWay::exit3: ::_exit(3);
    case FaultWay::exception: throw std::runtime_error(what);
    case FaultWay::number: throw 17;
    case FaultWay::loop: break;
    case FaultWay::memory: return run_out_of_memory();
    case FaultWay::hold: return hold();
    case FaultWay::shared:
      throw Error(ErrorKind::system, what + " requires 4096 bytes of shared memory; all are in use", ENOMEM);
  }
  for (volatile bool goes_on = true; goes_on;) {
  }
}

namespace {

class FaultPoints final : public protocol::PhaseHook {
 public:
  explicit FaultPoints(const Fault& fault) : fault_(fault) {}
  int rank() const noexcept { return fault_.rank; }
  void at(std::uint64_t command, protocol::Phase phase) const override {
    if (fault_.is_at(command, phase)) fault_.strike(command);
  }

 private:
  Fault fault_;
};

}  // namespace

const protocol::PhaseHook* protocol::phase_hook_of(int rank) {
  static const std::unique_ptr<const FaultPoints> points = []() -> std::unique_ptr<const FaultPoints> {
    const char* text = std::getenv(kVariable);
    return text == nullptr ? nullptr : std::make_unique<const FaultPoints>(Fault::parse(text));
  }();
  return points != nullptr && points->rank() == rank ? points.get() : nullptr;
}

}  // namespace syncrun::detail

#include "common/text/errors.hpp"

#include <cxxabi.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <system_error>
#include <typeinfo>
#include <utility>

#include "common/text/joined.hpp"
#include "syncrun/array.hpp"
#include "syncrun/detail/handle.hpp"
#include "syncrun/dtype.hpp"
#include "syncrun/reduction.hpp"
#include "syncrun/version.hpp"

namespace syncrun {

std::string_view to_string(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::usage: return "usage";
    case ErrorKind::function: return "function";
    case ErrorKind::system: return "system";
    case ErrorKind::cuda: return "cuda";
    case ErrorKind::nccl: return "nccl";
    case ErrorKind::worker_lost: return "worker lost";
    case ErrorKind::timeout: return "timeout";
  }
  return "unknown";
}

Error::Error(ErrorKind kind, const std::string& message, int native_code, std::source_location where)
    : Error(kind, message, Failure{}, native_code, where) {}

Error::Error(ErrorKind kind, const std::string& message, Failure failure, int native_code, std::source_location where)
    // Without a text, the kind is the text. A program and this library may each have a C++ library of their own, and then
    // one must not free the empty text of the other.
    : std::runtime_error(message.empty() ? std::string(to_string(kind)) : message),
      kind_(kind),
      native_code_(native_code),
      failure_(std::make_shared<const Failure>(std::move(failure))),
      where_(where) {}

std::string_view to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::float16: return "float16";
    case DType::bfloat16: return "bfloat16";
    case DType::float32: return "float32";
    case DType::float64: return "float64";
    case DType::int8: return "int8";
    case DType::int16: return "int16";
    case DType::int32: return "int32";
    case DType::int64: return "int64";
    case DType::uint8: return "uint8";
    case DType::uint16: return "uint16";
    case DType::uint32: return "uint32";
    case DType::uint64: return "uint64";
    case DType::boolean: return "bool";
  }
  return "unknown";
}

std::string_view to_string(Reduction reduction) noexcept {
  switch (reduction) {
    case Reduction::avg: return "avg";
    case Reduction::sum: return "sum";
    case Reduction::min: return "min";
    case Reduction::max: return "max";
    case Reduction::prod: return "prod";
    case Reduction::gather: return "gather";
  }
  return "unknown";
}

std::string to_string(std::span<const std::int64_t> extents) {
  return "[" + detail::text::joined(extents, ", ", [](std::int64_t extent) { return std::to_string(extent); }) + "]";
}

const char* version() noexcept { return SYNCRUN_VERSION; }

namespace detail::text {

std::string limit_text(int resource) {
  struct Option {
    const char* name;
    rlim_t unit;
    const char* unit_text;
  };
  const Option option = [&]() -> Option {
    switch (resource) {
      case RLIMIT_NOFILE: return {"-n", 1, ""};
      case RLIMIT_NPROC: return {"-u", 1, ""};
      case RLIMIT_FSIZE: return {"-f", 1024, " KiB"};
      case RLIMIT_DATA: return {"-d", 1024, " KiB"};
      default: return {"-v", 1024, " KiB"};
    }
  }();
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) limit.rlim_cur = RLIM_INFINITY;
  const bool is_unlimited = limit.rlim_cur == RLIM_INFINITY;
  const std::string value =
      is_unlimited ? "unlimited" : std::to_string(limit.rlim_cur / option.unit) + option.unit_text;
  return std::string("ulimit ") + option.name + " is " + value;
}

namespace {
/// What the user can do about it, if a limit is the likely reason for the error. Otherwise empty.
std::string hint_of(int code) {
  switch (code) {
    case EMFILE: return " (" + text::limit_text(RLIMIT_NOFILE) + "; raise it, or take fewer workers)";
    case E2BIG: return " (a worker has the program's arguments and environment, and a few variables more)";
    default: return {};
  }
}
}  // namespace

void throw_errno(const std::string& what, int code, std::source_location where) {
  throw Error(ErrorKind::system, what + ": " + std::generic_category().message(code) + hint_of(code), code, where);
}

void throw_no_process(const std::string& what, int code, std::source_location where) {
  if (code != EAGAIN) text::throw_errno(what, code, where);
  throw Error(ErrorKind::system,
              what + ": " + std::generic_category().message(code) + " (" + text::limit_text(RLIMIT_NPROC) +
                  ", processes and threads of the user; the control group may have a limit of its own)",
              code, where);
}

Error descriptors_closed(const std::string& what, std::source_location where) {
  return {ErrorKind::system,
          "the program has closed file descriptors that Syncrun uses (" + what +
              "): while a session, a queue or a task is open, close only those that the program has opened itself "
              "(closefrom and close_range close all)",
          EBADF, where};
}

namespace {

/// The bytes of a thread's stack (ulimit -s, unless the program has chosen a size). 0 if unknown.
std::size_t stack_bytes() {
  pthread_attr_t attributes;
  std::size_t bytes = 0;
  if (::pthread_getattr_default_np(&attributes) != 0) return 0;
  ::pthread_attr_getstacksize(&attributes, &bytes);
  ::pthread_attr_destroy(&attributes);
  return bytes;
}

/// Whether this process can map this much private memory, as for a stack.
bool can_be_mapped(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return false;
  ::munmap(memory, bytes);
  return true;
}

}  // namespace

void throw_no_thread(int code, std::source_location where) {
  const std::string what = "cannot start a thread";
  const std::size_t bytes = stack_bytes();
  // pthread_create(3) reports EAGAIN both for a limit on processes and for a lack of memory.
  if (code != EAGAIN || bytes == 0 || can_be_mapped(bytes)) text::throw_no_process(what, code, where);
  throw Error(ErrorKind::system,
              what + ": there is no memory for its stack of " + std::to_string(bytes / 1024) + " KiB (" +
                  text::limit_text(RLIMIT_DATA) + ", " + text::limit_text(RLIMIT_AS) +
                  "; raise them, or set a smaller stack with ulimit -s)",
              ENOMEM, where);
}

void throw_usage(const std::string& message, std::source_location where) {
  throw Error(ErrorKind::usage, message, 0, where);
}

}  // namespace detail::text

namespace detail {

void throw_moved_from(const char* type) {
  text::throw_usage(std::string("this ") + type +
                    " was moved from, and refers to nothing: use the one that it was moved to");
}

}  // namespace detail

namespace detail::text {

namespace {

std::string demangled(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(mangled, nullptr, nullptr, &status),
                                                         &std::free);
  return name ? name.get() : mangled;
}

/// The text of the exception alone, without those that it contains.
std::string own_text_of(const std::exception& error) {
  const char* const text = error.what();
  if (text != nullptr) return text;
  return "an exception of type " + demangled(typeid(error).name()) + " without a text (what() is null)";
}

/// The text that was thrown, with the type of what was thrown.
std::string thrown(std::string_view text) {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  std::string what = "an exception that is not a std::exception";
  if (type != nullptr) what += ", of type " + demangled(type->name());
  return text.empty() ? what : what + ": " + std::string(text);
}

/// The text of the exception that is being handled. Users throw texts and numbers, too.
std::string text_of_something_else() {
  try {
    throw;
  } catch (const std::string& text) {
    return thrown(text);
  } catch (const char* text) {
    return thrown(text == nullptr ? "" : text);
  } catch (int number) {
    return thrown(std::to_string(number));
  } catch (...) {
    return thrown("");
  }
}

}  // namespace

std::string full_text_of(const std::exception& error) {
  constexpr int kMostNested = 10;
  std::string text = own_text_of(error);
  const auto* nested = dynamic_cast<const std::nested_exception*>(&error);
  std::exception_ptr inner = nested == nullptr ? nullptr : nested->nested_ptr();
  for (int depth = 0; inner && depth < kMostNested; ++depth) {
    text += ": ";
    try {
      std::rethrow_exception(std::exchange(inner, nullptr));
    } catch (const std::exception& cause) {
      text += own_text_of(cause);
      nested = dynamic_cast<const std::nested_exception*>(&cause);
      if (nested != nullptr) inner = nested->nested_ptr();
    } catch (...) {
      text += text_of_something_else();
    }
  }
  return text;
}

std::string describe_current_exception(const char* who_threw) {
  try {
    throw;
  } catch (const std::exception& error) {
    return text::full_text_of(error);
  } catch (...) {
    return who_threw + text_of_something_else();
  }
}

Error as_error(const std::exception_ptr& exception, ErrorKind otherwise) {
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return error;
  } catch (...) {
    return {otherwise, text::describe_current_exception()};
  }
}

std::string signal_name(int signal) {
  const char* abbreviation = sigabbrev_np(signal);
  if (abbreviation == nullptr) return "signal " + std::to_string(signal);
  std::string text = std::string("SIG") + abbreviation;
  if (const char* description = sigdescr_np(signal)) text += std::string(" (") + description + ")";
  return text;
}

}  // namespace detail::text
}  // namespace syncrun

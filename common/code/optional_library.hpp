#pragma once

// A library that is loaded at run time, and may be missing.

#include <dlfcn.h>

namespace syncrun::detail::code {

class OptionalLibrary {
 public:
  /// Loads the library. It stays loaded afterwards.
  explicit OptionalLibrary(const char* name) noexcept
      : library_(::dlopen(name, RTLD_NOW | RTLD_LOCAL)), has_all_(library_ != nullptr) {}

  /// Sets `function` to the function of this name. Sets it to null if the library is missing or lacks the function.
  template <class Function>
  void find(Function*& function, const char* name) noexcept {
    function = library_ == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(library_, name));
    has_all_ = has_all_ && function != nullptr;
  }
  /// True if the library is there and has every function that was looked up so far.
  bool has_all() const noexcept { return has_all_; }

 private:
  void* library_;
  bool has_all_;
};

}  // namespace syncrun::detail::code

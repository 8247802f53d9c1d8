#include "master/doctor/probe/cuda_calls.hpp"

#include <dlfcn.h>

#include <initializer_list>
#include <stdexcept>
#include <string>

namespace syncrun::detail::master::doctor::probe {

namespace {

void* loaded(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (void* const library = ::dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  }
  throw std::runtime_error(std::string("this process has not loaded ") + *names.begin());
}

template <class Function>
void find(Function*& function, void* library, const char* name) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function == nullptr) throw std::runtime_error(std::string("there is no function ") + name);
}

}  // namespace

CudaCalls::CudaCalls() {
  void* const runtime = loaded({"libcudart.so.13", "libcudart.so.12"});
  find(malloc_host, runtime, "cudaMallocHost");
  find(free_host, runtime, "cudaFreeHost");
  find(copy_async, runtime, "cudaMemcpyAsync");
  find(synchronize, runtime, "cudaStreamSynchronize");
  find(multiply, loaded({"libcublas.so.13", "libcublas.so.12"}), "cublasSgemm_v2");
}

void check_cuda(int code, const char* function) {
  if (code != 0) throw std::runtime_error(std::string(function) + " failed with code " + std::to_string(code));
}

}  // namespace syncrun::detail::master::doctor::probe

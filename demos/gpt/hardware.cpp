#include "demos/gpt/hardware.hpp"

#include <cstdint>
#include <cstring>
#include <span>
#ifdef GPT_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

namespace gpt {
namespace {

namespace sr = syncrun;

sr::Gather<std::uint8_t, 1> name_of_cpu(sr::CpuWorker&) { return {std::span<const std::uint8_t>(), sr::Shape<1>(0)}; }

sr::Gather<std::uint8_t, 1> name_of_gpu(sr::CudaWorker&) {
#ifdef GPT_HAVE_CUDA
  int device = 0;
  cudaDeviceProp properties;
  if (::cudaGetDevice(&device) == cudaSuccess && ::cudaGetDeviceProperties(&properties, device) == cudaSuccess) {
    const std::size_t length = ::strnlen(properties.name, sizeof(properties.name));
    return {std::span(reinterpret_cast<const std::uint8_t*>(properties.name), length), sr::Shape<1>(length)};
  }
#endif
  return {std::span<const std::uint8_t>(), sr::Shape<1>(0)};
}

}  // namespace

std::string hardware_name(sr::Session& session) {
  const auto name = session.function(name_of_cpu, name_of_gpu).on_rank(0)();
  const auto letters = name.span();
  return {letters.begin(), letters.end()};
}

}  // namespace gpt

// Sessions with CUDA devices, also with CPU devices beside them.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <type_traits>

#include "tests/random/cpu_kind.hpp"
#include "tests/random/functions.hpp"
#include "tests/support/gpus.hpp"

namespace random_test {
namespace {

constexpr unsigned kThreads = 128;

template <class F>
__global__ void for_each(std::int64_t count, F f) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) f(i);
}

__global__ void wait_for(long long ns) {
  long long begin = 0;
  long long now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - begin < ns);
}

struct Cuda {
  using Worker = sr::CudaWorker;

  template <class F>
  static void run(Worker& worker, std::int64_t count, const F& f) {
    if (count == 0) return;
    for_each<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, worker.stream()>>>(count, f);
    check_launch();
  }
  template <class T>
  __host__ __device__ static double load(const T* elements, std::int64_t i) {
    if constexpr (std::is_same_v<T, sr::bfloat16>) {
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(elements)[i]);
    } else if constexpr (std::is_same_v<T, sr::float16>) {
      return __half2float(reinterpret_cast<const __half*>(elements)[i]);
    } else {
      return static_cast<double>(elements[i]);
    }
  }
  template <class T>
  __host__ __device__ static void store(T* elements, std::int64_t i, double number) {
    if constexpr (std::is_same_v<T, sr::bfloat16>) {
      reinterpret_cast<__nv_bfloat16*>(elements)[i] = __float2bfloat16(static_cast<float>(number));
    } else if constexpr (std::is_same_v<T, sr::float16>) {
      reinterpret_cast<__half*>(elements)[i] = __float2half(static_cast<float>(number));
    } else {
      elements[i] = static_cast<T>(number);
    }
  }
  static void spin(Worker& worker, int us) {
    wait_for<<<1, 1, 0, worker.stream()>>>(1000LL * us);
    check_launch();
  }
  template <class Out, class T>
  static Out number(Worker&, const T* place) {
    return Out::in_device_memory(place);
  }
  template <class F>
  static auto replayed(F body) {
    return sr::replayable(body);
  }

 private:
  static void check_launch() {
    const cudaError_t code = cudaGetLastError();
    if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
  }
};

}  // namespace

AllFunctions all_functions_of(sr::Session& session) { return functions_for<Cpu, Cuda>(session); }
RanksOfRows ranks_of_rows_in(sr::Session& session) { return session.function(ranks_of_rows<Cpu>, ranks_of_rows<Cuda>); }

std::vector<std::string> device_lists(int gpus) {
  if (gpus > syncrun::test::gpus_present()) return {};
  if (gpus == 1) return {"cuda0", "cuda0,cpu0", "cpu0,cuda0"};
  return {"cuda0,cuda1", "cuda0,cuda1", "cuda1,cpu0,cuda0"};
}
/// A session with GPUs takes seconds to open.
int programs_per_session() { return 250; }

}  // namespace random_test

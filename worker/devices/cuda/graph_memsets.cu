#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/devices/cuda/check.hpp"
#include "worker/devices/cuda/graph_memsets.hpp"

namespace syncrun::detail::worker::devices::cuda {

namespace {

constexpr int kThreads = 256;
constexpr std::size_t kMostBytes = std::size_t{1} << 20U;

/// What a memset writes: `pattern`, from its lowest byte on, again and again.
struct Filling {
  unsigned char* to;
  std::size_t bytes;
  unsigned pattern;
};

__global__ void __launch_bounds__(kThreads) set_kernel(Filling filling) {
  const std::size_t threads = std::size_t{gridDim.x} * kThreads;
  const std::size_t thread = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  const unsigned pattern = filling.pattern;
  if ((reinterpret_cast<std::uintptr_t>(filling.to) | filling.bytes) % sizeof(uint4) == 0) {
    auto* const to = reinterpret_cast<uint4*>(filling.to);
    for (std::size_t i = thread; i < filling.bytes / sizeof(uint4); i += threads)
      to[i] = make_uint4(pattern, pattern, pattern, pattern);
    return;
  }
  for (std::size_t i = thread; i < filling.bytes; i += threads)
    filling.to[i] = static_cast<unsigned char>(pattern >> (8 * (i % sizeof(pattern))));
}

/// The value of an element of a memset, repeated in four bytes.
unsigned pattern_of(const cudaMemsetParams& memset) {
  if (memset.elementSize == 1) return (memset.value & 0xffU) * 0x01010101U;
  if (memset.elementSize == 2) return (memset.value & 0xffffU) * 0x00010001U;
  return memset.value;
}

/// True if `code` is success. A failure is forgotten: the memset then stays in the graph.
bool succeeded(cudaError_t code) {
  if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
  return code == cudaSuccess;
}

std::optional<Filling> filling_of(cudaGraphNode_t node) {
  cudaMemsetParams memset{};
  if (!succeeded(cudaGraphMemsetNodeGetParams(node, &memset))) return std::nullopt;
  const std::size_t row_bytes = memset.width * memset.elementSize;
  const bool is_one_piece = memset.height == 1 || memset.pitch == row_bytes;
  const std::size_t bytes = row_bytes * memset.height;
  if (!is_one_piece || bytes == 0 || bytes > kMostBytes) return std::nullopt;
  return Filling{static_cast<unsigned char*>(memset.dst), bytes, pattern_of(memset)};
}

// The functions that list the edges of a node. Those of CUDA 12.0 to 12.2 list its neighbours. They fail if an edge is
// not an ordinary one. From CUDA 12.3 on, they say what each edge is, and fail with an older driver.
#if CUDART_VERSION >= 12030
using Edge = cudaGraphEdgeData;
/// Whether a node begins when the other one has ended.
bool is_ordinary(const Edge& edge) {
  return edge.from_port == 0 && edge.to_port == 0 && edge.type == cudaGraphDependencyTypeDefault;
}
#if CUDART_VERSION >= 13000
constexpr auto get_before = &cudaGraphNodeGetDependencies;
constexpr auto get_after = &cudaGraphNodeGetDependentNodes;
#else
constexpr auto get_before = &cudaGraphNodeGetDependencies_v2;
constexpr auto get_after = &cudaGraphNodeGetDependentNodes_v2;
#endif
#else
struct Edge {};
bool is_ordinary(const Edge&) { return true; }
cudaError_t get_before(cudaGraphNode_t node, cudaGraphNode_t* nodes, Edge*, std::size_t* count) {
  return cudaGraphNodeGetDependencies(node, nodes, count);
}
cudaError_t get_after(cudaGraphNode_t node, cudaGraphNode_t* nodes, Edge*, std::size_t* count) {
  return cudaGraphNodeGetDependentNodes(node, nodes, count);
}
#endif

using Nodes = std::vector<cudaGraphNode_t>;

/// The nodes before or after a node, if all edges to them are ordinary. `get` is get_before or get_after.
template <class Get>
std::optional<Nodes> neighbours(cudaGraphNode_t node, Get get) {
  std::size_t count = 0;
  if (!succeeded(get(node, nullptr, nullptr, &count))) return std::nullopt;
  Nodes nodes(count);
  std::vector<Edge> edges(count);
  if (count != 0 && !succeeded(get(node, nodes.data(), edges.data(), &count))) return std::nullopt;
  if (!std::all_of(edges.begin(), edges.end(), is_ordinary)) return std::nullopt;
  return nodes;
}

/// Returns false if the edges could not be added.
bool depend(cudaGraph_t graph, cudaGraphNode_t earlier, const Nodes& later) {
  if (later.empty()) return true;
  const Nodes from(later.size(), earlier);
#if CUDART_VERSION >= 13000
  return succeeded(cudaGraphAddDependencies(graph, from.data(), later.data(), nullptr, later.size()));
#else
  return succeeded(cudaGraphAddDependencies(graph, from.data(), later.data(), later.size()));
#endif
}

/// A new node without later ones, or null.
cudaGraphNode_t add_kernel(cudaGraph_t graph, const Nodes& earlier, Filling filling) {
  void* arguments[] = {&filling};  // copied
  cudaKernelNodeParams kernel{};
  kernel.func = reinterpret_cast<void*>(&set_kernel);
  const std::size_t blocks = (filling.bytes + kThreads * sizeof(uint4) - 1) / (kThreads * sizeof(uint4));
  kernel.gridDim = dim3(static_cast<unsigned>(blocks));
  kernel.blockDim = dim3(kThreads);
  kernel.kernelParams = arguments;
  cudaGraphNode_t node = nullptr;
  return succeeded(cudaGraphAddKernelNode(&node, graph, earlier.data(), earlier.size(), &kernel)) ? node : nullptr;
}

bool set_priority(cudaGraphNode_t kernel, int priority) {
  cudaKernelNodeAttrValue attribute{};
  attribute.priority = priority;
  return succeeded(cudaGraphKernelNodeSetAttribute(kernel, cudaLaunchAttributePriority, &attribute));
}

/// Returns false if the memset stays.
bool replace(cudaGraph_t graph, cudaGraphNode_t node, int priority) {
  const auto filling = filling_of(node);
  if (!filling) return false;
  const auto earlier = neighbours(node, get_before);
  const auto later = neighbours(node, get_after);
  if (!earlier || !later) return false;
  const cudaGraphNode_t kernel = add_kernel(graph, *earlier, *filling);
  if (kernel == nullptr) return false;
  if (set_priority(kernel, priority) && depend(graph, kernel, *later) && succeeded(cudaGraphDestroyNode(node)))
    return true;
  check_cuda(cudaGraphDestroyNode(kernel), "cudaGraphDestroyNode");
  return false;
}

/// The runtime has no type for some nodes of the driver, such as waits for a value in memory, and reports an error.
bool is_memset(cudaGraphNode_t node) {
  cudaGraphNodeType type{};
  return succeeded(cudaGraphNodeGetType(node, &type)) && type == cudaGraphNodeTypeMemset;
}

}  // namespace

int replace_memsets(cudaGraph_t graph, int priority) {
  std::size_t count = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
  std::vector<cudaGraphNode_t> nodes(count);
  check_cuda(cudaGraphGetNodes(graph, nodes.data(), &count), "cudaGraphGetNodes");
  int replaced = 0;
  for (const cudaGraphNode_t node : nodes) {
    if (is_memset(node) && replace(graph, node, priority)) ++replaced;
  }
  return replaced;
}

}  // namespace syncrun::detail::worker::devices::cuda

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/devices/cuda/check.hpp"
#include "worker/devices/cuda/graph_memsets.hpp"

namespace syncrun::detail {

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

std::optional<Filling> filling_of(cudaGraphNode_t node) {
  cudaMemsetParams memset{};
  check_cuda(cudaGraphMemsetNodeGetParams(node, &memset), "cudaGraphMemsetNodeGetParams");
  const std::size_t row_bytes = memset.width * memset.elementSize;
  const bool is_one_piece = memset.height == 1 || memset.pitch == row_bytes;
  const std::size_t bytes = row_bytes * memset.height;
  if (!is_one_piece || bytes == 0 || bytes > kMostBytes) return std::nullopt;
  return Filling{static_cast<unsigned char*>(memset.dst), bytes, pattern_of(memset)};
}

/// The nodes before or after a node, and how they depend on each other.
struct Neighbours {
  std::vector<cudaGraphNode_t> nodes;
  std::vector<cudaGraphEdgeData> edges;

  /// Whether all edges are ordinary ones: a node begins when the other one has ended.
  bool are_ordinary() const {
    return std::all_of(edges.begin(), edges.end(), [](const cudaGraphEdgeData& edge) {
      return edge.from_port == 0 && edge.to_port == 0 && edge.type == cudaGraphDependencyTypeDefault;
    });
  }
};

#if CUDART_VERSION >= 13000
constexpr auto get_before = &cudaGraphNodeGetDependencies;
constexpr auto get_after = &cudaGraphNodeGetDependentNodes;
#else  // the functions without this ending say nothing about edges
constexpr auto get_before = &cudaGraphNodeGetDependencies_v2;
constexpr auto get_after = &cudaGraphNodeGetDependentNodes_v2;
#endif

/// `get` is get_before or get_after.
template <class Get>
Neighbours neighbours(cudaGraphNode_t node, Get get) {
  std::size_t count = 0;
  check_cuda(get(node, nullptr, nullptr, &count), "the edges of a graph");
  Neighbours found{std::vector<cudaGraphNode_t>(count), std::vector<cudaGraphEdgeData>(count)};
  if (count != 0) check_cuda(get(node, found.nodes.data(), found.edges.data(), &count), "the edges of a graph");
  return found;
}

void depend(cudaGraph_t graph, cudaGraphNode_t earlier, const std::vector<cudaGraphNode_t>& later) {
  const std::vector<cudaGraphNode_t> from(later.size(), earlier);
#if CUDART_VERSION >= 13000
  const auto code = cudaGraphAddDependencies(graph, from.data(), later.data(), nullptr, later.size());
#else
  const auto code = cudaGraphAddDependencies(graph, from.data(), later.data(), later.size());
#endif
  check_cuda(code, "cudaGraphAddDependencies");
}

cudaGraphNode_t add_kernel(cudaGraph_t graph, const Neighbours& earlier, Filling filling, int priority) {
  void* arguments[] = {&filling};  // copied
  cudaKernelNodeParams kernel{};
  kernel.func = reinterpret_cast<void*>(&set_kernel);
  const std::size_t blocks = (filling.bytes + kThreads * sizeof(uint4) - 1) / (kThreads * sizeof(uint4));
  kernel.gridDim = dim3(static_cast<unsigned>(blocks));
  kernel.blockDim = dim3(kThreads);
  kernel.kernelParams = arguments;
  cudaGraphNode_t node = nullptr;
  check_cuda(cudaGraphAddKernelNode(&node, graph, earlier.nodes.data(), earlier.nodes.size(), &kernel),
             "cudaGraphAddKernelNode");
  cudaKernelNodeAttrValue attribute{};
  attribute.priority = priority;
  check_cuda(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributePriority, &attribute),
             "cudaGraphKernelNodeSetAttribute");
  return node;
}

bool replace(cudaGraph_t graph, cudaGraphNode_t node, int priority) {
  const auto filling = filling_of(node);
  if (!filling) return false;
  const Neighbours earlier = neighbours(node, get_before);
  const Neighbours later = neighbours(node, get_after);
  if (!earlier.are_ordinary() || !later.are_ordinary()) return false;
  const cudaGraphNode_t kernel = add_kernel(graph, earlier, *filling, priority);
  if (!later.nodes.empty()) depend(graph, kernel, later.nodes);
  check_cuda(cudaGraphDestroyNode(node), "cudaGraphDestroyNode");
  return true;
}

/// The runtime has no type for some nodes of the driver, such as waits for a value in memory, and reports an error.
bool is_memset(cudaGraphNode_t node) {
  cudaGraphNodeType type{};
  if (cudaGraphNodeGetType(node, &type) == cudaSuccess) return type == cudaGraphNodeTypeMemset;
  static_cast<void>(cudaGetLastError());
  return false;
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

}  // namespace syncrun::detail

#pragma once

// A memset takes longer in a graph than a kernel: the next node begins 3 to 5 us later on an H100. LibTorch, cuDNN and
// cuBLAS clear counters for many of their kernels. So captured memsets become kernels.

#include <cuda_runtime_api.h>

namespace syncrun::detail::worker::devices::cuda {

/// Replaces the memsets of a captured graph by kernels that write the same bytes, with this priority. These memsets stay:
/// those of more than 1 MiB, of rows that are apart, in graphs within the graph, next to nodes that overlap, and those that
/// the driver does not let us replace because it is older than the toolkit. The graph does the same either way. Returns
/// how many were replaced. Throws Error (cuda).
int replace_memsets(cudaGraph_t graph, int priority);

}  // namespace syncrun::detail::worker::devices::cuda

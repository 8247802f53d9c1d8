#pragma once

// Chooses the cores that a worker runs on, and the number of threads that numerical libraries start there. A worker
// runs near its GPU, or on its share of the cores.

#include <string>
#include <utility>
#include <vector>

namespace syncrun::detail {

/// The cores that a CPU worker is bound to before exec. They are the cores of the NUMA node that contains the worker's
/// share of the cores, so that its memory is near. Empty (not bound) on a machine with one node, with more workers than
/// cores, or if the share does not fit into one node.
std::vector<int> cores_for(int rank, int world_size);

/// The cores that the worker of a GPU is bound to: those that the kernel lists as near the GPU's PCI slot. Empty if
/// this is not known, or if there is one node.
std::vector<int> cores_near_gpu(int index);

/// Variables for NCCL, except those that the user has set. NCCL needs a network interface to start, even on one
/// machine, and gets the loopback. NCCL connects to its peers when it starts, so that no later call waits on the host
/// for a connection. Such a wait could not be cancelled.
std::vector<std::pair<std::string, std::string>> nccl_variables();

/// Thread counts for OpenMP, OpenBLAS, MKL and BLIS. Variables that the user has set stay unchanged. The others get the
/// value of OMP_NUM_THREADS if it is set, or else that of the first library whose variable is set. (MKL and OpenBLAS
/// prefer their own variable to OpenMP's. So another number there would override the user's choice.) If the user has
/// set none, all workers together start as many threads as there are cores.
std::vector<std::pair<std::string, std::string>> thread_variables(int world_size);

/// Parses "0-3,8,10-11", the format in which the kernel lists CPUs.
std::vector<int> parse_cpu_list(const std::string& text);

}  // namespace syncrun::detail

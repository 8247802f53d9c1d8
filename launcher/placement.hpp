#pragma once

// Where a worker runs: near its GPU, or on its share of the cores; and how many threads numerical libraries start there.

#include <string>
#include <utility>
#include <vector>

namespace syncrun::detail {

/// Cores to bind a CPU worker to before exec: those of the NUMA node its share of the cores lies in, so that its memory
/// is near. Empty (not bound) on a machine with one node, or with more workers than cores.
std::vector<int> cores_for(int rank, int world_size);

/// The same for a GPU: cores of the NUMA node its PCI slot belongs to, by the kernel's account. Empty where that is not
/// known, or where there is one node.
std::vector<int> cores_near_gpu(int index);

/// NCCL starts over a network interface also on one machine: the loopback. It connects to its peers when it starts, so
/// that no later call waits for one on the host, where it could not be called off. Unless the user has chosen.
std::vector<std::pair<std::string, std::string>> nccl_variables();

/// Thread counts for OpenMP, OpenBLAS, MKL and BLIS. Variables that the user has set are left alone, and the others follow
/// them: OMP_NUM_THREADS if that is set, else the first library's. (MKL and OpenBLAS prefer their own variable to OpenMP's:
/// another number there would win over what the user said.) Where the user has set none, the workers together start as many
/// threads as there are cores.
std::vector<std::pair<std::string, std::string>> thread_variables(int world_size);

/// Parses "0-3,8,10-11", as the kernel lists CPUs.
std::vector<int> parse_cpu_list(const std::string& text);

}  // namespace syncrun::detail

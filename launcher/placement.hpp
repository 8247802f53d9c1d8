#pragma once

// Where a CPU worker runs: its share of the cores and of the threads that numerical libraries start.

#include <string>
#include <utility>
#include <vector>

namespace syncrun::detail {

/// Cores to bind a CPU worker to before exec: those of the NUMA node its share of the cores lies in, so that its memory
/// is near. Empty (not bound) on a machine with one node, or with more workers than cores.
std::vector<int> cores_for(int rank, int world_size);

/// Thread counts for OpenBLAS, OpenMP and MKL, so that the workers together start as many threads as there are cores.
/// Variables that the user has set are left alone.
std::vector<std::pair<std::string, std::string>> thread_variables(int world_size);

/// Parses "0-3,8,10-11", as the kernel lists CPUs.
std::vector<int> parse_cpu_list(const std::string& text);

}  // namespace syncrun::detail

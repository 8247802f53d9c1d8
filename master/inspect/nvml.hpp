#pragma once

// The types of nvml.h that Syncrun uses here. They are part of the interface of the driver, which does not change them.
// https://docs.nvidia.com/deploy/nvml-api/

namespace syncrun::detail::master::inspect {

struct NvmlUtilization {
  unsigned gpu;  ///< In percent.
  unsigned memory;
};

struct NvmlProcess {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance;
  unsigned compute_instance;
};

}  // namespace syncrun::detail::master::inspect

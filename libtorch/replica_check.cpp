// Whether the modules of all ranks are equal, by checksums.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libtorch/module_tensors.hpp"
#include "syncrun/error.hpp"
#include "syncrun/reduction.hpp"
#include "syncrun/torch/torch_interface.hpp"

namespace syncrun::libtorch::detail {

namespace {

std::uint64_t checksum_of(const ::torch::Tensor& tensor) {
  const ::torch::NoGradGuard no_gradients;
  const ::torch::Tensor here = tensor.detach().to(::torch::kCPU).contiguous();
  return std::hash<std::string_view>()({static_cast<const char*>(here.data_ptr()), here.nbytes()});
}

}  // namespace

std::vector<TensorChecksum> BoundModule::checksums(const std::optional<FlatVector>& params) {
  keep_buffers();
  if (params) {
    bind_to_read(*params);
  } else if (has_copies_) {
    throw Error(ErrorKind::usage,
                "verify_replicas: the module has parameters that are copies, in a smaller type, of the values in the "
                "variable. They are as old as the last call on this rank. Compare those of the variable: "
                "verify_replicas(session, net, params)");
  }
  const auto values_of = [&](const ::torch::Tensor& tensor) {
    const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                    [&](const BoundParameter& each) { return each.tensor.is_same(tensor); });
    return params && found != parameters_.end() ? part_of(*params, *found) : tensor;
  };
  std::vector<TensorChecksum> checksums;
  for (const ModuleTensor& each : all_tensors(*module_))
    checksums.push_back({each.names.front(), checksum_of(values_of(each.tensor))});
  return checksums;
}

void check_equal_modules(Comm& comm, const ::torch::nn::Module& module) {
  const auto is_equal = [&comm](std::uint64_t sum) {
    return comm.all_reduce(sum, Reduction::min) == comm.all_reduce(sum, Reduction::max);
  };
  std::vector<TensorChecksum> checksums;
  for (const auto& each : module.named_parameters()) checksums.push_back({each.key(), checksum_of(each.value())});
  std::uint64_t together = 0;
  for (const TensorChecksum& each : checksums) together = together * 31 + each.sum;
  if (is_equal(together)) return;
  for (const TensorChecksum& each : checksums) {
    if (is_equal(each.sum)) continue;
    throw Error(ErrorKind::function,
                "average: '" + each.tensor +
                    "' differs between ranks. An earlier call may have failed on one of them between average() and the "
                    "optimizer's step: give all ranks the values of one rank again");
  }
}

}  // namespace syncrun::libtorch::detail

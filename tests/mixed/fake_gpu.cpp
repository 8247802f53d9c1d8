// The library that workers load in place of that for CUDA devices.

#include <memory>

#include "syncrun/detail/export.hpp"
#include "tests/mixed/fake_gpu.hpp"

namespace syncrun::test {
namespace {

/// Stands for the communicator of the GPUs of a session. No test uses it.
class NoComm final : public detail::SoloComm {
 public:
  void begin(const detail::Command&) override { throw Error(ErrorKind::nccl, "the fake GPU has no communicator"); }
};

}  // namespace
}  // namespace syncrun::test

extern "C" SYNCRUN_EXPORT syncrun::detail::GpuDevice* syncrun_make_cuda_device(
    const syncrun::detail::DeviceContext& context) {
  static syncrun::test::NoComm comm;  // has no state
  return std::make_unique<syncrun::test::OffHostDevice>(context.attachment.segment, context.arena, comm).release();
}

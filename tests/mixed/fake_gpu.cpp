// The library that workers load in place of that for CUDA devices.

#include "tests/mixed/fake_gpu.hpp"

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

#include "syncrun/detail/export.hpp"
#include "worker/devices/cuda/collective_plan.hpp"

namespace syncrun::test {
namespace {

/// Stands for NCCL: the communicator of fake GPUs. The library exports only what all_reduce and host values need, so
/// these are the only collectives here.
///
/// A product never comes to an end, as if a rank of NCCL were missing. The ranks compare what they have called, as they do
/// with NCCL.
class FakeComm final : public detail::SoloComm {
 public:
  /// `host` is the communicator of the same ranks in host memory.
  FakeComm(detail::CommCore& host, OffHostDevice& device, const detail::DeviceContext& context)
      : host_(host), device_(device), interruption_(context.interruption), plan_(context.attachment) {}

  int rank() const noexcept override { return host_.rank(); }
  int world_size() const noexcept override { return host_.world_size(); }
  void begin(const detail::Command& command) override { host_.begin(command); }
  void barrier() override { host_.barrier(); }
  void all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                  const detail::RankWeights& weights) override {
    device_.finish();
    if (reduction == Reduction::prod) wait_in_vain(elements);
    host_.all_reduce(host_view(values), elements, dtype, reduction, weights);
  }
  void all_reduce_value(void* value, DType dtype, Reduction reduction, const detail::RankWeights& weights) override {
    host_.all_reduce(value, 1, dtype, reduction, weights);
  }
  void reduce(void*, std::size_t, DType, Reduction, const detail::RankWeights&, int) override { refuse(); }
  void reduce_scatter(void*, void*, const detail::Division&, DType, Reduction, const detail::RankWeights&) override {
    refuse();
  }
  void broadcast(void*, std::size_t, DType, int) override { refuse(); }
  void all_gather(const void*, void*, const detail::Division&) override { refuse(); }
  void gather(const void*, void*, const detail::Division&, int) override { refuse(); }
  void scatter(const void*, void*, const detail::Division&, int) override { refuse(); }
  bool can_be_captured() const noexcept override { return false; }

 private:
  [[noreturn]] void wait_in_vain(std::size_t elements) {
    plan_.add({elements});
    plan_.publish_waiting(detail::CollectivePlan::Wait::midway);
    for (;;) {
      interruption_.check();
      plan_.check_peers(detail::CollectivePlan::Clock::now());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  [[noreturn]] static void refuse() { throw Error(ErrorKind::nccl, "the fake GPU has no such collective"); }

  detail::CommCore& host_;
  OffHostDevice& device_;
  const detail::Interruption& interruption_;
  detail::CollectivePlan plan_;
};

class FakeGpu final : public OffHostDevice {
 public:
  explicit FakeGpu(const detail::DeviceContext& context)
      : OffHostDevice(context.attachment.segment, context.arena, not_used(), Memory::of_arena,
                      seed_of(context.attachment.rank)),
        header_(context.attachment.control.header()),
        context_(context),
        comm_(context.host_comm, *this, context) {
    if (context.nodes_comm != nullptr) comm_of_nodes_.emplace(*context.nodes_comm, *this, context);
  }

  detail::CommCore& comm(const detail::CommandHead& command) override {
    if (command.comm.spans_nodes()) return *comm_of_nodes_;
    return comm_;
  }
  /// A GPU must not run a call with what belongs to a lost worker that was replaced.
  void begin_command(std::uint64_t command) override {
    if (header_.replacements.load() != replacements_) throw Error(ErrorKind::system, "a peer was replaced unnoticed");
    OffHostDevice::begin_command(command);
  }
  void forget_replaced_peers() noexcept override { replacements_ = header_.replacements.load(); }
  bool shares_before_reducing() const noexcept override { return true; }
  bool is_open_to_peers() const noexcept override { return false; }  // so values go to other fake GPUs through the host

 private:
  static detail::CommCore& not_used() {
    static detail::SoloComm comm;  // has no state
    return comm;
  }

  /// The variable FAKE_GPU_SEED chooses other orders of work.
  static std::uint32_t seed_of(int rank) {
    const char* const text = std::getenv("FAKE_GPU_SEED");
    const unsigned long seed = text == nullptr ? 1 : std::strtoul(text, nullptr, 10);
    return static_cast<std::uint32_t>(seed * 1'000 + static_cast<unsigned long>(rank) + 1);
  }
  void poll() override {
    context_.interruption.check();
    context_.look_ahead();
  }

  detail::ControlHeader& header_;
  std::uint64_t replacements_ = header_.replacements.load();
  const detail::DeviceContext context_;
  FakeComm comm_;
  std::optional<FakeComm> comm_of_nodes_;
};

}  // namespace
}  // namespace syncrun::test

extern "C" SYNCRUN_EXPORT syncrun::detail::GpuDevice* syncrun_make_cuda_device(
    const syncrun::detail::DeviceContext& context) {
  return std::make_unique<syncrun::test::FakeGpu>(context).release();
}

// The library that workers load in place of that for CUDA devices.

#include "tests/mixed/fake_gpu.hpp"

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

#include "common/os/part_version.hpp"
#include "syncrun/detail/export.hpp"
#include "worker/devices/cuda/collective_plan.hpp"

namespace syncrun::test {
namespace {

/// Stands for NCCL: the communicator of fake GPUs. The library exports only what all_reduce and host values need, so
/// these are the only collectives here.
///
/// A product never comes to an end, as if a rank of NCCL were missing. The ranks compare what they have called, as they do
/// with NCCL.
class FakeComm final : public detail::worker::comm::SoloComm {
 public:
  /// `host` is the communicator of the same ranks in host memory.
  FakeComm(detail::worker::comm::CommCore& host, detail::worker::devices::DeviceMemory& memory,
           const detail::worker::devices::DeviceContext& context)
      : host_(host), memory_(memory), interruption_(context.interruption), plan_(context.attachment) {}

  int rank() const noexcept override { return host_.rank(); }
  int world_size() const noexcept override { return host_.world_size(); }
  void begin(const detail::protocol::Command& command) override { host_.begin(command); }
  void barrier() override { host_.barrier(); }
  void all_reduce(void* values, std::size_t elements, DType dtype, Reduction reduction,
                  const detail::worker::comm::RankWeights& weights) override {
    memory_.finish();
    if (reduction == Reduction::prod) wait_in_vain(elements);
    host_.all_reduce(host_view(values), elements, dtype, reduction, weights);
  }
  void all_reduce_value(void* value, DType dtype, Reduction reduction,
                        const detail::worker::comm::RankWeights& weights) override {
    host_.all_reduce(value, 1, dtype, reduction, weights);
  }
  void reduce(void*, std::size_t, DType, Reduction, const detail::worker::comm::RankWeights&, int) override {
    refuse();
  }
  void reduce_scatter(void*, void*, const detail::worker::comm::Division&, DType, Reduction,
                      const detail::worker::comm::RankWeights&) override {
    refuse();
  }
  void broadcast(void*, std::size_t, DType, int) override { refuse(); }
  void all_gather(const void*, void*, const detail::worker::comm::Division&) override { refuse(); }
  void gather(const void*, void*, const detail::worker::comm::Division&, int) override { refuse(); }
  void scatter(const void*, void*, const detail::worker::comm::Division&, int) override { refuse(); }
  bool can_be_captured() const noexcept override { return false; }

 private:
  [[noreturn]] void wait_in_vain(std::size_t elements) {
    plan_.add({elements});
    plan_.publish_waiting(detail::worker::devices::cuda::CollectivePlan::Wait::midway);
    for (;;) {
      interruption_.check();
      plan_.check_peers(detail::worker::devices::cuda::CollectivePlan::Clock::now());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  [[noreturn]] static void refuse() { throw Error(ErrorKind::nccl, "the fake GPU has no such collective"); }

  detail::worker::comm::CommCore& host_;
  detail::worker::devices::DeviceMemory& memory_;
  const detail::worker::process::Interruption& interruption_;
  detail::worker::devices::cuda::CollectivePlan plan_;
};

class FakeGpu final : public OffHostDevice {
 public:
  explicit FakeGpu(const detail::worker::devices::DeviceContext& context)
      : OffHostDevice(context.attachment.segment, context.arena, not_used(), Memory::of_arena,
                      seed_of(context.attachment.rank)),
        header_(context.attachment.control.header()),
        context_(context),
        comm_(context.host_comm, parts().memory, context) {
    if (context.nodes_comm != nullptr) comm_of_nodes_.emplace(*context.nodes_comm, parts().memory, context);
  }

  detail::worker::comm::CommCore& comm(const detail::protocol::CommandHead& command) override {
    if (command.comm.spans_nodes()) return *comm_of_nodes_;
    return comm_;
  }
  void forget_replaced_peers() noexcept override { replacements_ = header_.replacements.load(); }

 private:
  static detail::worker::comm::CommCore& not_used() {
    static detail::worker::comm::SoloComm comm;  // has no state
    return comm;
  }

  /// The variable FAKE_GPU_SEED chooses other orders of work.
  static std::uint32_t seed_of(int rank) {
    const char* const text = std::getenv("FAKE_GPU_SEED");
    const unsigned long seed = text == nullptr ? 1 : std::strtoul(text, nullptr, 10);
    return static_cast<std::uint32_t>(seed * 1'000 + static_cast<unsigned long>(rank) + 1);
  }
  /// A GPU must not run a call with what belongs to a lost worker that was replaced.
  void before_call() override {
    if (header_.replacements.load() != replacements_) throw Error(ErrorKind::system, "a peer was replaced unnoticed");
  }
  void poll() override {
    context_.interruption.check();
    context_.look_ahead();
  }

  detail::protocol::ControlHeader& header_;
  std::uint64_t replacements_ = header_.replacements.load();
  const detail::worker::devices::DeviceContext context_;
  FakeComm comm_;
  std::optional<FakeComm> comm_of_nodes_;
};

}  // namespace
}  // namespace syncrun::test

SYNCRUN_PART_VERSION

extern "C" SYNCRUN_EXPORT syncrun::detail::worker::devices::WorkerDevice* syncrun_make_cuda_device(
    const syncrun::detail::worker::devices::DeviceContext& context) {
  return std::make_unique<syncrun::test::FakeGpu>(context).release();
}

#pragma once

// A device for tests whose memory is not host memory, as that of a GPU. An address in its memory cannot be used on the
// host. Work is put on a queue and runs in finish(), as late as possible. So code that does not wait for the device, or
// that uses a device address on the host, fails. Inputs come by the same Staging as on a GPU, and FakeLanes chooses when
// copies ahead run.

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/arrays/reduce.hpp"
#include "common/arrays/update.hpp"
#include "syncrun/detail/step_plan.hpp"
#include "tests/worker/devices/fake_lanes.hpp"
#include "worker/devices/gpu_device.hpp"

namespace syncrun::test {

class OffHostDevice : public detail::GpuDevice {
 public:
  /// Where device memory really is. Peers can copy from an arena.
  enum class Memory : std::uint8_t { of_process, of_arena };
  /// Recorded work. It keeps the memory that was released while it was recorded.
  struct Graph final : detail::DeviceGraph {
    explicit Graph(OffHostDevice& owner) : device(owner) {}
    ~Graph() override {
      for (void* memory : held) device.release(memory);
    }
    OffHostDevice& device;
    std::deque<WorkQueue::Step> steps;
    std::vector<void*> held;
  };

  /// `comm` is the communicator of this device and its peers of the same kind. `seed` is for the order of the lanes.
  OffHostDevice(const detail::Segment& segment, detail::SharedHeap& arena, detail::CommCore& comm,
                Memory memory = Memory::of_process, std::uint32_t seed = 1)
      : segment_(segment), arena_(arena), comm_(comm), memory_(memory), lanes_(seed) {}
  OffHostDevice(const OffHostDevice&) = delete;
  OffHostDevice& operator=(const OffHostDevice&) = delete;
  ~OffHostDevice() override {
    for (void* memory : allocated_) free(memory);
  }

  /// Puts work on the queue, as a body does.
  void enqueue(std::function<void()> work) { queue().push_back(std::move(work)); }

  // ---- memory ---------------------------------------------------------------------------------------------------

  void* allocate(std::size_t bytes, detail::SharedHeap::Contents contents, std::string_view what) override {
    if (memory_ == Memory::of_arena) {
      return *allocated_.insert(device_view(segment_.at(arena_.allocate(bytes + 1, contents, what)))).first;
    }
    const bool is_zero = contents == detail::SharedHeap::Contents::zero;
    void* const memory = is_zero ? std::calloc(bytes + 1, 1) : std::malloc(bytes + 1);
    if (memory == nullptr) throw std::bad_alloc();
    return *allocated_.insert(device_view(memory)).first;
  }
  void release(void* memory) noexcept override {  // work on the queue, or a graph, may use it
    (recording_ ? recording_->held : released_).push_back(memory);
  }
  std::uint64_t export_memory(void* memory) override {
    return memory_ == Memory::of_arena ? segment_.offset_of(host_view(memory)) : 0;
  }
  detail::OutputBuffer allocate_output(std::size_t bytes) override {
    if (bytes == 0) return {};
    return {allocate(bytes, detail::SharedHeap::Contents::zero, ""), bytes,
            [](void* data, void* device) noexcept {
              static_cast<OffHostDevice*>(static_cast<detail::WorkerDevice*>(device))->release(data);
            },
            static_cast<detail::WorkerDevice*>(this)};
  }
  detail::OutputBuffer adopt_output(detail::OutputBuffer buffer) override {
    if (buffer.data() == nullptr || buffer.context() == static_cast<detail::WorkerDevice*>(this)) return buffer;
    detail::OutputBuffer adopted = allocate_output(buffer.bytes());
    std::memcpy(host_view(adopted.data()), buffer.data(), buffer.bytes());
    return adopted;
  }
  std::uint64_t place_of(const void* memory) const noexcept override {
    return reinterpret_cast<std::uintptr_t>(memory);
  }
  void* at(std::uint64_t place) const noexcept override { return reinterpret_cast<void*>(place); }

  // ---- inputs ---------------------------------------------------------------------------------------------------

  void* take_rows(std::size_t argument, const detail::SharedRows& rows, std::int64_t begin,
                  std::int64_t count) override {
    return staging_.bring(argument, rows, {nullptr, begin, count});
  }
  void* gather_rows(std::size_t argument, const detail::SharedRows& rows,
                    std::span<const std::int64_t> indices) override {
    return staging_.bring(argument, rows, {indices.data(), 0, static_cast<std::int64_t>(indices.size())});
  }
  void* gather_local_rows(std::size_t argument, const std::byte* array, std::size_t row_bytes,
                          std::span<const std::int64_t> indices) override {
    return staging_.gather_local(argument, array, row_bytes, indices.data(), static_cast<std::int64_t>(indices.size()));
  }
  const void* take_scalar(std::size_t argument, const std::byte* value, std::size_t bytes) override {
    return staging_.bring(argument, {value, bytes, 1}, {nullptr, 0, 1});
  }
  void begin_command(std::uint64_t command) override { staging_.begin_command(command); }
  void begin_body() override { staging_.flush(); }
  void begin_ahead(std::uint64_t command) override { staging_.begin_ahead(command); }
  void end_ahead() override { staging_.end_ahead(); }
  void drop_ahead() noexcept override { staging_.abandon(); }

  // ---- work -----------------------------------------------------------------------------------------------------

  void copy_in(void* device_memory, const std::byte* shared, std::size_t bytes) override {
    if (bytes != 0) enqueue([=] { std::memcpy(host_view(device_memory), shared, bytes); });
  }
  void copy_out(std::byte* shared, const void* device_memory, std::size_t bytes) override {
    if (bytes != 0) enqueue([=] { std::memcpy(shared, host_view(device_memory), bytes); });
  }
  void copy_within(void* to, const void* from, std::size_t bytes) override {
    if (bytes != 0) enqueue([=] { std::memmove(host_view(to), host_view(from), bytes); });
  }
  void clear(void* device_memory, std::size_t bytes) override {
    if (bytes != 0) enqueue([=] { std::memset(host_view(device_memory), 0, bytes); });
  }
  void accumulate(DType dtype, Reduction reduction, void* into, const void* value, std::array<double, 2> weights,
                  std::size_t elements) override {
    enqueue(
        [=] { detail::accumulate_elements(dtype, reduction, host_view(into), host_view(value), weights, elements); });
  }
  void convert(detail::ElementTypes types, const void* from, void* to, std::size_t elements) override {
    enqueue([=] { detail::convert_elements(types, host_view(from), host_view(to), elements); });
  }
  void apply_update(const detail::UpdateWork& work) override {
    enqueue([work] {
      const detail::UpdateWork on_host = host_work(work);
      if (on_host.plan.empty()) detail::update_elements(on_host);
      else update_by_plan(on_host);
    });
  }
  void sum_squares(const detail::UpdateWork& work, double* squares) override {
    enqueue([=] {
      const detail::UpdateWork on_host = host_work(work);
      *host_view(squares) = detail::sum_of_squares(
          plan_of(on_host), on_host.first, std::span(static_cast<const float*>(on_host.gradient), on_host.elements));
    });
  }
  void take_root(double* number) override {
    enqueue([=] { *host_view(number) = std::sqrt(*host_view(number)); });
  }
  void finish() override {
    if (recording_) throw Error(ErrorKind::cuda, "work that is recorded does not run: it cannot be waited for");
    staging_.flush();
    lanes_.finish([this] {
      poll();
      if (lanes_.toss()) moves_.run_one();
    });
    for (void* memory : std::exchange(released_, {})) {
      allocated_.erase(memory);
      free(memory);
    }
  }
  void abandon() noexcept override {
    lanes_.abandon_work();
    finish_moves();
    staging_.abandon();
  }
  bool is_lost() const noexcept override { return lanes_.has_lost_context(); }

  // ---- outputs --------------------------------------------------------------------------------------------------

  std::uint64_t share_output(detail::OutputBuffer buffer) override {
    const detail::OutputBuffer own = adopt_output(std::move(buffer));
    if (own.data() == nullptr) return 0;
    const std::uint64_t offset = arena_.allocate(own.bytes(), detail::SharedHeap::Contents::any, "an output");
    copy_out(segment_.at(offset), own.data(), own.bytes());
    return offset;
  }
  std::size_t large_output_bytes() const noexcept override { return std::size_t{64} << 10U; }
  bool shares_before_reducing() const noexcept override { return false; }
  std::uint64_t reduce_output(const detail::OutputReduction&, detail::OutputBuffer) override { return 0; }

  // ---- handles --------------------------------------------------------------------------------------------------

  detail::CommCore& comm(const detail::CommandHead&) override { return comm_; }
  detail::CommCore& solo() noexcept override { return solo_; }
  void copy_from_peer(void* to, const detail::PeerMemoryPlace& from, std::size_t bytes) override {
    copy_in(to, segment_.at(from.exported != 0 ? from.exported : from.place), bytes);
  }
  bool start_copy_ahead(std::uint64_t command, void* to, const detail::PeerMemoryPlace& from,
                        std::size_t bytes) override {
    if (from.exported == 0 || copied_ahead_ != 0) return false;
    moves_.push_back([=, values = segment_.at(from.exported)] { std::memcpy(host_view(to), values, bytes); });
    copied_ahead_ = command;
    return true;
  }
  bool finish_copy_ahead(std::uint64_t command) override {
    if (copied_ahead_ != command) return false;
    finish_moves();
    return true;
  }
  detail::MemorySize memory() override { return {}; }
  std::string hardware() const override { return "no GPU"; }
  /// The queue.
  CUstream_st* stream() noexcept override { return reinterpret_cast<CUstream_st*>(&queue()); }
  cublasContext* cublas() override { return nullptr; }
  cudnnContext* cudnn() override { return nullptr; }
  void unpin() override {
    finish();
    staging_.abandon();
  }
  void begin_capture() override {
    recording_ = std::make_unique<Graph>(*this);
    before_capture_ = queue().take();
  }
  std::unique_ptr<detail::DeviceGraph> end_capture() override {
    recording_->steps = queue().take();
    queue().push_all(std::exchange(before_capture_, {}));
    return std::move(recording_);
  }
  void abandon_capture() noexcept override {
    if (!recording_) return;
    static_cast<void>(queue().take());
    queue().push_all(std::exchange(before_capture_, {}));
    std::exchange(recording_, nullptr).reset();
  }
  void launch(detail::DeviceGraph& graph) override { queue().push_all(static_cast<Graph&>(graph).steps); }

 protected:
  /// Called again and again while the device works.
  virtual void poll() {}

 private:
  WorkQueue& queue() { return lanes_.work(); }
  void free(void* memory) {
    if (memory_ == Memory::of_process) return std::free(host_view(memory));
    arena_.free(segment_.offset_of(host_view(memory)), detail::SharedHeap::Giveback::later);
  }
  void finish_moves() {
    while (moves_.run_one()) {
    }
    copied_ahead_ = 0;
  }
  /// The same work, with addresses in host memory.
  static detail::UpdateWork host_work(detail::UpdateWork work) {
    using Place = detail::UpdateWork::RulePlace;
    if (work.place == Place::device) work.rule = host_view(work.rule);
    work.place = Place::host;
    work.params = host_view(work.params);
    work.gradient = host_view(work.gradient);
    for (void*& state : work.state) state = state == nullptr ? nullptr : host_view(state);
    if (!work.plan.empty()) work.plan = {host_view(work.plan.data()), work.plan.size()};
    return work;
  }
  static detail::StepPlan plan_of(const detail::UpdateWork& work) {
    return detail::StepPlan({const_cast<double*>(work.plan.data()), work.plan.size()});
  }
  /// An update by Adam in float32, as the tests make it, with parts and a clipped gradient.
  static void update_by_plan(const detail::UpdateWork& work) {
    if (work.kind != detail::UpdateKind::adam || work.dtype != DType::float32) std::abort();
    const detail::StepPlan plan = plan_of(work);
    double factor = 1;
    if (plan.is_clipping()) {
      const double norm = work.plan[detail::StepPlan::kNorm];
      if (!std::isfinite(norm)) return;
      factor = detail::clip_factor(plan.clip_norm(), norm);
    }
    const auto last = work.first + static_cast<std::int64_t>(work.elements);
    plan.for_each_part(work.first, last, [&](std::int64_t begin, std::int64_t end, double rate, double decay) {
      const auto at = static_cast<std::size_t>(begin - work.first);
      Adam rule = *static_cast<const Adam*>(work.rule);
      rule.learning_rate *= rate;
      rule.weight_decay *= decay;
      rule.decoupled_weight_decay *= decay;
      std::vector<float> gradient(static_cast<const float*>(work.gradient) + at,
                                  static_cast<const float*>(work.gradient) + (end - work.first));
      for (float& value : gradient) value = static_cast<float>(value * factor);
      detail::UpdateWork part = work;
      part.rule = &rule;
      part.params = static_cast<float*>(work.params) + at;
      part.gradient = gradient.data();
      for (void*& state : part.state) state = state == nullptr ? nullptr : static_cast<float*>(state) + at;
      part.elements = gradient.size();
      detail::update_elements(part);
    });
  }

  /// A communicator of one rank, in the order of the device's work.
  class Solo final : public detail::SoloComm {
   public:
    explicit Solo(OffHostDevice& device) : device_(device) {}

   private:
    void copy(void* to, const void* from, std::size_t bytes) override { device_.copy_within(to, from, bytes); }
    OffHostDevice& device_;
  };

  const detail::Segment& segment_;
  detail::SharedHeap& arena_;
  detail::CommCore& comm_;
  Solo solo_{*this};
  Memory memory_;
  FakeLanes lanes_;
  detail::Staging staging_{lanes_};
  WorkQueue moves_;                 // copies from peers, beside the lanes
  std::uint64_t copied_ahead_ = 0;  // the command for which such a copy was started, or 0
  std::set<void*> allocated_;
  std::vector<void*> released_;
  std::unique_ptr<Graph> recording_;            // the one in progress, or null
  std::deque<WorkQueue::Step> before_capture_;  // the work on the queue when it began
};

}  // namespace syncrun::test

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
#include "worker/devices/device.hpp"

namespace syncrun::test {

class OffHostDevice : public detail::worker::devices::WorkerDevice {
 public:
  /// Where device memory really is.
  enum class Memory : std::uint8_t { of_process, of_arena };

  /// `comm` is the communicator of this device and its peers of the same kind. `seed` is for the order of the lanes.
  OffHostDevice(const detail::os::Segment& segment, detail::os::SharedHeap& arena, detail::worker::comm::CommCore& comm,
                Memory memory = Memory::of_process, std::uint32_t seed = 1)
      : comm_(comm),
        lanes_(seed),
        memory_(*this, segment, arena, memory),
        peers_(memory_, segment),
        outputs_(*this, segment, arena) {}

  detail::worker::devices::DeviceParts parts() noexcept override {
    return {memory_, peers_, inputs_, arithmetic_, outputs_, nullptr, &handles_, &graphs_, &arithmetic_};
  }
  detail::worker::comm::CommCore& comm(const detail::protocol::CommandHead&) override { return comm_; }
  detail::worker::comm::CommCore& solo() noexcept override { return solo_; }
  void unpin() override {
    memory_.finish();
    inputs_.abandon();
  }
  detail::protocol::MemorySize memory_size() override { return {}; }
  std::string hardware() const override { return "no GPU"; }
  void abandon() noexcept override {
    lanes_.abandon_work();
    inputs_.abandon();
  }
  bool is_lost() const noexcept override { return lanes_.has_lost_context(); }

 protected:
  /// Called again and again while the device works.
  virtual void poll() {}
  /// Called before the inputs of a call are requested.
  virtual void before_call() {}

 private:
  /// Memory that is freed once work that may use it is done.
  class OwnMemory final : public detail::worker::devices::DeviceMemory {
   public:
    OwnMemory(OffHostDevice& device, const detail::os::Segment& segment, detail::os::SharedHeap& arena, Memory kind)
        : device_(device), segment_(segment), arena_(arena), kind_(kind) {}
    ~OwnMemory() override {
      for (void* memory : allocated_) free(memory);
    }
    void* allocate(std::size_t bytes, detail::os::SharedHeap::Contents contents, std::string_view what) override {
      if (kind_ == Memory::of_arena) {
        return *allocated_.insert(device_view(segment_.at(arena_.allocate(bytes + 1, contents, what)))).first;
      }
      const bool is_zero = contents == detail::os::SharedHeap::Contents::zero;
      void* const memory = is_zero ? std::calloc(bytes + 1, 1) : std::malloc(bytes + 1);
      if (memory == nullptr) throw std::bad_alloc();
      return *allocated_.insert(device_view(memory)).first;
    }
    void release(void* memory) noexcept override {  // work on the queue, or a graph, may use it
      (held_by_graph != nullptr ? *held_by_graph : released_).push_back(memory);
    }
    std::uint64_t place_of(const void* memory) const noexcept override {
      return reinterpret_cast<std::uintptr_t>(memory);
    }
    void* at(std::uint64_t place) const noexcept override { return reinterpret_cast<void*>(place); }
    void copy_in(void* device_memory, const std::byte* shared, std::size_t bytes) override {
      if (bytes != 0) device_.enqueue([=] { std::memcpy(host_view(device_memory), shared, bytes); });
    }
    void copy_out(std::byte* shared, const void* device_memory, std::size_t bytes) override {
      if (bytes != 0) device_.enqueue([=] { std::memcpy(shared, host_view(device_memory), bytes); });
    }
    void copy_within(void* to, const void* from, std::size_t bytes) override {
      if (bytes != 0) device_.enqueue([=] { std::memmove(host_view(to), host_view(from), bytes); });
    }
    void clear(void* device_memory, std::size_t bytes) override {
      if (bytes != 0) device_.enqueue([=] { std::memset(host_view(device_memory), 0, bytes); });
    }
    void finish() override {
      if (held_by_graph != nullptr)
        throw Error(ErrorKind::cuda, "work that is recorded does not run: it cannot be waited for");
      device_.inputs_.flush();
      device_.lanes_.finish([this] { device_.poll(); });
      free_released();
    }

    std::vector<void*>* held_by_graph = nullptr;  // while one is recorded

   private:
    void free(void* memory) {
      if (kind_ == Memory::of_process) return std::free(host_view(memory));
      arena_.free(segment_.offset_of(host_view(memory)), detail::os::SharedHeap::Giveback::later);
    }
    void free_released() {
      for (void* memory : std::exchange(released_, {})) {
        allocated_.erase(memory);
        free(memory);
      }
    }

    OffHostDevice& device_;
    const detail::os::Segment& segment_;
    detail::os::SharedHeap& arena_;
    const Memory kind_;
    std::set<void*> allocated_;
    std::vector<void*> released_;
  };

  /// Peers cannot copy from this device. It copies from CPU devices, whose memory is shared.
  class Peers final : public detail::worker::devices::PeerAccess {
   public:
    Peers(OwnMemory& memory, const detail::os::Segment& segment) : memory_(memory), segment_(segment) {}
    bool is_open_to_peers() const noexcept override { return false; }
    void copy_from_peer(void* to, const detail::worker::devices::PeerMemoryPlace& from, std::size_t bytes) override {
      memory_.copy_in(to, segment_.at(from.place), bytes);
    }

   private:
    OwnMemory& memory_;
    const detail::os::Segment& segment_;
  };

  class Inputs final : public detail::worker::devices::Staging {
   public:
    explicit Inputs(OffHostDevice& device) : Staging(device.lanes_), device_(device) {}
    void begin_command(std::uint64_t command) override {
      device_.before_call();
      Staging::begin_command(command);
    }

   private:
    OffHostDevice& device_;
  };

  class Outputs final : public detail::worker::devices::DeviceOutputs {
   public:
    Outputs(OffHostDevice& device, const detail::os::Segment& segment, detail::os::SharedHeap& arena)
        : device_(device), segment_(segment), arena_(arena) {}
    detail::OutputBuffer allocate(std::size_t bytes) override {
      if (bytes == 0) return {};
      return {device_.memory_.allocate(bytes, detail::os::SharedHeap::Contents::zero, ""), bytes,
              [](void* data, void* outputs) noexcept { static_cast<Outputs*>(outputs)->device_.memory_.release(data); },
              this};
    }
    detail::OutputBuffer adopt(detail::OutputBuffer buffer) override {
      if (buffer.data() == nullptr || buffer.context() == this) return buffer;
      detail::OutputBuffer adopted = allocate(buffer.bytes());
      std::memcpy(host_view(adopted.data()), buffer.data(), buffer.bytes());
      return adopted;
    }
    std::uint64_t share(detail::OutputBuffer buffer) override {
      const detail::OutputBuffer own = adopt(std::move(buffer));
      if (own.data() == nullptr) return 0;
      const std::uint64_t offset = arena_.allocate(own.bytes(), detail::os::SharedHeap::Contents::any, "an output");
      device_.memory_.copy_out(segment_.at(offset), own.data(), own.bytes());
      return offset;
    }
    std::size_t large_bytes() const noexcept override { return std::size_t{64} << 10U; }

   private:
    OffHostDevice& device_;
    const detail::os::Segment& segment_;
    detail::os::SharedHeap& arena_;
  };

  class ArithmeticWork final : public detail::worker::devices::Arithmetic,
                               public detail::worker::devices::GradientNorm {
   public:
    explicit ArithmeticWork(OffHostDevice& device) : device_(device) {}
    void accumulate(DType dtype, Reduction reduction, void* into, const void* value, std::array<double, 2> weights,
                    std::size_t elements) override {
      device_.enqueue([=] {
        detail::arrays::accumulate_elements(dtype, reduction, host_view(into), host_view(value), weights, elements);
      });
    }
    void convert(detail::arrays::ElementTypes types, const void* from, void* to, std::size_t elements) override {
      device_.enqueue([=] { detail::arrays::convert_elements(types, host_view(from), host_view(to), elements); });
    }
    void apply_update(const detail::UpdateWork& work) override {
      device_.enqueue([work] {
        const detail::UpdateWork on_host = host_work(work);
        if (on_host.plan.empty()) detail::arrays::update_elements(on_host);
        else update_by_plan(on_host);
      });
    }
    void sum_squares(const detail::UpdateWork& work, double* squares) override {
      device_.enqueue([=] {
        const detail::UpdateWork on_host = host_work(work);
        *host_view(squares) = detail::sum_of_squares(
            plan_of(on_host), on_host.first, std::span(static_cast<const float*>(on_host.gradient), on_host.elements));
      });
    }
    void take_root(double* number, const double* divisor) override {
      device_.enqueue([=] { *host_view(number) = std::sqrt(*host_view(number)) / *host_view(divisor); });
    }

   private:
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
      if (!(plan.divisor() > 0)) return;
      double factor = 1 / plan.divisor();
      if (plan.is_clipping()) {
        const double norm = work.plan[detail::StepPlan::kNorm];
        if (!std::isfinite(norm)) return;
        factor *= detail::clip_factor(plan.clip_norm(), norm);
      }
      const auto last = work.first + static_cast<std::int64_t>(work.elements);
      plan.for_each_part(work.first, last, [&](std::int64_t begin, std::int64_t end, const detail::PlanPart& own) {
        const auto at = static_cast<std::size_t>(begin - work.first);
        const Adam rule = detail::rule_of_part(*static_cast<const Adam*>(work.rule), own);
        std::vector<float> gradient(static_cast<const float*>(work.gradient) + at,
                                    static_cast<const float*>(work.gradient) + (end - work.first));
        for (float& value : gradient) value = static_cast<float>(value * factor);
        detail::UpdateWork part = work;
        part.rule = &rule;
        part.params = static_cast<float*>(work.params) + at;
        part.gradient = gradient.data();
        for (void*& state : part.state) state = state == nullptr ? nullptr : static_cast<float*>(state) + at;
        part.elements = gradient.size();
        detail::arrays::update_elements(part);
      });
    }

    OffHostDevice& device_;
  };

  class Handles final : public detail::worker::devices::GpuHandles {
   public:
    explicit Handles(WorkQueue& queue) : queue_(queue) {}
    CUstream_st* stream() noexcept override { return reinterpret_cast<CUstream_st*>(&queue_); }
    cublasContext* cublas() override { return nullptr; }
    cudnnContext* cudnn() override { return nullptr; }

   private:
    WorkQueue& queue_;
  };

  /// Recorded work. It keeps the memory that was released while it was recorded.
  struct Graph final : detail::worker::devices::DeviceGraph {
    explicit Graph(OwnMemory& owner) : memory(owner) {}
    ~Graph() override {
      for (void* block : held) memory.release(block);
    }
    OwnMemory& memory;
    std::deque<WorkQueue::Step> steps;
    std::vector<void*> held;
  };

  class Graphs final : public detail::worker::devices::GraphRecorder {
   public:
    Graphs(WorkQueue& queue, OwnMemory& memory) : queue_(queue), memory_(memory) {}
    void begin_capture() override {
      recording_ = std::make_unique<Graph>(memory_);
      memory_.held_by_graph = &recording_->held;
      before_capture_ = queue_.take();
    }
    std::unique_ptr<detail::worker::devices::DeviceGraph> end_capture() override {
      recording_->steps = end();
      return std::move(recording_);
    }
    const char* abandon_capture() noexcept override {
      if (!recording_) return nullptr;
      end();
      recording_.reset();
      return nullptr;
    }
    void launch(detail::worker::devices::DeviceGraph& graph) override {
      queue_.push_all(static_cast<Graph&>(graph).steps);
    }

   private:
    /// Returns what was recorded.
    std::deque<WorkQueue::Step> end() {
      memory_.held_by_graph = nullptr;
      std::deque<WorkQueue::Step> recorded = queue_.take();
      queue_.push_all(std::exchange(before_capture_, {}));
      return recorded;
    }

    WorkQueue& queue_;
    OwnMemory& memory_;
    std::unique_ptr<Graph> recording_;            // the one in progress, or null
    std::deque<WorkQueue::Step> before_capture_;  // the work on the queue when it began
  };

  /// A communicator of one rank, in the order of the device's work.
  class Solo final : public detail::worker::comm::SoloComm {
   public:
    explicit Solo(OwnMemory& memory) : memory_(memory) {}

   private:
    void copy(void* to, const void* from, std::size_t bytes) override { memory_.copy_within(to, from, bytes); }
    OwnMemory& memory_;
  };

  /// Puts work on the queue, as a body does.
  void enqueue(std::function<void()> work) { lanes_.work().push_back(std::move(work)); }

  detail::worker::comm::CommCore& comm_;
  FakeLanes lanes_;
  OwnMemory memory_;
  Peers peers_;
  Inputs inputs_{*this};
  ArithmeticWork arithmetic_{*this};
  Outputs outputs_;
  Handles handles_{lanes_.work()};
  Graphs graphs_{lanes_.work(), memory_};
  Solo solo_{memory_};
};

}  // namespace syncrun::test

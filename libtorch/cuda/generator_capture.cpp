#include "libtorch/cuda/generator_capture.hpp"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/core/Generator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <torch/version.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "libtorch/cuda/generator_kernel.hpp"
#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

using syncrun::detail::os::BeforeLaunch;
using syncrun::detail::os::CaptureListener;

void check_cuda(const char* what, cudaError_t code) {
  if (code == cudaSuccess) return;
  throw Error(ErrorKind::cuda, std::string(what) + ": " + cudaGetErrorString(code), static_cast<int>(code));
}

/// LibTorch 2.6 to 2.11 have such a state of a generator. While `capturing_` is true, kernels that are captured read the seed
/// and the number of the first draw in device memory, and `offset_intragraph_` counts the draws.
template <class State>
concept CanBeCaptured = requires(State& state) {
  state.capturing_ = true;
  state.offset_intragraph_ = std::uint64_t{0};
  state.seed_extragraph_ = at::TensorBase();
  state.offset_extragraph_ = at::TensorBase();
};

/// Whether the process has the LibTorch with which this file was compiled: the members of a state can differ in others.
bool is_version_of_headers() {
  const std::string version =
      "TORCH_VERSION=" + std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + ".";
  return at::show_config().find(version) != std::string::npos;
}

/// Other threads wait with their draws. The mutex is one of LibTorch.
class GeneratorLock {
 public:
  explicit GeneratorLock(at::Generator& generator) : generator_(generator) { generator_.mutex().lock(); }
  ~GeneratorLock() { generator_.mutex().unlock(); }
  GeneratorLock(const GeneratorLock&) = delete;
  GeneratorLock& operator=(const GeneratorLock&) = delete;

 private:
  at::Generator& generator_;
};

/// The generator of a GPU. Graphs refer to it.
class GpuGenerator {
 public:
  explicit GpuGenerator(c10::DeviceIndex device) : device_(c10::kCUDA, device) {}

  at::Generator get() const { return at::globalContext().defaultGenerator(device_); }
  c10::Device device() const noexcept { return device_; }
  /// The device memory that kernels of graphs read: the seed and the number of the first draw.
  const at::Tensor& places() {
    if (!places_.defined()) {
      check_cuda("loading a kernel", kernels::load_generator_kernel());
      places_ = at::empty({2}, at::TensorOptions().dtype(at::kLong).device(device_));
    }
    return places_;
  }
  /// A graph that draws is launched next on this stream.
  void draw(std::uint64_t draws, cudaStream_t stream) {
    at::Generator generator = get();
    const GeneratorLock lock(generator);
    auto* const state = at::check_generator<at::CUDAGeneratorImpl>(generator);
    const std::uint64_t offset = state->philox_offset_per_thread();
    check_cuda("writing the state of LibTorch's generator",
               kernels::write_generator_state(places_.data_ptr<std::int64_t>(), state->current_seed(), offset, stream));
    state->set_philox_offset_per_thread(offset + draws);
  }

 private:
  c10::Device device_;
  at::Tensor places_;
};

class Draws final : public BeforeLaunch {
 public:
  Draws(GpuGenerator& generator, std::uint64_t draws) : generator_(generator), draws_(draws) {}
  void prepare(CUstream_st* stream) override { generator_.draw(draws_, stream); }

 private:
  GpuGenerator& generator_;
  std::uint64_t draws_;
};

at::Generator host_generator() { return at::globalContext().defaultGenerator(at::kCPU); }

at::Tensor host_state() {
  at::Generator generator = host_generator();
  const GeneratorLock lock(generator);
  return generator.get_state();
}

/// During a capture, the generator of the GPU has another state, which counts the draws. It also says that it was just
/// seeded. cuDNN's recurrent layers with dropout, and only they, ask for this: they keep random numbers in device memory,
/// and make new ones after a seed, with a wait that no capture allows. A graph would go on with the old ones.
template <class State>
class GeneratorCapture final : public CaptureListener {
 public:
  explicit GeneratorCapture(c10::DeviceIndex device) : gpu_(device) {}

  void begin_capture() override {
    static_cast<void>(abandon_capture());
    host_before_ = host_state();
    if constexpr (CanBeCaptured<State>) {
      if (!is_supported_) return;
      // Nobody seeds with this number. LibTorch refuses to set any other seed during a capture, and would ignore the same
      // one. But the host code that is captured would begin with the same numbers again in each call.
      constexpr std::uint64_t kNoSeed = 0x53796e6372756e21U;
      auto state = c10::make_intrusive<State>(kNoSeed);
      state->capturing_ = true;
      state->seed_extragraph_ = gpu_.places().narrow(0, 0, 1);
      state->offset_extragraph_ = gpu_.places().narrow(0, 1, 1);
      const auto captured = at::Generator(c10::make_intrusive<at::CUDAGeneratorImpl>(gpu_.device().index(), state));
      at::Generator generator = gpu_.get();
      const GeneratorLock lock(generator);
      auto* const implementation = at::check_generator<at::CUDAGeneratorImpl>(generator);
      gpu_before_ = generator.graphsafe_get_state();
      was_seeded_ = implementation->reset_rnn_state();
      note_seeded(*implementation);
      generator.graphsafe_set_state(captured);
      state_ = std::move(state);
    }
  }
  std::unique_ptr<BeforeLaunch> end_capture() override {
    if (!host_before_.defined()) return nullptr;
    if (!host_before_.equal(host_state())) {
      throw Error(
          ErrorKind::usage,
          "the body has drawn random numbers on the host with LibTorch's generator, or has seeded it, and a graph "
          "would repeat their effect for ever");
    }
    std::uint64_t draws = 0;
    if constexpr (CanBeCaptured<State>) {
      if (state_) draws = state_->offset_intragraph_;
    }
    if (put_back() == Recurrent::dropout) throw Error(ErrorKind::usage, kRecurrentDropout);
    if (draws == 0) return nullptr;
    return std::make_unique<Draws>(gpu_, draws);
  }
  const char* abandon_capture() noexcept override {
    if (!host_before_.defined()) return nullptr;
    try {
      at::Generator generator = host_generator();
      const GeneratorLock lock(generator);
      generator.set_state(host_before_);
    } catch (const c10::Error&) {  // not of a state that it returned
    }
    return put_back() == Recurrent::dropout ? kRecurrentDropout : nullptr;
  }

 private:
  enum class Recurrent : std::uint8_t { no_dropout, dropout };
  static constexpr const char* kRecurrentDropout =
      "a recurrent layer of cuDNN (LSTM, GRU or RNN) has dropout, and keeps its random numbers in a place of its own";

  /// Recurrent layers ask next whether the generator was seeded, and learn that it was.
  static void note_seeded(at::CUDAGeneratorImpl& generator) { generator.set_offset(generator.get_offset()); }

  /// The generator has the state before the capture again. Returns what host code has used since then.
  Recurrent put_back() noexcept {
    host_before_.reset();
    if (!state_) return Recurrent::no_dropout;
    at::Generator generator = gpu_.get();
    const GeneratorLock lock(generator);
    generator.graphsafe_set_state(gpu_before_);
    gpu_before_ = at::Generator();
    state_.reset();
    auto* const implementation = at::check_generator<at::CUDAGeneratorImpl>(generator);
    const bool has_asked = !implementation->reset_rnn_state();
    try {
      if (was_seeded_) note_seeded(*implementation);
    } catch (const c10::Error&) {  // not outside a capture
    }
    return has_asked ? Recurrent::dropout : Recurrent::no_dropout;
  }

  GpuGenerator gpu_;
  bool is_supported_ = is_version_of_headers();
  bool was_seeded_ = false;  // before the capture, and no recurrent layer has asked since then
  at::Tensor host_before_;   // undefined if there is no capture
  at::Generator gpu_before_;
  c10::intrusive_ptr<State> state_;  // null if there is no capture, or if numbers cannot be drawn in graphs
};

}  // namespace

std::unique_ptr<CaptureListener> make_generator_capture(c10::DeviceIndex device) {
  return std::make_unique<GeneratorCapture<at::CUDAGeneratorState>>(device);
}

}  // namespace syncrun::libtorch::detail

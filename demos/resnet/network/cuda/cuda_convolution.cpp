#include "demos/resnet/network/cuda/cuda_convolution.hpp"

#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <cudnn_frontend.h>

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "demos/common/cuda_check.hpp"
#include "demos/common/cuda_owners.hpp"

namespace resnet {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

/// The number of cuDNN's proposals that are tried, best first, and the number of measurements of each.
constexpr std::int64_t kMostPlans = 6;
constexpr int kTimings = 4;

constexpr std::int64_t kInputId = 1;
constexpr std::int64_t kFilterId = 2;
constexpr std::int64_t kOutputId = 3;

void check(fe::error_t status, const std::string& what) {
  if (status.is_good()) return;
  throw std::runtime_error("cuDNN, " + what + ": " + status.get_message());
}

std::int64_t number(std::size_t value) { return static_cast<std::int64_t>(value); }

/// Sets the shape of an array with channels last. cuDNN always lists the dimensions as rows, channels, height, width.
/// The strides say that channels come last.
void set_shape(fe::graph::Tensor_attributes& tensor, std::int64_t id, std::size_t rows, std::size_t channels,
               std::size_t size) {
  const std::int64_t c = number(channels);
  const std::int64_t s = number(size);
  tensor.set_uid(id).set_dim({number(rows), c, s, s}).set_stride({c * s * s, 1, c * s, c});
}

template <typename Attributes>
Attributes geometry(const ConvShape& shape) {
  const std::int64_t pad = number(shape.padding);
  const std::int64_t stride = number(shape.stride);
  return Attributes().set_padding({pad, pad}).set_stride({stride, stride}).set_dilation({1, 1});
}

/// Removes proposals that do not give the same bits each time. For kFloat32, also removes proposals that round more
/// than necessary. Call this after cuDNN has made the proposals.
void take_out_unwanted(fe::graph::Graph& graph, CudaMath math) {
  std::vector<fe::NumericalNote_t> unwanted{fe::NumericalNote_t::NONDETERMINISTIC,
                                            fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION};
  if (math == CudaMath::kFloat32) {
    unwanted.insert(unwanted.end(), {fe::NumericalNote_t::TENSOR_CORE, fe::NumericalNote_t::DOWN_CONVERT_INPUTS,
                                     fe::NumericalNote_t::WINOGRAD, fe::NumericalNote_t::FFT});
  }
  graph.deselect_numeric_notes(unwanted);
}

std::string describe(const PlanKey& key) {
  const ConvShape& shape = key.shape;
  static constexpr std::array<const char*, kConvPasses> kNames{"forward", "backward to the input",
                                                               "backward to the filter"};
  return "convolution " + std::to_string(shape.kernel) + "x" + std::to_string(shape.kernel) + " of " +
         std::to_string(shape.rows) + " x " + std::to_string(shape.size_in) + "^2 x " +
         std::to_string(shape.channels_in) + " to " + std::to_string(shape.channels_out) + " channels, step " +
         std::to_string(shape.stride) + ", " + kNames[static_cast<std::size_t>(key.pass)];
}

/// Measures with two events how long the stream takes between them.
class StreamTimer {
 public:
  void start(cudaStream_t stream) { demos::check_cuda(cudaEventRecord(begin_.get(), stream), "cudaEventRecord"); }
  double microseconds(cudaStream_t stream) {
    float milliseconds = 0;
    demos::check_cuda(cudaEventRecord(end_.get(), stream), "cudaEventRecord");
    demos::check_cuda(cudaEventSynchronize(end_.get()), "cudaEventSynchronize");
    demos::check_cuda(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "cudaEventElapsedTime");
    return 1000.0 * static_cast<double>(milliseconds);
  }

 private:
  demos::CudaEvent begin_ = demos::make_cuda_event(demos::EventUse::kTime);
  demos::CudaEvent end_ = demos::make_cuda_event(demos::EventUse::kTime);
};

/// A convolution as a cuDNN graph, with the plans that cuDNN proposes for it.
class ConvGraph {
 public:
  explicit ConvGraph(const PlanKey& key);

  /// Asks cuDNN for proposals. Returns false if there are none. Call this only once for each object.
  bool propose(cudnnContext* cudnn, fe::HeurMode_t mode);
  std::int64_t proposals() const { return graph_.get_execution_plan_count(); }
  /// The name of a plan. Empty if it has no name that can be written as text.
  std::string name_of(std::int64_t plan) const;
  fe::error_t build(cudnnContext* cudnn, std::int64_t plan) { return graph_.build_plan_at_index(cudnn, plan); }
  std::int64_t workspace_bytes(std::int64_t plan) { return graph_.get_workspace_size_plan_at_index(plan); }
  fe::error_t run(cudnnContext* cudnn, const ConvPlace& place, std::int64_t plan) {
    std::unordered_map<std::int64_t, void*> places{
        {kInputId, place.input}, {kFilterId, place.filter}, {kOutputId, place.output}};
    return graph_.execute_plan_at_index(cudnn, places, place.workspace, plan);
  }
  const PlanKey& key() const { return key_; }

 private:
  PlanKey key_;
  fe::graph::Graph graph_;
};

ConvGraph::ConvGraph(const PlanKey& key) : key_(key) {
  const ConvShape& shape = key.shape;
  graph_.set_io_data_type(key.math == CudaMath::kBfloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::FLOAT)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto given = [&](std::int64_t id, std::size_t rows, std::size_t channels, std::size_t size) {
    fe::graph::Tensor_attributes tensor;
    set_shape(tensor, id, rows, channels, size);
    return graph_.tensor(tensor);
  };
  const auto input = [&] { return given(kInputId, shape.rows, shape.channels_in, shape.size_in); };
  const auto filter = [&] { return given(kFilterId, shape.channels_out, shape.channels_in, shape.kernel); };
  const auto output = [&] { return given(kOutputId, shape.rows, shape.channels_out, shape.size_out()); };
  Tensor result;
  switch (key.pass) {
    case ConvPass::kForward:
      result = graph_.conv_fprop(input(), filter(), geometry<fe::graph::Conv_fprop_attributes>(shape));
      set_shape(*result, kOutputId, shape.rows, shape.channels_out, shape.size_out());
      break;
    case ConvPass::kBackwardInput:
      result = graph_.conv_dgrad(output(), filter(), geometry<fe::graph::Conv_dgrad_attributes>(shape));
      set_shape(*result, kInputId, shape.rows, shape.channels_in, shape.size_in);
      break;
    case ConvPass::kBackwardFilter:
      result = graph_.conv_wgrad(output(), input(), geometry<fe::graph::Conv_wgrad_attributes>(shape));
      set_shape(*result, kFilterId, shape.channels_out, shape.channels_in, shape.kernel);
      break;
  }
  result->set_output(true);
}

bool ConvGraph::propose(cudnnContext* cudnn, fe::HeurMode_t mode) {
  const std::string what = describe(key_);
  check(graph_.validate(), what);
  check(graph_.build_operation_graph(cudnn), what);
  if (graph_.create_execution_plans({mode}).is_bad()) return false;
  take_out_unwanted(graph_, key_.math);
  return true;
}

std::string ConvGraph::name_of(std::int64_t plan) const {
  std::string name;
  const bool is_named = graph_.get_plan_name_at_index(plan, name).is_good() && is_plan_name(name);
  return is_named && !name.starts_with("INVALID") ? name : "";  // cudnn-frontend's text for a plan that it cannot name
}

/// The modes in which cuDNN is asked for plans, in this order. Fallback plans come last, because they may be a thousand
/// times slower.
constexpr std::array kModes{fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK};

std::string property(libraryPropertyType which) {
  int value = 0;
  if (cudnnGetProperty(which, &value) != CUDNN_STATUS_SUCCESS) throw std::runtime_error("cudnnGetProperty failed");
  return std::to_string(value);
}

}  // namespace

struct ConvPlan::Graph {
  ConvGraph graph;
  std::int64_t plan = -1;

  explicit Graph(const PlanKey& key) : graph(key) {}
};

PlanPlace plan_place() {
  int device = 0;
  cudaDeviceProp properties{};
  demos::check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  demos::check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  PlanPlace place{.gpu = properties.name,
                  .multiprocessors = static_cast<std::size_t>(properties.multiProcessorCount),
                  .cudnn = property(MAJOR_VERSION) + "." + property(MINOR_VERSION) + "." + property(PATCH_LEVEL),
                  .frontend = std::to_string(CUDNN_FRONTEND_MAJOR_VERSION) + "." +
                              std::to_string(CUDNN_FRONTEND_MINOR_VERSION) + "." +
                              std::to_string(CUDNN_FRONTEND_PATCH_VERSION)};
  std::replace_if(
      place.gpu.begin(), place.gpu.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return place;
}

std::vector<std::string> proposed_plans(cudnnContext* cudnn, const PlanKey& key) {
  std::vector<std::string> names;
  for (const fe::HeurMode_t mode : kModes) {
    ConvGraph graph(key);
    if (!graph.propose(cudnn, mode)) continue;
    for (std::int64_t plan = 0; plan < graph.proposals(); ++plan) {
      const std::string name = graph.name_of(plan);
      if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) continue;
      if (graph.build(cudnn, plan).is_good()) names.push_back(name);
    }
  }
  return names;
}

ConvPlan::ConvPlan(cudnnContext* cudnn, CUstream_st* stream, const PlanKey& key, const TuningMemory& tuning) {
  if (find(cudnn, stream, key, tuning, nullptr)) return;
  throw std::runtime_error("cuDNN, " + describe(key) + ": none of its plans can be run on this device with " +
                           std::to_string(tuning.workspace_bytes >> 20) + " MiB of workspace" +
                           (refusal_.empty() ? "" : "; the last one: " + refusal_));
}

ConvPlan::ConvPlan(cudnnContext* cudnn, CUstream_st* stream, const PlanKey& key, const TuningMemory& tuning,
                   const PlanChoice& stored) {
  if (find(cudnn, stream, key, tuning, &stored.name)) return;
  throw std::runtime_error("cuDNN, " + describe(key) + ": the stored plan '" + stored.name + "' cannot be used: " +
                           (refusal_.empty() ? "cuDNN does not propose it on this device" : refusal_) +
                           " (--plans with the file of another run takes other plans)");
}

/// Looks for the fastest of all proposals, or for the one with the name `only`. Returns false if no proposal fits.
bool ConvPlan::find(cudnnContext* cudnn, CUstream_st* stream, const PlanKey& key, const TuningMemory& tuning,
                    const std::string* only) {
  for (const fe::HeurMode_t mode : kModes) {
    graph_ = std::make_unique<Graph>(key);
    if (!graph_->graph.propose(cudnn, mode)) continue;
    measure(cudnn, stream, tuning, only);
    if (graph_->plan >= 0) return true;
  }
  return false;
}

/// Returns whether `status` is an error. If it is, keeps the reason, and clears CUDA's last error.
template <class Status>
bool ConvPlan::is_refused(Status status) {
  if (status.is_good()) return false;
  refusal_ = status.get_message();
  static_cast<void>(cudaGetLastError());
  return true;
}

/// Measures the proposals, and remembers the fastest. Leaves out a proposal without a name, because a later run could
/// not choose it again.
void ConvPlan::measure(cudnnContext* cudnn, CUstream_st* stream, const TuningMemory& tuning, const std::string* only) {
  ConvGraph& graph = graph_->graph;
  StreamTimer timer;
  microseconds_ = std::numeric_limits<double>::infinity();
  std::int64_t tried = 0;
  for (std::int64_t plan = 0; plan < graph.proposals() && tried < kMostPlans; ++plan) {
    const std::string name = graph.name_of(plan);
    if (name.empty() || (only != nullptr && name != *only)) continue;
    // A proposal may not support this device, or may be one of those that were removed. Then try the next one.
    if (is_refused(graph.build(cudnn, plan))) continue;
    const std::int64_t bytes = graph.workspace_bytes(plan);
    if (bytes < 0 || bytes > number(tuning.workspace_bytes)) {
      refusal_ =
          "it works in " + std::to_string(bytes) + " bytes, and there are " + std::to_string(tuning.workspace_bytes);
      continue;
    }
    const auto run = [&] { return graph.run(cudnn, tuning.place, plan); };
    if (is_refused(run())) continue;
    ++tried;
    timer.start(stream);
    for (int i = 0; i < kTimings; ++i) check(run(), describe(graph.key()));
    const double time = timer.microseconds(stream) / kTimings;
    if (time >= microseconds_) continue;
    microseconds_ = time;
    choice_ = {name, static_cast<std::size_t>(bytes)};
    graph_->plan = plan;
    if (only != nullptr) return;
  }
}

ConvPlan::ConvPlan(ConvPlan&&) noexcept = default;
ConvPlan::~ConvPlan() = default;

void ConvPlan::run(cudnnContext* cudnn, const ConvPlace& place) const {
  check(graph_->graph.run(cudnn, place, graph_->plan), "running a convolution");
}

}  // namespace resnet

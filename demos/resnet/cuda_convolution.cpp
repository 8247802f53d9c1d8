#include "demos/resnet/cuda_convolution.hpp"

#include <cuda_runtime_api.h>
#include <cudnn_frontend.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "demos/common/cuda_check.hpp"

namespace resnet {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

/// How many of cuDNN's proposals are tried, best first, and how often each.
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

/// Channels last, whatever the order of the dimensions says: cuDNN names them rows, channels, height, width.
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

/// Takes out what does not give the same bits each time and, in plain float32, what rounds more than it must. Only what
/// was proposed before can be taken out.
void take_out_unwanted(fe::graph::Graph& graph, CudaMath math) {
  std::vector<fe::NumericalNote_t> unwanted{fe::NumericalNote_t::NONDETERMINISTIC,
                                            fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION};
  if (math == CudaMath::kFloat32) {
    unwanted.insert(unwanted.end(), {fe::NumericalNote_t::TENSOR_CORE, fe::NumericalNote_t::DOWN_CONVERT_INPUTS,
                                     fe::NumericalNote_t::WINOGRAD, fe::NumericalNote_t::FFT});
  }
  graph.deselect_numeric_notes(unwanted);
}

std::string describe(const ConvShape& shape, ConvPass pass) {
  static constexpr std::array<const char*, kConvPasses> kNames{"forward", "backward to the input",
                                                               "backward to the filter"};
  return "convolution " + std::to_string(shape.kernel) + "x" + std::to_string(shape.kernel) + " of " +
         std::to_string(shape.rows) + " x " + std::to_string(shape.size_in) + "^2 x " +
         std::to_string(shape.channels_in) + " to " + std::to_string(shape.channels_out) + " channels, step " +
         std::to_string(shape.stride) + ", " + kNames[static_cast<std::size_t>(pass)];
}

/// Two events, to see how long the stream takes between them.
class StreamTimer {
 public:
  explicit StreamTimer(cudaStream_t stream) : stream_(stream) {
    demos::check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    demos::check_cuda(cudaEventCreate(&end_), "cudaEventCreate");
  }
  StreamTimer(const StreamTimer&) = delete;
  StreamTimer& operator=(const StreamTimer&) = delete;
  ~StreamTimer() {
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaEventDestroy(end_));
  }
  void start() { demos::check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord"); }
  double microseconds() {
    float milliseconds = 0;
    demos::check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    demos::check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
    demos::check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return 1000.0 * static_cast<double>(milliseconds);
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

struct ConvPlan::Graph {
  fe::graph::Graph graph;
  std::int64_t plan = -1;

  Graph(const ConvShape& shape, ConvPass pass, CudaMath math);
  std::unordered_map<std::int64_t, void*> places(const ConvPlace& place) const {
    return {{kInputId, place.input}, {kFilterId, place.filter}, {kOutputId, place.output}};
  }
};

ConvPlan::Graph::Graph(const ConvShape& shape, ConvPass pass, CudaMath math) {
  graph.set_io_data_type(math == CudaMath::kBfloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::FLOAT)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto given = [&](std::int64_t id, std::size_t rows, std::size_t channels, std::size_t size) {
    fe::graph::Tensor_attributes tensor;
    set_shape(tensor, id, rows, channels, size);
    return graph.tensor(tensor);
  };
  const auto input = [&] { return given(kInputId, shape.rows, shape.channels_in, shape.size_in); };
  const auto filter = [&] { return given(kFilterId, shape.channels_out, shape.channels_in, shape.kernel); };
  const auto output = [&] { return given(kOutputId, shape.rows, shape.channels_out, shape.size_out()); };
  Tensor result;
  switch (pass) {
    case ConvPass::kForward:
      result = graph.conv_fprop(input(), filter(), geometry<fe::graph::Conv_fprop_attributes>(shape));
      set_shape(*result, kOutputId, shape.rows, shape.channels_out, shape.size_out());
      break;
    case ConvPass::kBackwardInput:
      result = graph.conv_dgrad(output(), filter(), geometry<fe::graph::Conv_dgrad_attributes>(shape));
      set_shape(*result, kInputId, shape.rows, shape.channels_in, shape.size_in);
      break;
    case ConvPass::kBackwardFilter:
      result = graph.conv_wgrad(output(), input(), geometry<fe::graph::Conv_wgrad_attributes>(shape));
      set_shape(*result, kFilterId, shape.channels_out, shape.channels_in, shape.kernel);
      break;
  }
  result->set_output(true);
}

ConvPlan::ConvPlan(cudnnContext* cudnn, CUstream_st* stream, const ConvShape& shape, ConvPass pass, CudaMath math,
                   const TuningMemory& tuning) {
  // What is only there so that there is something may be a thousand times slower: not even measured, unless it is needed.
  for (const fe::HeurMode_t mode : {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}) {
    const std::string what = describe(shape, pass);
    graph_ = std::make_unique<Graph>(shape, pass, math);
    check(graph_->graph.validate(), what);
    check(graph_->graph.build_operation_graph(cudnn), what);
    if (graph_->graph.create_execution_plans({mode}).is_bad()) continue;
    take_out_unwanted(graph_->graph, math);
    choose(cudnn, stream, tuning, what);
    if (graph_->plan >= 0) return;
  }
  throw std::runtime_error("cuDNN, " + describe(shape, pass) + ": none of its plans can be run on this device with " +
                           std::to_string(tuning.workspace_bytes >> 20) + " MiB of workspace" +
                           (refusal_.empty() ? "" : "; the last one: " + refusal_));
}

/// Whether it went wrong; then the reason is kept, and CUDA's memory of it is wiped.
template <class Status>
bool ConvPlan::is_refused(Status status) {
  if (status.is_good()) return false;
  refusal_ = status.get_message();
  static_cast<void>(cudaGetLastError());
  return true;
}

/// Measures what was proposed, and remembers the fastest.
void ConvPlan::choose(cudnnContext* cudnn, CUstream_st* stream, const TuningMemory& tuning, const std::string& what) {
  fe::graph::Graph& graph = graph_->graph;
  auto places = graph_->places(tuning.place);
  StreamTimer timer(stream);
  microseconds_ = std::numeric_limits<double>::infinity();
  std::int64_t tried = 0;
  for (std::int64_t plan = 0; plan < graph.get_execution_plan_count() && tried < kMostPlans; ++plan) {
    // A proposal may turn out not to be for this device, or not to be wanted: the next one, then.
    if (is_refused(graph.build_plan_at_index(cudnn, plan))) continue;
    const std::int64_t bytes = graph.get_workspace_size_plan_at_index(plan);
    if (bytes < 0 || bytes > number(tuning.workspace_bytes)) continue;
    const auto run = [&] { return graph.execute_plan_at_index(cudnn, places, tuning.place.workspace, plan); };
    if (is_refused(run())) continue;
    ++tried;
    timer.start();
    for (int i = 0; i < kTimings; ++i) check(run(), what);
    const double time = timer.microseconds() / kTimings;
    if (time >= microseconds_) continue;
    microseconds_ = time;
    workspace_bytes_ = static_cast<std::size_t>(bytes);
    graph_->plan = plan;
  }
}

ConvPlan::ConvPlan(ConvPlan&&) noexcept = default;
ConvPlan::~ConvPlan() = default;

void ConvPlan::run(cudnnContext* cudnn, const ConvPlace& place) const {
  auto places = graph_->places(place);
  check(graph_->graph.execute_plan_at_index(cudnn, places, place.workspace, graph_->plan), "running a convolution");
}

}  // namespace resnet

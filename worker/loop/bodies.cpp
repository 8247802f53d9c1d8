// What bodies and their thunks call: the public worker-side classes, forwarded to the loop of the worker.

#include <cstring>
#include <utility>

#include "common/text/errors.hpp"
#include "worker/loop/command_loop.hpp"
#include "worker/process/user_code.hpp"

namespace syncrun {

// ---- workers --------------------------------------------------------------------------------------------------

int AnyWorker::rank() const noexcept { return core_->attachment().rank; }
int AnyWorker::world_size() const noexcept { return core_->attachment().world_size; }
int AnyWorker::local_rank() const noexcept { return core_->attachment().place.local_rank(rank()); }
int AnyWorker::local_world_size() const noexcept { return core_->attachment().place.local_size; }
int AnyWorker::node() const noexcept { return core_->attachment().place.node; }
int AnyWorker::node_count() const noexcept { return core_->attachment().place.nodes; }
std::string_view AnyWorker::device() const noexcept { return core_->attachment().device; }
std::int64_t AnyWorker::rows() const noexcept { return core_->running().slices().rows(); }
std::int64_t AnyWorker::first_row() const noexcept { return core_->running().slices().first_row(); }
int AnyWorker::slice() const noexcept { return core_->running().slices().index(); }
bool AnyWorker::wants(std::size_t output) const noexcept { return core_->running().outputs().wants(output); }
std::mt19937_64& AnyWorker::rng() noexcept { return core_->tools().rng; }
void AnyWorker::log(LogLevel level, std::string_view message) { core_->tools().logger->write(level, message); }

CUstream_st* CudaWorker::stream() const { return detail::HandleAccess::command_loop(*this).gpu().handles->stream(); }
cublasContext* CudaWorker::cublas() const { return detail::HandleAccess::command_loop(*this).gpu().handles->cublas(); }
cudnnContext* CudaWorker::cudnn() const { return detail::HandleAccess::command_loop(*this).gpu().handles->cudnn(); }

namespace detail {

OutputBuffer allocate_output(CpuWorker& worker, std::size_t bytes) {
  worker::process::end_if_forked();
  return HandleAccess::command_loop(worker).device().outputs.allocate(bytes);
}

OutputBuffer allocate_output(CudaWorker& worker, std::size_t bytes) {
  worker::process::end_if_forked();
  return HandleAccess::command_loop(worker).device().outputs.allocate(bytes);
}

void* scratch_bytes(worker::loop::CommandLoop& core, std::size_t bytes) {
  worker::process::end_if_forked();
  return core.tools().scratch.at_least(bytes);
}

double share_of_rows(worker::loop::CommandLoop& core) noexcept { return core.running().slices().share_of_call(); }
std::int64_t first_element_of_step(worker::loop::CommandLoop& core) noexcept {
  return core.running().first_element_of_step();
}
void forget_graphs(worker::loop::CommandLoop& core) noexcept { core.running().recordings().note_stale(); }
void weigh_slice(worker::loop::CommandLoop& core, double weight) noexcept { core.running().weigh_slice(weight); }

void refuse_captured_value() {
  text::throw_usage(
      "DeviceScalar::value() was called while the body was captured as a CUDA graph, which would keep this value. Read "
      "it on the device: at its address data(), or with LibTorch by tensor()");
}

// ---- WorkerCall -----------------------------------------------------------------------------------------------

bool WorkerCall::next_slice() { return core_->running().next_slice(); }
RawRows WorkerCall::rows(std::size_t argument) { return core_->running().inputs().rows(argument); }
RawArray WorkerCall::whole(std::size_t argument) { return core_->running().inputs().whole(argument); }
RawUpdate WorkerCall::update(std::size_t argument) { return core_->running().updates().update(argument); }
const void* WorkerCall::value(std::size_t argument) { return core_->running().inputs().value(argument); }
std::string_view WorkerCall::text(std::size_t argument) { return core_->running().inputs().text(argument); }
ScalarPlaces WorkerCall::scalar(std::size_t argument) { return core_->running().inputs().scalar(argument); }
void* WorkerCall::object() { return core_->tools().objects.at(core_->running().slices().call().object); }
CpuWorker& WorkerCall::cpu_worker() { return core_->tools().cpu_worker; }
CudaWorker& WorkerCall::cuda_worker() { return core_->tools().cuda_worker; }
Comm& WorkerCall::comm() { return core_->running().user_comm(); }
GradientReady& WorkerCall::gradient_ready() { return core_->running().gradient_ready(); }

void WorkerCall::begin_body() {
  core_->running().inputs().flush();
  // For a profile: the arguments are bound and the body starts. Both belong to Phase::function.
  const worker::call::RunningCall& call = core_->running();
  if (call.binds_arguments()) core_->attachment().note(call.slices().id(), protocol::Phase::function);
}
BodyScope::~BodyScope() { const worker::process::UserCode ends; }
void WorkerCall::accept(std::size_t output, const OutputType& type, std::span<const std::int64_t> extents,
                        OutputBuffer buffer) {
  core_->running().outputs().accept(output, type, extents, std::move(buffer));
}
void WorkerCall::accept_scalar(std::size_t output, const OutputType& type, const void* value) {
  core_->running().outputs().accept_scalar(output, type, value);
}
void WorkerCall::accept_device_scalar(std::size_t output, const OutputType& type, const void* place) {
  core_->running().outputs().accept_device_scalar(output, type, place);
}
SliceRows WorkerCall::slice_rows() { return core_->running().slices().in_share(); }
void WorkerCall::add_slice(DType dtype, void* into, const void* value, std::size_t elements, Reduction reduction) {
  const SliceRows rows = slice_rows();
  core_->device().arithmetic.accumulate(dtype, reduction, into, value,
                                        detail::worker::call::weights_of(rows.before, rows.count), elements);
}
void WorkerCall::average_over_slices() { core_->running().average_over_slices(); }
void WorkerCall::begin_gradient(DType dtype, void* gradient, std::size_t elements, GradientParts parts,
                                Reduction reduction) {
  core_->running().begin_gradient({gradient, elements, dtype}, parts, reduction);
}
bool WorkerCall::end_gradient() { return core_->running().end_gradient(); }
void WorkerCall::begin_update() noexcept { core_->running().note_update(); }
void WorkerCall::replay(void (*run)(void* context), void* context, Capture capture) {
  const std::string why_not = core_->running().replay({run, context}, capture);
  if (!why_not.empty()) core_->tools().logger->write(LogLevel::warning, why_not);
}
void WorkerCall::note_value(std::size_t argument, std::size_t bytes) {
  worker::call::RunningCall& call = core_->running();
  const std::string_view text = bytes == 0 ? call.inputs().text(argument) : std::string_view();
  const auto* const value = bytes == 0 ? text.data() : static_cast<const char*>(call.inputs().value(argument));
  using ValueFor = worker::call::Recordings::ValueFor;
  const bool is_own = call.slices().command().arguments[argument].kind == ArgumentKind::per_worker;
  call.recordings().note_value(std::as_bytes(std::span(value, bytes == 0 ? text.size() : bytes)),
                               is_own ? ValueFor::own_rank : ValueFor::all_ranks);
}
void WorkerCall::note_state(std::span<const std::uint64_t> state) { core_->running().recordings().note_state(state); }

std::span<const std::byte> WorkerCall::construction_arguments() {
  const protocol::Command& command = core_->running().slices().command();
  const protocol::ArgumentSlot& slot = command.arguments[0];
  return {core_->attachment().segment.at(slot.offset), slot.bytes};
}
void WorkerCall::keep_object(void* object, void (*destroy)(void*) noexcept) {
  core_->tools().objects.keep(core_->running().slices().call().object, object, destroy);
}

}  // namespace detail
}  // namespace syncrun

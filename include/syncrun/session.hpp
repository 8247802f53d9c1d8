#pragma once

// The master's side: a session owns the workers, one per device, and makes everything that lives on them.

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "syncrun/any_shared.hpp"
#include "syncrun/convert.hpp"
#include "syncrun/data.hpp"
#include "syncrun/detail/construct.hpp"
#include "syncrun/detail/master_seam.hpp"
#include "syncrun/detail/worker_seam.hpp"
#include "syncrun/error.hpp"
#include "syncrun/function.hpp"
#include "syncrun/options.hpp"
#include "syncrun/profile.hpp"
#include "syncrun/queue.hpp"
#include "syncrun/shared.hpp"

namespace syncrun {

/// One worker process per device, and the way to use them. One live session per process at a time, used from one
/// thread at a time (both checked). Usually made by run(), which hands it to the program.
class Session {
 public:
  /// Starts the workers and waits until all are ready. Throws Error: usage (bad options, a second session), system
  /// (no memory, no processes), worker_lost (one died while starting), timeout.
  explicit Session(const SessionOptions& options = {}) {
    detail::refuse_in_worker();
    core_ = detail::open_session(options);
  }
  /// Without close() before: ends the workers at once, calls in flight included.
  ~Session() {
    if (core_) detail::abandon_session(*core_);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int world_size() const noexcept { return static_cast<int>(devices().size()); }
  /// Devices by rank: "cpu0", "cpu1", ...
  const std::vector<std::string>& devices() const noexcept { return detail::devices_of(*core_); }
  /// Process ids of the workers, by rank.
  std::vector<int> worker_pids() const { return detail::worker_pids_of(*core_); }

  /// A zero-filled array in shared memory: `session.data<float, 2>({500, 784})`. `name` is for messages. Throws Error:
  /// usage if the shape is negative or overflows, system if there is not enough memory.
  template <Element T, std::size_t N>
  Data<T, N> data(const Shape<N>& shape, std::string_view name = {}) {
    return Data<T, N>(detail::make_data(core_, dtype_of<T>, shape.extents(), nullptr, name));
  }
  /// The same with values: `session.data(pixels, Shape{500, 784})`, of any contiguous range.
  template <std::ranges::contiguous_range R, std::size_t N>
  auto data(const R& values, const Shape<N>& shape, std::string_view name = {}) {
    using T = std::ranges::range_value_t<R>;
    detail::check_count(detail::count_of(values), shape.extents());
    return Data<T, N>(detail::make_data(core_, dtype_of<T>, shape.extents(), std::ranges::data(values), name));
  }
  template <std::ranges::contiguous_range R>
  auto data(const R& values, std::string_view name = {}) {
    return data(values, Shape<1>(std::ranges::size(values)), name);
  }
  /// The same with elements of type T, to which the values are converted: `session.data_as<float>(values)`, and of more
  /// dimensions `session.data_as<float>(view_of(values, Shape{500, 784}))`. What can lose values wants lossy(values); see
  /// convert. Throws as data and convert.
  template <Element T, class Values>
  auto data_as(const Values& values, std::string_view name = {}) {
    return detail::data_from<T>(core_, values, name);
  }

  /// The same from a .npy file: `session.load<float, 2>("images.npy")`. Element type and number of dimensions must be the
  /// file's. Throws Error: usage if they are not, or if the file is damaged; system if it cannot be read, or memory runs
  /// out. See checkpoint.hpp for the other way, and for variables.
  template <Element T, std::size_t N>
  Data<T, N> load(const std::filesystem::path& file, std::string_view name = {}) {
    return Data<T, N>(detail::load_data(core_, file, dtype_of<T>, N, name));
  }

  /// The file itself as a Data that can only be read, for what is larger than memory: `session.map_npy<std::uint8_t, 4>(
  /// "images.npy")`. Every process maps it; nothing is copied, and pages are shared with whoever else reads the file. Calls
  /// take it as any Data, rows by index included; writing throws Error (usage). A file that is renamed or removed stays
  /// as it was. One that is truncated fails the calls that find it so, by name, with Error (system); but a master that reads
  /// through view() what is no longer there gets SIGBUS. Throws as load; usage also where elements are not aligned.
  template <Element T, std::size_t N>
  Data<T, N> map_npy(const std::filesystem::path& file, std::string_view name = {}) {
    static_assert(!std::same_as<T, bool>,
                  "a byte of a file may be no bool: map a file of uint8, or load() one of bool");
    return Data<T, N>(detail::map_data(core_, file, dtype_of<T>, N, name));
  }

  /// A variable with a copy on every worker; no rows yet. A name that is given is unique among the variables alive: a
  /// second one is an Error (usage).
  template <Element T, std::size_t N>
  Shared<T, N> shared(std::string_view name = {}) {
    return Shared<T, N>(detail::make_variable(core_, dtype_of<T>, N, name));
  }
  /// The same with values that every worker gets: `session.shared("weights", values, Shape{784, 10})`.
  template <std::ranges::contiguous_range R, std::size_t N>
    requires Element<std::ranges::range_value_t<R>>
  auto shared(std::string_view name, const R& values, const Shape<N>& shape) {
    detail::check_count(detail::count_of(values), shape.extents());
    auto variable = shared<std::ranges::range_value_t<R>, N>(name);
    variable.broadcast(values, shape);
    return variable;
  }
  template <std::ranges::contiguous_range R>
    requires Element<std::ranges::range_value_t<R>>
  auto shared(std::string_view name, const R& values) {
    return shared(name, values, Shape<1>(std::ranges::size(values)));
  }
  /// The variable of that name. Throws Error (usage) if there is none, with the names there are, or if it has another
  /// element type or number of dimensions.
  template <Element T, std::size_t N>
  Shared<T, N> find_shared(std::string_view name) const {
    return Shared<T, N>(detail::find_variable(*core_, name, dtype_of<T>, N));
  }

  /// Collectives on several variables, of any element types and shapes, as members of Shared on each; in one call, and
  /// on GPUs as one where NCCL can: `session.all_reduce({weights, bias}, sr::Reduction::avg)`. All variables are checked
  /// before any worker moves.
  void broadcast(const SharedList& variables, int root, const CollectiveOptions& options = {}) {
    detail::broadcast_copies(resolve(variables, "broadcast"), root, options);
  }
  void all_gather(const SharedList& variables, const CollectiveOptions& options = {}) {
    detail::all_gather_copies(resolve(variables, "all_gather"), options);
  }
  void all_reduce(const SharedList& variables, Reduction reduction, const CollectiveOptions& options = {}) {
    detail::all_reduce_copies(resolve(variables, "all_reduce"), reduction, options);
  }
  void reduce(const SharedList& variables, Reduction reduction, int root, const CollectiveOptions& options = {}) {
    detail::reduce_copies(resolve(variables, "reduce"), reduction, root, options);
  }
  void reduce_scatter(const SharedList& variables, Reduction reduction, const CollectiveOptions& options = {}) {
    detail::reduce_scatter_copies(resolve(variables, "reduce_scatter"), reduction, options);
  }
  /// Given values: `session.scatter({{images, x}, {labels, y}}, {.batch = shuffled})`.
  void broadcast(std::initializer_list<Assignment> assignments) {
    detail::broadcast_values(detail::resolve(*core_, {assignments.begin(), assignments.size()}, "broadcast"));
  }
  void scatter(std::initializer_list<Assignment> assignments, const ScatterOptions& options = {}) {
    detail::scatter_values(detail::resolve(*core_, {assignments.begin(), assignments.size()}, "scatter"), options);
  }
  /// To the master: `const auto [w, b] = session.gather(weights, bias)`.
  template <class... S>
    requires(sizeof...(S) > 0 && (detail::kIsShared<S> && ...))
  auto gather(const S&... variables) const {
    const auto records = resolve({variables...}, "gather");
    std::tuple arrays{detail::array_for_gather(variables)...};
    detail::gather_to(records, places_of(arrays));
    return arrays;
  }
  /// To the master, reduced: `const auto [w, b] = session.reduce(sr::Reduction::avg, weights, bias)`.
  template <class... S>
    requires(sizeof...(S) > 0 && (detail::kIsShared<S> && ...))
  auto reduce(Reduction reduction, const S&... variables) const {
    const auto records = resolve({variables...}, "reduce");
    std::tuple arrays{detail::array_for_reduce(variables)...};
    detail::reduce_to_master(records, reduction, {}, places_of(arrays));
    return arrays;
  }

  /// Makes a function that runs on every worker: of a function, or of a lambda without captures. `name` is for
  /// messages. Can be called at any time.
  template <class F>
    requires(!detail::kIsMethod<F>)
  auto function(F body, std::string_view name = {}) {
    const auto pointer = detail::as_pointer(body);
    return define<decltype(pointer)>(name, nullptr, {detail::make_body(pointer)});
  }
  /// The same of a method of a replicated object, which runs on each worker's own object.
  template <class T, class Method>
    requires detail::kIsMethod<Method>
  auto function(Method method, const Replicated<T>& object, std::string_view name = {}) {
    using Owner = typename detail::BodyTraits<typename detail::PointerIn<Method>::type>::Owner;
    static_assert(std::is_same_v<Owner, T>, "the method belongs to another class than the replicated object");
    return define<Method>(name, object.record(), {detail::make_body(method)});
  }
  /// One function with a body for each kind of device; both take and return the same.
  template <class F, class G>
    requires(!detail::kIsMethod<F> && !std::convertible_to<G, std::string_view>)
  auto function(F cpu_body, G cuda_body, std::string_view name = {}) {
    const auto cpu = detail::as_pointer(cpu_body);
    const auto cuda = detail::as_pointer(cuda_body);
    check_pair<decltype(cpu), decltype(cuda)>();
    return define<decltype(cpu)>(name, nullptr, {detail::make_body(cpu), detail::make_body(cuda)});
  }
  template <class T, class Method, class CudaMethod>
    requires detail::kIsMethod<Method>
  auto function(Method cpu_method, CudaMethod cuda_method, const Replicated<T>& object, std::string_view name = {}) {
    check_pair<Method, CudaMethod>();
    return define<Method>(name, object.record(), {detail::make_body(cpu_method), detail::make_body(cuda_method)});
  }

  /// Builds a T on every worker: `T(CpuWorker&, arguments...)` (on CUDA devices `T(CudaWorker&, arguments...)`) where
  /// there is such a constructor, else `T(arguments...)`. Arguments are trivially copyable values, strings or vectors of trivially copyable elements.
  template <class T, class... Arguments>
  Replicated<T> replicate(const Arguments&... arguments) {
    const auto bodies = detail::construction_bodies<T, detail::Stored<Arguments>...>();
    return Replicated<T>(detail::replicate_object(core_, bodies, bytes_of(arguments...), "a replicated object"));
  }
  /// The same through a factory function that returns the object, called on every worker.
  template <class T, class... P, class... Arguments>
  Replicated<T> replicate(T (*factory)(P...), const Arguments&... arguments) {
    using Factory = detail::Factory<T (*)(P...)>;
    const detail::Body construct{Factory::kDevice, &Factory::template construct<detail::Stored<Arguments>...>,
                                 detail::to_body_pointer(factory)};
    return Replicated<T>(
        detail::replicate_object(core_, {&construct, 1}, bytes_of(arguments...), "a replicated object"));
  }

  /// Starts `count` processes that run `body(producer, arguments...)` and so fill a queue of batches in shared memory:
  ///
  ///   struct Digits { Data<float, 2> images; Data<std::int32_t, 1> labels; };
  ///   void build(Producer<Digits>& out, std::string folder);
  ///   auto queue = session.producers(4, build, {{64, 784}, {64}}, {.capacity = 8}, folder);
  ///
  /// The body is an ordinary function, or a lambda without captures; `shapes` are those of a batch's arrays, with as many
  /// rows as one can have; arguments are as for replicate. The producers end with the queue, and with the session. Throws
  /// Error: usage (bad options, shapes), system (no memory, no processes), worker_lost (one died while starting), timeout.
  template <class F, class... Arguments>
  auto producers(int count, F body, const BatchShapes<typename detail::ProducerBodyOf<F>::Batch>& shapes,
                 const QueueOptions& options = {}, const Arguments&... arguments) {
    using Body = detail::ProducerBodyOf<F>;
    using Batch = typename Body::Batch;
    static_assert(Body::template kTakes<detail::Stored<Arguments>...>,
                  "these arguments do not fit the producer's function (literals arrive as std::string)");
    const detail::HelperBody helper{&Body::template run<detail::Stored<Arguments>...>,
                                    detail::to_body_pointer(detail::as_pointer(body))};
    const auto extents = std::apply(
        [](const auto&... shape) { return std::array{std::span<const std::int64_t>(shape.extents())...}; }, shapes);
    return BatchQueue<Batch>(detail::open_queue(core_, helper, detail::bytes_of(arguments...), count,
                                                detail::BatchTraits<Batch>::types, extents, options));
  }

  /// Waits for every call in flight. Throws the first failure among those whose future was dropped.
  void wait() { detail::wait_all(*core_); }

  /// Where the time of the calls so far went, by function and rank. Waits for calls in flight. Throws Error (usage) unless
  /// SessionOptions::profile or trace (`syncrun --profile`, `--trace`) had it kept.
  [[nodiscard]] std::vector<CallProfile> profile() { return detail::profile_of(*core_); }

  /// Ends the session: waits for calls in flight, lets the workers end, reaps them. Everything made from the session
  /// is an error to use from then on. Throws what failed; the workers are gone in any case.
  void close() { detail::close_session(*core_); }

  /// The framework's own handle.
  const std::shared_ptr<detail::SessionCore>& core() const noexcept { return core_; }

 private:
  std::vector<std::shared_ptr<detail::VariableRecord>> resolve(const SharedList& list, const char* what) const {
    return detail::resolve(*core_, list.variables(), what);
  }
  template <class... Arrays>
  static std::array<void*, sizeof...(Arrays)> places_of(std::tuple<Arrays...>& arrays) noexcept {
    return std::apply([](auto&... array) { return std::array<void*, sizeof...(Arrays)>{array.data()...}; }, arrays);
  }

  template <class Pointer>  // NOLINTNEXTLINE(performance-unnecessary-value-param): it is moved on
  auto define(std::string_view name, std::shared_ptr<detail::ObjectRecord> object,
              std::initializer_list<detail::Body> bodies) {
    using Plain = typename detail::PointerIn<std::remove_const_t<Pointer>>::type;
    using Sig = typename detail::BodyTraits<Plain>::Sig;
    return detail::FunctionFor<Plain>(
        core_, detail::define_function(core_, Sig::info(), {bodies.begin(), bodies.size()}, name, std::move(object)));
  }

  template <class Cpu, class Cuda>
  static void check_pair() {
    using CpuPointer = typename detail::PointerIn<std::remove_const_t<Cpu>>::type;
    using CudaPointer = typename detail::PointerIn<std::remove_const_t<Cuda>>::type;
    static_assert(std::is_same_v<detail::FunctionFor<CpuPointer>, detail::FunctionFor<CudaPointer>>,
                  "the two bodies must take and return the same");
    static_assert(detail::BodyTraits<CpuPointer>::kDevice != detail::BodyDevice::cuda &&
                      detail::BodyTraits<CudaPointer>::kDevice == detail::BodyDevice::cuda,
                  "the bodies come in the order: for CPU devices, for CUDA devices (it has a CudaWorker&)");
  }

  template <class... Arguments>
  static std::vector<std::byte> bytes_of(const Arguments&... arguments) {
    std::vector<std::byte> bytes;
    (detail::put_argument(bytes, detail::Stored<Arguments>(arguments)), ...);
    return bytes;
  }

  std::shared_ptr<detail::SessionCore> core_;
};

}  // namespace syncrun

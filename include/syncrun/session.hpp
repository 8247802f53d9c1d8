#pragma once

// Session: the master's interface to the workers. A session owns the workers, one per device. A session makes the
// arrays, variables, functions, objects and queues that the program uses.

#include <array>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "syncrun/any_shared.hpp"
#include "syncrun/convert.hpp"
#include "syncrun/data.hpp"
#include "syncrun/detail/construct.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/device.hpp"
#include "syncrun/device_memory.hpp"
#include "syncrun/error.hpp"
#include "syncrun/function.hpp"
#include "syncrun/metrics.hpp"
#include "syncrun/options.hpp"
#include "syncrun/profile.hpp"
#include "syncrun/queue.hpp"
#include "syncrun/shared.hpp"

namespace syncrun {

template <class F>
class Verifier;

/// The worker processes of a program, one per device, and the interface to use them. A process can have only one open
/// session at a time, and only one thread at a time may use the session. Syncrun checks both rules. Most programs do
/// not construct a Session: run() makes one and passes it to the program.
class Session {
 public:
  /// Starts the workers and waits until all are ready. Throws Error: usage (bad options, a second session), system (not
  /// enough memory, or no more processes), worker_lost (a worker died while starting), timeout.
  explicit Session(const SessionOptions& options = {}) {
    detail::refuse_in_worker();
    core_ = detail::open_session(options);
  }
  /// If close() was not called, ends the workers at once and abandons the calls in flight.
  ~Session() {
    if (core_) detail::abandon_session(*core_);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// The number of workers, which is the number of ranks.
  int world_size() const noexcept { return static_cast<int>(devices().size()); }
  /// The names of the devices, by rank: "cpu0", "cpu1", ... If the session has several nodes, the node comes first:
  /// "n1:cpu0".
  const std::vector<std::string>& devices() const noexcept { return detail::devices_of(*core_); }
  /// The names of the nodes, in the order of their ranks: "n1", "n2", ... The master is on the first one. Without
  /// `srun` or `mpirun` there is only one node.
  const std::vector<std::string>& nodes() const noexcept { return detail::nodes_of(*core_); }
  /// Finds a device by a name that the user has given to it (`syncrun --devices dev0=cuda0`), or by the name of the
  /// hardware, such as "cuda0". Works after close() too. Throws Error (usage) if there is no such device. The message
  /// lists the names that exist.
  [[nodiscard]] Device device(std::string_view name) const { return detail::device_of(*core_, name); }
  /// Returns the device of a rank. Works after close() too. Throws Error (usage) if there is no such rank.
  [[nodiscard]] Device device(int rank) const { return detail::device_of(*core_, rank); }
  /// Sets how many rows each rank gets, from the next call on: `session.set_weights({1, 1, 2})`. There is one weight
  /// per rank. The ranks that run a call divide its rows in proportion to their weights, in rank order. This holds for
  /// Scattered arguments, CallOptions::rows and Shared::scatter. A rank of weight 0 gets no rows. Averages stay exact,
  /// because Syncrun weights each rank's value by the number of its rows. The weights do not apply to
  /// Shared::reduce_scatter, to Comm::share, or to the state of a sharded train step, which are always divided equally.
  /// Calls in flight keep their division. An empty list restores equal shares.
  ///
  /// Throws Error (usage) if there is not one weight per rank, if a weight is negative or not finite, or if all are 0.
  /// A call with rows throws Error (usage) if all of its ranks have weight 0.
  void set_weights(std::span<const double> weights) { detail::set_weights(*core_, weights); }
  void set_weights(std::initializer_list<double> weights) {
    set_weights(std::span<const double>(weights.begin(), weights.size()));
  }
  /// Returns the weights as they were set, by rank. Returns an empty list if no weights are set: then the shares are
  /// equal.
  [[nodiscard]] std::vector<double> weights() const { return detail::weights_of(*core_); }
  /// Measures how fast each rank computes the rows of a call, sets the weights so that all ranks take equally long, and
  /// returns the weights: `session.balance(f, x, y)`. The sum of the weights is 1. After `f` come the arguments of a
  /// call of `f`. Options come last: `session.balance(f, x, CallOptions{.slices = 4})`, or `session.balance(f, {.rows =
  /// 1000})` if `f` takes no arguments.
  ///
  /// Makes five calls with equal shares of the rows, and drops their results. All five calls have their effects, for
  /// example updates of variables. A rank's time per row is the median over the last three calls.
  /// It includes the time to get the inputs and to run the body, but not the time in collectives of the body. After
  /// balance(), two runs of the same program can differ in the last bits, because the division of rows depends on
  /// measured times. To repeat a run bit for bit, pass its weights() to set_weights().
  ///
  /// Blocks. Throws the same errors as a call of `f`. Also throws Error (usage) if `f` does not run on all ranks, if a
  /// rank has no rows, or if `f` has a Comm& and runs on several GPUs. After an error, the weights are unchanged.
  template <class R, class... Passed, class... Arguments>
  std::vector<double> balance(const Function<R, Passed...>& f, const Arguments&... arguments) {
    return balance_with(f, arguments...);
  }
  template <class R>
  std::vector<double> balance(const Function<R>& f, const CallOptions& options) {
    return balance_with(f, options);
  }

  /// Is my program the same on one worker and on many? Returns a verifier, which the program calls with the arguments of
  /// the function or the training step: `std::cout << session.verify(step)(x, y, {.learning_rate = 1e-3});`. It makes the
  /// call on each of the first eight ranks alone, on all ranks, with other shares, and in slices. It compares results,
  /// variables that are written through an Update, and the gradient of a step with those of rank 0. The result says what
  /// differs, by how much, and the likely reason.
  ///
  /// Afterwards, variables, the number of steps, the weights, and the random generators of workers are as before. So are
  /// the buffers of Replicas, and LibTorch's random generator on workers that have one. Other effects of a body stay, for
  /// example on its own objects. Meanwhile, host memory holds the variables that the call may write, once if all ranks have
  /// equal copies, and two or three copies of the gradient as float64. Blocks.
  ///
  /// The verifier refers to the session and to a step. It throws Error: usage (the function is of another session or for
  /// some ranks only, has a Sliced or a PerWorker parameter, or may write a Value), the error of the call if it fails on
  /// rank 0 too, and the error of an earlier call whose future is gone. Include verify.hpp.
  template <class F>
  [[nodiscard]] Verifier<F> verify(F& f, const VerifyOptions& options = {});
  template <class R, class... Passed>
  [[nodiscard]] Verifier<Function<R, Passed...>> verify(const Function<R, Passed...>& f,
                                                        const VerifyOptions& options = {});

  /// The process ids of the workers, by rank.
  std::vector<int> worker_pids() const { return detail::worker_pids_of(*core_); }

  /// Makes a zero-filled array in shared memory: `session.data<float, 2>({500, 784})`. Error messages contain `name`.
  /// Throws Error: usage if an extent is negative or the size overflows, system if there is not enough memory.
  template <Element T, std::size_t N>
  Data<T, N> data(const Shape<N>& shape, std::string_view name = {}) {
    return Data<T, N>(detail::make_data(core_, dtype_of<T>, shape.extents(), nullptr, name));
  }
  /// Makes an array and copies values into it from any contiguous range: `session.data(pixels, Shape{500, 784})`.
  /// Throws the same errors as above. Throws also Error (usage) if the number of values does not match the shape.
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
  /// Makes an array with elements of type T, and converts the values to T: `session.data_as<float>(values)`. To make an
  /// array of more than one dimension, pass a view: `session.data_as<float>(view_of(values, Shape{500, 784}))`. If the
  /// conversion can lose digits, pass lossy(values); see convert.hpp. Throws the same errors as data() and convert().
  template <Element T, class Values>
  auto data_as(const Values& values, std::string_view name = {}) {
    return detail::data_from<T>(core_, values, name);
  }

  /// Makes an array from a .npy file: `session.load<float, 2>("images.npy")`. T and N must be the element type and the
  /// number of dimensions of the file. Throws Error: usage if T or N does not match, or if the file is damaged; system
  /// if the file cannot be read, or if there is not enough memory. checkpoint.hpp has functions that save arrays and
  /// that load files into variables.
  template <Element T, std::size_t N>
  Data<T, N> load(const std::filesystem::path& file, std::string_view name = {}) {
    return Data<T, N>(detail::load_data(core_, file, dtype_of<T>, N, name));
  }

  /// Maps a .npy file as a read-only Data, for files that are larger than memory:
  /// `session.map_npy<std::uint8_t, 4>("images.npy")`. Every process maps the file. Nothing is copied, and all
  /// processes that read the file share its pages. A call accepts this Data like any other. CallOptions::batch can
  /// select its rows in every way, including by a list of row indices. Writing to this Data throws Error (usage).
  ///
  /// If the file is renamed or removed, this Data keeps its contents. If the file is overwritten or truncated, calls that
  /// read it fail with Error (system). The message names the file. If the master reads a missing part through view(), it
  /// gets the signal SIGBUS.
  ///
  /// If the path contains "{node}", each node maps a file of its own: the one with the number of the node in this place, 0
  /// on the first node and in a session on one machine. The array has the rows of node 0, then those of node 1, and so on.
  /// A call gives each rank rows of its node, and everything that would read a row of another node throws Error (usage).
  /// Data::rows_of_node() returns the rows of a node.
  ///
  /// Throws the same errors as load(). Throws also Error (usage) if the elements in the file are not aligned, or the files
  /// of nodes differ in more than the number of rows. With "{node}", blocks until a worker of each other node has answered.
  template <Element T, std::size_t N>
  Data<T, N> map_npy(const std::filesystem::path& file, std::string_view name = {}) {
    static_assert(!std::same_as<T, bool>,
                  "a byte of a file may be no bool: map a file of uint8, or load() one of bool");
    return Data<T, N>(detail::map_data(core_, file, dtype_of<T>, N, name));
  }
  /// Maps a file that has no header as a read-only Data, for example a file of tokens:
  /// `session.map_raw<std::uint16_t, 1>("train.bin", {-1})`. The elements are little-endian and in row-major order. They
  /// begin `offset_bytes` bytes after the beginning of the file, a multiple of the size of T. If the first extent is -1,
  /// the array has all rows from there to the end of the file. Otherwise, other bytes may follow the elements. If each node
  /// has its own file, this is the shape of each.
  ///
  /// In all else, this Data is like that of map_npy(). Throws Error: usage if an extent or the offset is negative, if the
  /// offset is not a multiple of the size of T, if the file is too short, or if the first extent is -1 and the file does
  /// not end with a whole row; system if the file cannot be read.
  template <Element T, std::size_t N>
  Data<T, N> map_raw(const std::filesystem::path& file, const Shape<N>& shape, std::int64_t offset_bytes = 0,
                     std::string_view name = {}) {
    static_assert(!std::same_as<T, bool>, "a byte of a file may be no bool: map a file of uint8");
    return Data<T, N>(detail::map_raw_data(core_, file, dtype_of<T>, shape.extents(), offset_bytes, name));
  }

  /// Makes a variable with a copy on every worker. At first, the copies have no rows. The name is optional. Throws
  /// Error (usage) if the name is in use. A name is in use as long as the program holds a Shared for the variable with
  /// this name.
  template <Element T, std::size_t N>
  Shared<T, N> shared(std::string_view name = {}) {
    return Shared<T, N>(detail::make_variable(core_, dtype_of<T>, N, name));
  }
  /// Makes a variable and copies these values to every worker: `session.shared("weights", values, Shape{784, 10})`.
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
  /// Makes a Value that lies on a device: `session.value(pixels, Shape{500, 784}, device)`. Copies the values out
  /// of the caller's range and returns, so the caller can change its range at once. Does not wait until the values are
  /// on the device. Without a device, the value lies in the memory of the host
  /// until a call uses it. Error messages contain `name`. Throws Error: usage (the number of values does not match the
  /// shape, or the device is of another session), system (not enough memory).
  template <std::ranges::contiguous_range R, std::size_t N>
    requires Element<std::ranges::range_value_t<R>>
  auto value(const R& values, const Shape<N>& shape, const Device& device, std::string_view name = {}) {
    return make_value(values, shape, &device, name);
  }
  template <std::ranges::contiguous_range R, std::size_t N>
    requires Element<std::ranges::range_value_t<R>>
  auto value(const R& values, const Shape<N>& shape, std::string_view name = {}) {
    return make_value(values, shape, nullptr, name);
  }
  /// The same with the present values of a Data.
  template <Element T, std::size_t N>
  Value<T, N> value(const Data<T, N>& data, const Device& device, std::string_view name = {}) {
    return detail::HandleAccess::make<Value<T, N>>(detail::make_value(core_, detail::record_of(data), &device, name));
  }
  template <Element T, std::size_t N>
  Value<T, N> value(const Data<T, N>& data, std::string_view name = {}) {
    return detail::HandleAccess::make<Value<T, N>>(detail::make_value(core_, detail::record_of(data), nullptr, name));
  }

  /// Returns the variable with the name `name`. Throws Error (usage) if no variable has this name, or if the variable
  /// has another element type or number of dimensions. If no variable has this name, the message lists the names that
  /// exist.
  template <Element T, std::size_t N>
  Shared<T, N> find_shared(std::string_view name) const {
    return Shared<T, N>(detail::find_variable(*core_, name, dtype_of<T>, N));
  }

  /// Collectives on several variables in one call: `session.all_reduce({weights, bias}, sr::Reduction::avg)`. broadcast,
  /// all_gather, all_reduce, reduce and reduce_scatter do for all variables of the list what the function of the same
  /// name in Shared does for one. The variables may have any element types and shapes. On GPUs, the call is one NCCL
  /// group, if NCCL supports the operation. The master checks all variables before it sends anything to the workers.
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
  /// broadcast and scatter copy values from the master to several variables in one call, as Shared::broadcast and
  /// Shared::scatter do for one variable: `session.scatter({{images, x}, {labels, y}}, {.batch = shuffled})`.
  void broadcast(std::initializer_list<Assignment> assignments) {
    detail::broadcast_values(detail::resolve(*core_, {assignments.begin(), assignments.size()}, "broadcast"));
  }
  void scatter(std::initializer_list<Assignment> assignments, const ScatterOptions& options = {}) {
    detail::scatter_values(detail::resolve(*core_, {assignments.begin(), assignments.size()}, "scatter"), options);
  }
  /// Gathers each variable to the master and returns a tuple of arrays:
  /// `const auto [w, b] = session.gather(weights, bias)`.
  template <class... S>
    requires(sizeof...(S) > 0 && (detail::kIsShared<S> && ...))
  auto gather(const S&... variables) const {
    const auto records = resolve({variables...}, "gather");
    std::tuple arrays{detail::array_for(variables)...};
    detail::gather_to(records, detail::Gathered::rows, makers_of(arrays));
    return arrays;
  }
  /// Reduces each variable to the master and returns a tuple of arrays:
  /// `const auto [w, b] = session.reduce(sr::Reduction::avg, weights, bias)`.
  template <class... S>
    requires(sizeof...(S) > 0 && (detail::kIsShared<S> && ...))
  auto reduce(Reduction reduction, const S&... variables) const {
    const auto records = resolve({variables...}, "reduce");
    std::tuple arrays{detail::array_for(variables)...};
    detail::reduce_to_master(records, reduction, {}, makers_of(arrays));
    return arrays;
  }

  /// Makes a function that runs on every worker. `body` is a function, or a lambda without captures. Error messages
  /// contain `name`. The program can make functions as long as the session is open, also after it has made calls.
  template <class F>
    requires(!detail::kIsMethod<F>)
  auto function(F body, std::string_view name = {}) {
    const auto pointer = detail::as_pointer(body);
    return define<decltype(pointer)>(name, nullptr, {detail::make_body(pointer)});
  }
  /// Makes a function from a method of a replicated object. Each worker calls the method on its own object.
  template <class T, class Method>
    requires detail::kIsMethod<Method>
  auto function(Method method, const Replicated<T>& object, std::string_view name = {}) {
    using Owner = typename detail::BodyTraits<typename detail::PointerIn<Method>::type>::Owner;
    static_assert(std::is_same_v<Owner, T>, "the method belongs to another class than the replicated object");
    return define<Method>(name, object.record(), {detail::make_body(method)});
  }
  /// Makes one function with two bodies: one for CPU devices and one for CUDA devices. Both must take the same
  /// parameters and return the same type.
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

  /// Constructs a T on every worker. If T has a constructor `T(CpuWorker&, arguments...)`, the worker uses it.
  /// Otherwise the worker uses `T(arguments...)`. On a CUDA device, the worker looks for `T(CudaWorker&, arguments...)`
  /// instead of `T(CpuWorker&, arguments...)`. Arguments are trivially copyable values, strings, or vectors of
  /// trivially copyable elements.
  ///
  /// Starts the construction and returns. Each worker runs it in turn with its calls. If a constructor throws, every
  /// call of a method of the object throws that error. If there is no such call, wait() and close() throw it.
  template <class T, class... Arguments>
  Replicated<T> replicate(const Arguments&... arguments) {
    const auto bodies = detail::construction_bodies<T, detail::Stored<Arguments>...>();
    return Replicated<T>(detail::replicate_object(core_, bodies, bytes_of(arguments...), "a replicated object"));
  }
  /// Makes a replicated object with a factory function. Every worker calls the factory, which returns the worker's
  /// object.
  template <class T, class... P, class... Arguments>
  Replicated<T> replicate(T (*factory)(P...), const Arguments&... arguments) {
    using Factory = detail::Factory<T (*)(P...)>;
    const detail::Body construct{Factory::kDevice, &Factory::template construct<detail::Stored<Arguments>...>,
                                 detail::to_body_pointer(factory)};
    return Replicated<T>(
        detail::replicate_object(core_, {&construct, 1}, bytes_of(arguments...), "a replicated object"));
  }

  /// Starts `count` producers and returns their queue. A producer is a process that runs
  /// `body(producer, arguments...)`. The producers fill the queue with batches in shared memory:
  ///
  ///   struct Digits { Data<float, 2> images; Data<std::int32_t, 1> labels; };
  ///   void build(Producer<Digits>& out, std::string folder);
  ///   auto queue = session.producers(4, build, {{64, 784}, {64}}, {.capacity = 8}, folder);
  ///
  /// The body is an ordinary function, or a lambda without captures. `shapes` has the shape of each array of a batch.
  /// The first extent of each shape is the largest number of rows that a batch can have. `arguments` can have the same
  /// types as those of replicate(). The producers end when the queue or the session ends. Throws Error: usage (bad
  /// options or shapes), system (not enough memory, or no more processes), worker_lost (a producer died while
  /// starting), timeout.
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

  /// Waits for all calls in flight. If a call failed and the program has dropped its future without get(), throws the
  /// error of that call. If there are several such calls, throws the first error.
  void wait() { detail::wait_all(*core_); }
  /// Waits until one of the futures is ready, and returns its position in the range: the first one if several are
  /// ready. A future whose result was fetched, or that was moved from, does not count. Throws Error (usage) if no
  /// future is left, or if one belongs to another session. If the session ends, throws the error that ended
  /// it. The future of a failed call is ready. Its error is thrown by Future::get, not here.
  template <std::ranges::forward_range Futures>
  [[nodiscard]] std::size_t wait_any(const Futures& futures) {
    return detail::wait_any(*core_, results_of(futures));
  }
  /// Waits until all of the futures are ready. The errors of failed calls are thrown by Future::get, not here.
  template <std::ranges::forward_range Futures>
  void wait_all(const Futures& futures) {
    detail::wait_all(*core_, results_of(futures));
  }
  /// Waits for the calls in flight on a device. Like wait(), throws the error of a failed call whose future was
  /// dropped, even if that call ran on another device. Throws Error (usage) if the session has no such device.
  void synchronize(const Device& device) { detail::synchronize(*core_, device.rank()); }

  /// Returns how much memory a device has, and what lies there. Waits for the calls in flight on this device. Throws
  /// Error (usage) if the session has no such device.
  [[nodiscard]] DeviceMemory memory(const Device& device) { return detail::memory_of(*core_, device); }

  /// Returns how long each phase of the calls has taken so far, by function and rank. Waits for calls in flight first.
  /// Throws Error (usage) unless SessionOptions::profile or SessionOptions::trace is set (`syncrun --profile`,
  /// `syncrun --trace`).
  [[nodiscard]] std::vector<CallProfile> profile() { return detail::profile_of(*core_); }
  /// Returns what each rank has done so far, by rank. Waits for calls in flight first. to_string() makes the text of
  /// Prometheus from it. Throws Error (usage) unless SessionOptions::metrics is set (`syncrun --metrics`).
  [[nodiscard]] std::vector<RankMetrics> metrics() { return detail::metrics_of(*core_); }

  /// Ends the session: waits for calls in flight, and then ends and reaps the workers. After that, using anything made
  /// from the session is an error. Throws Error if a worker did not end normally, or if a call failed and the program
  /// had dropped its future. The workers have ended even if close() throws.
  void close() { detail::close_session(*core_); }

 private:
  friend struct detail::HandleAccess;

  template <class F, class... Arguments>
  std::vector<double> balance_with(const F& f, const Arguments&... arguments) {
    if (detail::HandleAccess::session(f) != core_) {
      throw Error(ErrorKind::usage, "balance: '" + f.name() + "' is of another session");
    }
    std::array<std::vector<double>, detail::kBalanceCalls> times_by_call;
    for (auto& times : times_by_call) times = detail::HandleAccess::measure(f, arguments...);
    return detail::set_measured_weights(*core_, times_by_call);
  }
  template <class Futures>
  std::vector<detail::CallResult*> results_of(const Futures& futures) const {
    std::vector<detail::CallResult*> results;
    for (const auto& future : futures) {
      detail::CallResult* const result = detail::HandleAccess::result(future);
      if (result != nullptr && detail::HandleAccess::session(future) != core_) {
        throw Error(ErrorKind::usage, "future " + std::to_string(results.size()) + " is of another session");
      }
      results.push_back(result);
    }
    return results;
  }
  std::vector<std::shared_ptr<detail::VariableRecord>> resolve(const SharedList& list, const char* what) const {
    return detail::resolve(*core_, list.variables(), what);
  }
  template <class... Arrays>
  static std::array<detail::ArrayMaker, sizeof...(Arrays)> makers_of(std::tuple<Arrays...>& arrays) noexcept {
    return std::apply([](auto&... array) { return std::array{detail::maker_of(array)...}; }, arrays);
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

  template <class R, std::size_t N>
  auto make_value(const R& values, const Shape<N>& shape, const Device* device, std::string_view name) {
    using T = std::ranges::range_value_t<R>;
    detail::check_count(detail::count_of(values), shape.extents());
    return detail::HandleAccess::make<Value<T, N>>(
        detail::make_value(core_, dtype_of<T>, shape.extents(), std::ranges::data(values), device, name));
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

#pragma once

// From a function's type to what happens to each of its parameters: the design's closed table, at compile time.

#include <array>
#include <concepts>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "syncrun/arguments.hpp"
#include "syncrun/data.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/fields.hpp"
#include "syncrun/shared.hpp"

namespace syncrun {

/// See replayable.
template <class F>
struct Replayable {
  F body;
};

/// Marks a body whose work on the device is the same for the same shapes: on a CUDA device what it puts on its stream
/// (kernels, cuBLAS, NCCL) is captured once per shape into a CUDA graph, which later calls launch instead of running the
/// body. Host code in the body is not run then: numbers that change are DeviceScalar<T>, by-value parameters do not
/// compile, and results are arrays or Output::in_device_memory. On a CPU device the body runs as any other.
///
///   auto step = session.function(&Trainer::cpu_step, syncrun::replayable(&Trainer::cuda_step), trainer);
template <class F>
constexpr Replayable<F> replayable(F body) noexcept {
  return {body};
}

namespace detail {

template <class>
inline constexpr bool kAlwaysFalse = false;

// ---- what the caller passes -----------------------------------------------------------------------------------

/// Takes a Data<T, N>, and nothing else readably.
template <class T, std::size_t N>
class DataArgument {
 public:
  DataArgument(const Data<T, N>& data) noexcept : record_(&data.record()) {}  // NOLINT(google-explicit-constructor)
  template <class U, std::size_t M>
    requires(!std::same_as<U, T> || M != N)
  DataArgument(const Data<U, M>&) {  // NOLINT(google-explicit-constructor)
    static_assert(kAlwaysFalse<U>,
                  "this Data has another element type or another number of dimensions than the function's parameter");
  }
  template <class U>
  DataArgument(const U&) {  // NOLINT(google-explicit-constructor)
    static_assert(kAlwaysFalse<U>, "Scattered and Broadcast take a Data: session.data(values) makes one");
  }
  const std::shared_ptr<DataRecord>& record() const noexcept { return *record_; }

 private:
  const std::shared_ptr<DataRecord>* record_;
};

/// Takes a Shared<T, N>, and nothing else readably.
template <class T, std::size_t N>
class SharedArgument {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor)
  SharedArgument(const Shared<T, N>& shared) noexcept : record_(&shared.record()) {}
  template <class U, std::size_t M>
    requires(!std::same_as<U, T> || M != N)
  SharedArgument(const Shared<U, M>&) {  // NOLINT(google-explicit-constructor)
    static_assert(kAlwaysFalse<U>,
                  "this Shared has another element type or another number of dimensions than the function's parameter");
  }
  template <class U>
  SharedArgument(const U&) {  // NOLINT(google-explicit-constructor)
    static_assert(kAlwaysFalse<U>, "Local, Sliced and Update take a Shared: session.shared<T, N>(name) makes one");
  }
  const std::shared_ptr<VariableRecord>& record() const noexcept { return *record_; }

 private:
  const std::shared_ptr<VariableRecord>* record_;
};

/// One value per rank: any contiguous range of T, or a braced list.
template <class T>
class PerWorkerArgument {
 public:
  template <std::ranges::contiguous_range R>
    requires std::same_as<std::ranges::range_value_t<R>, T>
  PerWorkerArgument(const R& values) noexcept  // NOLINT(google-explicit-constructor)
      : values_(std::ranges::data(values), std::ranges::size(values)) {}
  PerWorkerArgument(std::initializer_list<T> values) noexcept : values_(values.begin(), values.size()) {}
  std::span<const T> values() const noexcept { return values_; }

 private:
  std::span<const T> values_;
};

// ---- one parameter --------------------------------------------------------------------------------------------

/// Parameter<P>: `is_passed`, and for passed ones `type`, `Passed`, `add` (master) and `bind` (worker); for the others
/// `inject` (worker). The primary template is the by-value row of the table.
template <class P>
struct Parameter {
  static_assert(
      !std::is_reference_v<P> && !std::is_pointer_v<P>,
      "a replicated function's parameters are: Scattered<const T, N>, Broadcast<const T, N>, PerWorker<T>, "
      "Local<T, N>, Sliced<const T, N>, Update<Op, T, N>, DeviceScalar<T>, CpuWorker&, CudaWorker&, Comm&, or a "
      "trivially copyable value. "
      "Pointers and references mean nothing in another process");
  static_assert(std::is_trivially_copyable_v<P>,
                "by-value parameters cross processes as bytes: trivially copyable only");
  static constexpr bool is_passed = true;
  static constexpr ArgumentType type{ArgumentKind::value, DType::uint8, Reduction::sum, 0, sizeof(P)};
  using Passed = P;
  static void add(CallBuilder& call, const Passed& value) { call.add_value(&value, sizeof(P)); }
  static P bind(WorkerCall& call, std::size_t i) {
    std::array<std::byte, sizeof(P)> bytes;
    std::memcpy(bytes.data(), call.value(i), sizeof(P));
    return std::bit_cast<P>(bytes);
  }
};

template <class P>
struct Parameter<const P> : Parameter<P> {};
template <class P>
struct Parameter<const P&> : Parameter<P> {};

template <ArgumentKind kKind, class T, std::size_t N, Reduction kReduction = Reduction::sum>
struct ArrayParameter {
  static constexpr bool is_passed = true;
  static constexpr ArgumentType type{kKind, dtype_of<T>, kReduction, static_cast<std::uint8_t>(N), 0};
};

template <class T, std::size_t N>
struct Parameter<Scattered<T, N>> : ArrayParameter<ArgumentKind::scattered, std::remove_const_t<T>, N> {
  using Passed = DataArgument<std::remove_const_t<T>, N>;
  static void add(CallBuilder& call, const Passed& data) { call.add_data(data.record()); }
  static Scattered<T, N> bind(WorkerCall& call, std::size_t i) {
    const RawRows rows = call.rows(i);
    return {rows.rows.view<T, N>(), rows.first_row};
  }
};

template <class T, std::size_t N>
struct Parameter<Broadcast<T, N>> : ArrayParameter<ArgumentKind::broadcast, std::remove_const_t<T>, N> {
  using Passed = DataArgument<std::remove_const_t<T>, N>;
  static void add(CallBuilder& call, const Passed& data) { call.add_data(data.record()); }
  static Broadcast<T, N> bind(WorkerCall& call, std::size_t i) { return Broadcast<T, N>(call.whole(i).view<T, N>()); }
};

template <class T>
struct Parameter<PerWorker<T>> {
  static constexpr bool is_passed = true;
  static constexpr ArgumentType type{ArgumentKind::per_worker, DType::uint8, Reduction::sum, 0, sizeof(T)};
  using Passed = PerWorkerArgument<T>;
  static void add(CallBuilder& call, const Passed& values) {
    call.add_per_worker(values.values().data(), values.values().size(), sizeof(T));
  }
  static PerWorker<T> bind(WorkerCall& call, std::size_t i) { return PerWorker<T>(Parameter<T>::bind(call, i)); }
};

template <class T, std::size_t N>
struct Parameter<Local<T, N>> : ArrayParameter<ArgumentKind::local, T, N> {
  using Passed = SharedArgument<T, N>;
  static void add(CallBuilder& call, const Passed& shared) { call.add_variable(shared.record()); }
  static Local<T, N> bind(WorkerCall& call, std::size_t i) { return Local<T, N>(call.whole(i).view<T, N>()); }
};

template <class T, std::size_t N>
struct Parameter<Sliced<T, N>> : ArrayParameter<ArgumentKind::sliced, std::remove_const_t<T>, N> {
  using Passed = SharedArgument<std::remove_const_t<T>, N>;
  static void add(CallBuilder& call, const Passed& shared) { call.add_variable(shared.record()); }
  static Sliced<T, N> bind(WorkerCall& call, std::size_t i) { return Sliced<T, N>(call.rows(i).rows.view<T, N>()); }
};

template <class Op, class T, std::size_t N>
struct Parameter<Update<Op, T, N>> : ArrayParameter<ArgumentKind::update, T, N, Op::value> {
  static_assert(Op::value != Reduction::avg || FloatingElement<T>, "an average needs a floating-point element type");
  static_assert(!std::same_as<T, bool>, "bool cannot be accumulated");
  using Passed = SharedArgument<T, N>;
  static void add(CallBuilder& call, const Passed& shared) { call.add_variable(shared.record()); }
  static Update<Op, T, N> bind(WorkerCall& call, std::size_t i) {
    const RawUpdate update = call.update(i);
    return {update.original.view<const T, N>(), update.value.view<T, N>()};
  }
};

template <class T>
struct Parameter<DeviceScalar<T>> {
  static constexpr bool is_passed = true;
  static constexpr ArgumentType type{ArgumentKind::device_scalar, DType::uint8, Reduction::sum, 0, sizeof(T)};
  using Passed = T;
  static void add(CallBuilder& call, const Passed& value) { call.add_value(&value, sizeof(T)); }
  static DeviceScalar<T> bind(WorkerCall& call, std::size_t i) {
    return DeviceScalar<T>(static_cast<const T*>(call.scalar(i)));
  }
};

template <>
struct Parameter<CpuWorker&> {
  static constexpr bool is_passed = false;
  static CpuWorker& inject(WorkerCall& call) { return call.cpu_worker(); }
};

template <>
struct Parameter<CudaWorker&> {
  static constexpr bool is_passed = false;
  static CudaWorker& inject(WorkerCall& call) { return call.cuda_worker(); }
};

template <>
struct Parameter<Comm&> {
  static constexpr bool is_passed = false;
  static Comm& inject(WorkerCall& call) { return call.comm(); }
};

// ---- a whole signature ----------------------------------------------------------------------------------------

/// Whether a body is handed device memory by this parameter.
template <class P>
inline constexpr bool kSeesMemory = false;
template <class P>
  requires(Parameter<P>::is_passed)
inline constexpr bool kSeesMemory<P> =
    Parameter<P>::type.kind != ArgumentKind::value && Parameter<P>::type.kind != ArgumentKind::per_worker;

/// What a replayable function may take: nothing that its host code could read.
template <class P>
inline constexpr bool kMayReplay = !Parameter<P>::is_passed || kSeesMemory<P>;

template <class... P>
struct TypeList {};

template <class List, class... P>
struct PassedOnly;
template <class... Kept>
struct PassedOnly<TypeList<Kept...>> {
  using type = TypeList<Kept...>;
};
template <class... Kept, class P, class... Rest>
struct PassedOnly<TypeList<Kept...>, P, Rest...> {
  using type = typename std::conditional_t<Parameter<P>::is_passed,
                                           PassedOnly<TypeList<Kept..., std::remove_cvref_t<P>>, Rest...>,
                                           PassedOnly<TypeList<Kept...>, Rest...>>::type;
};

template <class R>
constexpr auto output_types() {
  if constexpr (std::is_void_v<R>) {
    return std::array<OutputType, 0>{};
  } else if constexpr (kIsOutput<R>) {
    return std::array{OutputType{dtype_of<typename R::element_type>, R::reduction, R::dimensions}};
  } else {
    using Types = decltype(with_fields(
        std::declval<R&>(), [](auto&... field) { return FieldList<std::remove_reference_t<decltype(field)>...>{}; }));
    return []<class... F>(FieldList<F...>) {
      return std::array{OutputType{dtype_of<typename F::element_type>, F::reduction, F::dimensions}...};
    }(Types{});
  }
}

template <class... P>
constexpr auto argument_types(TypeList<P...>) {
  return std::array<ArgumentType, sizeof...(P)>{Parameter<P>::type...};
}

template <class R, class... P>
struct Signature {
  static_assert(Result<R>,
                "a replicated function returns void, one of Avg, Sum, Min, Max, Prod, Gather, or a plain "
                "struct of up to twelve of them");
  using Passed = typename PassedOnly<TypeList<>, P...>::type;
  static constexpr bool kHasComm = (std::same_as<P, Comm&> || ...);
  static constexpr auto kArguments = argument_types(Passed{});
  static constexpr auto kOutputs = output_types<R>();
  static_assert(kArguments.size() <= kMaxArguments, "a replicated function takes up to sixteen arguments");

  static SignatureInfo info() noexcept { return {kArguments, kOutputs, kHasComm}; }

  /// Runs `invoke(parameters...)` once per slice and hands over what it returns.
  template <class Invoke>
  static void run(WorkerCall& call, Invoke&& invoke) {
    while (call.next_slice()) run_slice(call, invoke, std::index_sequence_for<P...>{});
  }

  /// The same for a replayable function.
  template <class Invoke>
  static void replay(WorkerCall& call, Invoke&& invoke) {
    static_assert(
        (kMayReplay<P> && ...),
        "a replayable function's host code runs only when it is captured: a by-value parameter would keep that "
        "call's value for ever. Take a DeviceScalar<T> and read it on the device");
    while (call.next_slice()) replay_slice(call, invoke, std::index_sequence_for<P...>{});
  }

 private:
  /// Index among the passed arguments of parameter kIndex.
  template <std::size_t kIndex>
  static constexpr std::size_t passed_before() {
    constexpr std::array<bool, sizeof...(P) + 1> kPassed{Parameter<P>::is_passed..., false};
    std::size_t count = 0;
    for (std::size_t i = 0; i < kIndex; ++i) count += kPassed[i] ? 1 : 0;
    return count;
  }

  template <class Q, std::size_t kIndex>
  static decltype(auto) bind(WorkerCall& call) {
    if constexpr (Parameter<Q>::is_passed) return Parameter<Q>::bind(call, passed_before<kIndex>());
    else return Parameter<Q>::inject(call);
  }

  template <class Invoke, std::size_t... I>
  static void run_slice([[maybe_unused]] WorkerCall& call, Invoke& invoke, std::index_sequence<I...>) {
    std::tuple<decltype(bind<P, I>(call))...> parameters{bind<P, I>(call)...};  // braces: left to right
    call.begin_body();
    if constexpr (std::is_void_v<R>) std::apply(invoke, std::move(parameters));
    else hand_over(call, std::apply(invoke, std::move(parameters)));
  }

  /// What is bound must be bound before the capture begins: inputs arrive outside the graph.
  template <class Invoke, std::size_t... I>
  static void replay_slice([[maybe_unused]] WorkerCall& call, Invoke& invoke, std::index_sequence<I...>) {
    std::tuple<decltype(bind<P, I>(call))...> parameters{bind<P, I>(call)...};  // braces: left to right
    auto run = [&] {
      if constexpr (std::is_void_v<R>) std::apply(invoke, parameters);
      else hand_over(call, std::apply(invoke, parameters));
    };
    call.replay([](void* context) { (*static_cast<decltype(run)*>(context))(); }, &run);
  }

  template <class Outputs>
  static void hand_over(WorkerCall& call, Outputs result) {
    std::size_t index = 0;
    for_each_output(result, [&](auto& output) {
      using O = std::remove_reference_t<decltype(output)>;
      if constexpr (O::dimensions == 0) {
        const auto value = output.value();
        if (output.place() != nullptr) call.accept_device_scalar(index, kOutputs[index], output.place());
        else call.accept_scalar(index, kOutputs[index], &value);
      } else {
        const auto shape = output.shape();
        call.accept(index, kOutputs[index], shape.extents(), output.release());
      }
      ++index;
    });
  }
};

/// Makes the caller's result from what arrived.
template <class R>
R assemble([[maybe_unused]] CallResult& arrived) {
  if constexpr (!std::is_void_v<R>) {
    R result{};
    std::size_t index = 0;
    for_each_output(result, [&](auto& output) {
      using O = std::remove_reference_t<decltype(output)>;
      RawOutput& raw = arrived.outputs[index++];
      if constexpr (O::dimensions == 0) {
        typename O::element_type value;
        std::memcpy(&value, raw.scalar.data(), sizeof(value));
        output = O(value);
      } else {
        Shape<O::dimensions> shape;
        for (std::size_t i = 0; i < O::dimensions; ++i) shape[i] = raw.extents[i];
        output = O(shape, std::move(raw.buffer));
      }
    });
    return result;
  }
}

// ---- bodies ---------------------------------------------------------------------------------------------------

/// Memory is that of one kind of device; where a body sees none, and no worker either, any will do.
template <class... P>
constexpr BodyDevice device_of() {
  static_assert(!((std::same_as<P, CudaWorker&> || ...) && (std::same_as<P, CpuWorker&> || ...)),
                "a body runs on one kind of device: take a CpuWorker& or a CudaWorker&");
  if ((std::same_as<P, CudaWorker&> || ...)) return BodyDevice::cuda;
  return (std::same_as<P, CpuWorker&> || ...) || (kSeesMemory<P> || ...) ? BodyDevice::cpu : BodyDevice::any;
}

template <class Pointer>
BodyPointer to_body_pointer(Pointer pointer) noexcept {
  static_assert(sizeof(Pointer) <= sizeof(BodyPointer::words));
  BodyPointer body;
  std::memcpy(body.words.data(), &pointer, sizeof(Pointer));
  body.is_member = std::is_member_function_pointer_v<Pointer>;
  return body;
}

template <class Pointer>
Pointer from_body_pointer(const BodyPointer& body) noexcept {
  Pointer pointer;
  std::memcpy(&pointer, body.words.data(), sizeof(Pointer));
  return pointer;
}

/// BodyTraits<F>: Signature, and the thunk that runs an F on a worker.
template <class F>
struct BodyTraits {
  static_assert(kAlwaysFalse<F>, "not a function, a captureless lambda or a method of a replicated object");
};

template <class R, class... P>
struct BodyTraits<R (*)(P...)> {
  using Sig = Signature<R, P...>;
  using Owner = void;
  using ResultType = R;
  static constexpr BodyDevice kDevice = device_of<P...>();
  static void run(WorkerCall& call, const BodyPointer& body) {
    const auto function = from_body_pointer<R (*)(P...)>(body);
    Sig::run(call, [&](auto&&... p) -> R { return function(std::forward<decltype(p)>(p)...); });
  }
  static void replay(WorkerCall& call, const BodyPointer& body) {
    const auto function = from_body_pointer<R (*)(P...)>(body);
    Sig::replay(call, [&](auto&&... p) -> R { return function(std::forward<decltype(p)>(p)...); });
  }
};
template <class R, class... P>
struct BodyTraits<R (*)(P...) noexcept> : BodyTraits<R (*)(P...)> {};

template <class C, class R, class Pointer, class... P>
struct MethodTraits {
  using Sig = Signature<R, P...>;
  using Owner = C;
  using ResultType = R;
  static constexpr BodyDevice kDevice = device_of<P...>();
  static void run(WorkerCall& call, const BodyPointer& body) {
    const auto method = from_body_pointer<Pointer>(body);
    C& object = *static_cast<C*>(call.object());
    Sig::run(call, [&](auto&&... p) -> R { return (object.*method)(std::forward<decltype(p)>(p)...); });
  }
  static void replay(WorkerCall& call, const BodyPointer& body) {
    const auto method = from_body_pointer<Pointer>(body);
    C& object = *static_cast<C*>(call.object());
    Sig::replay(call, [&](auto&&... p) -> R { return (object.*method)(std::forward<decltype(p)>(p)...); });
  }
};
// clang-format off
template <class R, class C, class... P> struct BodyTraits<R (C::*)(P...)> : MethodTraits<C, R, R (C::*)(P...), P...> {};
template <class R, class C, class... P> struct BodyTraits<R (C::*)(P...) const> : MethodTraits<C, R, R (C::*)(P...) const, P...> {};
template <class R, class C, class... P> struct BodyTraits<R (C::*)(P...) noexcept> : MethodTraits<C, R, R (C::*)(P...), P...> {};
template <class R, class C, class... P> struct BodyTraits<R (C::*)(P...) const noexcept> : MethodTraits<C, R, R (C::*)(P...) const, P...> {};
// clang-format on

template <class F>
struct LambdaPointer;
template <class R, class C, class... P>
struct LambdaPointer<R (C::*)(P...) const> {
  using type = R (*)(P...);
};
template <class R, class C, class... P>
struct LambdaPointer<R (C::*)(P...) const noexcept> {
  using type = R (*)(P...);
};

/// A function pointer stays what it is; a captureless lambda becomes one.
template <class F>
auto as_pointer(F f) {
  if constexpr (std::is_class_v<F>) {
    static_assert(
        requires { &F::operator(); }, "a generic or overloaded functor has no one signature");
    static_assert(std::is_empty_v<F>,
                  "a lambda that captures cannot run in another process: pass values as arguments, keep state in a "
                  "replicated object");
    return static_cast<typename LambdaPointer<decltype(&F::operator())>::type>(f);
  } else {
    return f;
  }
}

template <class Pointer>
Body make_body(Pointer pointer) noexcept {
  using Traits = BodyTraits<Pointer>;
  return {Traits::kDevice, &Traits::run, to_body_pointer(pointer)};
}

template <class F>
Body make_body(const Replayable<F>& replayable) noexcept {
  using Traits = BodyTraits<F>;
  return {Traits::kDevice, &Traits::replay, to_body_pointer(replayable.body)};
}

template <class F>
auto as_pointer(const Replayable<F>& replayable) {
  const auto pointer = as_pointer(replayable.body);
  return Replayable<std::remove_const_t<decltype(pointer)>>{pointer};
}

template <class F>
struct PointerIn {
  using type = F;
};
template <class F>
struct PointerIn<Replayable<F>> {
  using type = F;
};
template <class F>
inline constexpr bool kIsMethod = std::is_member_function_pointer_v<typename PointerIn<F>::type>;

}  // namespace detail
}  // namespace syncrun

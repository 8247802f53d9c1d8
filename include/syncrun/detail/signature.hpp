#pragma once

// Derives from a function's type what happens to each of its parameters, at compile time. This is the table of
// arguments.hpp in code. No other parameter types are possible.

#include <array>
#include <bit>
#include <concepts>
#include <cstring>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "syncrun/arguments.hpp"
#include "syncrun/convert.hpp"
#include "syncrun/data.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/detail/fields.hpp"
#include "syncrun/detail/handle_access.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/detail/names.hpp"
#include "syncrun/detail/passed.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/replayable.hpp"
#include "syncrun/shared.hpp"

namespace syncrun::detail {

// ---- one parameter --------------------------------------------------------------------------------------------

/// True for types that are trivially copyable but refer to memory of the master. They mean nothing in another process.
template <class P>
inline constexpr bool kPointsElsewhere = false;
template <class T, std::size_t N>
inline constexpr bool kPointsElsewhere<std::span<T, N>> = true;
template <class C, class Traits>
inline constexpr bool kPointsElsewhere<std::basic_string_view<C, Traits>> = true;
template <class T, std::size_t N>
inline constexpr bool kPointsElsewhere<ArrayView<T, N>> = true;

/// What happens to a parameter of type P. If the caller passes an argument for it, `is_passed` is true, and there are
/// `type`, `Passed`, `add` (in the master) and `bind` (in the worker). Otherwise there is `inject` (in the worker). The
/// primary template is for parameters by value.
template <class P>
struct Parameter {
  static_assert(!std::is_reference_v<P> && !std::is_pointer_v<P>,
                "a replicated function's parameters are: Scattered<const T, N>, Broadcast<const T, N>, PerWorker<T>, "
                "Local<T, N>, Sliced<const T, N>, Update<Op, T, N>, DeviceScalar<T>, CpuWorker&, CudaWorker&, Comm&, a "
                "std::string_view, or a trivially copyable value. "
                "Pointers and references mean nothing in another process");
  static_assert(
      std::is_trivially_copyable_v<P>,
      "by-value parameters cross processes as bytes: trivially copyable only; an array is a "
      "Scattered<const T, N> or a Broadcast<const T, N>, a text is a std::string_view, other state a replicated "
      "object");
  static_assert(
      !kPointsElsewhere<P>,
      "a span, a wide string_view or an ArrayView is a pointer to memory of the master's, which means nothing in "
      "another process: write std::string_view, Scattered<const T, N> (this worker's rows) or Broadcast<const T, N> "
      "(all of it)");
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
  requires std::same_as<P, CpuWorker> || std::same_as<P, CudaWorker> || std::same_as<P, Comm> ||
           std::same_as<P, GradientReady>
struct Parameter<P> {
  static_assert(sizeof(P) == 0,
                "take the worker, and the communicator, by reference: CpuWorker&, CudaWorker&, Comm&, GradientReady&");
  static constexpr bool is_passed = false;
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
  using Passed = ScatteredArgument<std::remove_const_t<T>, N>;
  static void add(CallBuilder& call, const Passed& data) { call.add_data(data.record(), data.rows()); }
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
  static_assert(
      !kPointsElsewhere<T>,
      "PerWorker takes values: a text or a view is a pointer to memory of the master's, which means nothing in "
      "another process");
  static constexpr bool is_passed = true;
  static constexpr ArgumentType type{ArgumentKind::per_worker, DType::uint8, Reduction::sum, 0, sizeof(T)};
  using Passed = PerWorkerArgument<T>;
  static void add(CallBuilder& call, const Passed& values) {
    call.add_per_worker(values.values().data(), values.values().size(), sizeof(T));
  }
  static PerWorker<T> bind(WorkerCall& call, std::size_t i) { return PerWorker<T>(Parameter<T>::bind(call, i)); }
};

template <class T, std::size_t N>
struct Parameter<Local<T, N>>
    : ArrayParameter<std::is_const_v<T> ? ArgumentKind::local_read : ArgumentKind::local, std::remove_const_t<T>, N> {
  using Passed = SharedArgument<std::remove_const_t<T>, N>;
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

template <>
struct Parameter<std::string_view> {
  static constexpr bool is_passed = true;
  static constexpr ArgumentType type{ArgumentKind::text, DType::uint8, Reduction::sum, 0, 0};
  using Passed = TextArgument;
  static void add(CallBuilder& call, const Passed& text) { call.add_text(text.text()); }
  static std::string_view bind(WorkerCall& call, std::size_t i) { return call.text(i); }
};

template <class T>
struct Parameter<DeviceScalar<T>> {
  static_assert(!kPointsElsewhere<T>, "DeviceScalar takes a value, not a pointer to memory of the master's");
  static constexpr bool is_passed = true;
  static constexpr ArgumentType type{ArgumentKind::device_scalar, DType::uint8, Reduction::sum, 0, sizeof(T)};
  using Passed = T;
  static void add(CallBuilder& call, const Passed& value) { call.add_value(&value, sizeof(T)); }
  static DeviceScalar<T> bind(WorkerCall& call, std::size_t i) { return DeviceScalar<T>(call.scalar(i)); }
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

template <>
struct Parameter<GradientReady&> {
  static constexpr bool is_passed = false;
  static GradientReady& inject(WorkerCall& call) { return call.gradient_ready(); }
};

template <>
struct Parameter<GradientCount&> {
  static constexpr bool is_passed = false;
  static GradientCount& inject(WorkerCall& call) noexcept { return call.gradient_count(); }
};

// ---- a whole signature ----------------------------------------------------------------------------------------

/// Whether a body gets an address in device memory by this parameter.
template <class P>
inline constexpr bool kSeesMemory = false;
template <class P>
  requires(Parameter<P>::is_passed)
inline constexpr bool kSeesMemory<P> =
    Parameter<P>::type.kind != ArgumentKind::value && Parameter<P>::type.kind != ArgumentKind::per_worker &&
    Parameter<P>::type.kind != ArgumentKind::text;

/// Whether host code can read the argument of this parameter.
template <class P>
inline constexpr bool kIsByValue = Parameter<P>::is_passed && !kSeesMemory<P>;

template <class... P>
struct TypeList {};

/// Made<First..., P...> of a TypeList<P...>.
template <template <class...> class Made, class List, class... First>
struct OfList;
template <template <class...> class Made, class... P, class... First>
struct OfList<Made, TypeList<P...>, First...> {
  using type = Made<First..., P...>;
};
template <template <class...> class Made, class List, class... First>
using Listed = typename OfList<Made, List, First...>::type;

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

/// The type of Data that a Scattered or Broadcast parameter takes.
template <class P>
struct DataIn {
  static constexpr bool kIsData = false;
};
template <class T, std::size_t N>
struct DataIn<Scattered<T, N>> {
  static constexpr bool kIsData = true;
  using type = Data<std::remove_const_t<T>, N>;
};
template <class T, std::size_t N>
struct DataIn<Broadcast<T, N>> : DataIn<Scattered<T, N>> {};
template <class T>
struct DataIn<Broadcast<T, 0>> {
  static constexpr bool kIsData = false;
};

template <class List, class... P>
struct DataOnly;
template <class... Kept>
struct DataOnly<TypeList<Kept...>> {
  using type = TypeList<Kept...>;
};
template <class... Kept, class P, class... Rest>
struct DataOnly<TypeList<Kept...>, P, Rest...> {
  static constexpr auto list() {
    if constexpr (DataIn<P>::kIsData) return DataOnly<TypeList<Kept..., typename DataIn<P>::type>, Rest...>{};
    else return DataOnly<TypeList<Kept...>, Rest...>{};
  }
  using type = typename decltype(list())::type;
};

template <class... D, class... Values>
auto make_inputs(const std::shared_ptr<SessionCore>& session, TypeList<D...>, const Values&... values) {
  static_assert(sizeof...(D) == sizeof...(Values),
                "inputs() takes one array of the host for each Scattered and Broadcast parameter");
  if constexpr (sizeof...(D) == sizeof...(Values))
    return std::tuple<D...>{input_from(session, std::type_identity<D>{}, values)...};
}

template <class O>
constexpr OutputType output_type() {
  return {dtype_of<typename O::element_type>, O::reduction, O::dimensions, kIsKeep<O>};
}

template <class R>
constexpr auto output_types() {
  if constexpr (std::is_void_v<R>) {
    return std::array<OutputType, 0>{};
  } else if constexpr (kIsOutput<R>) {
    return std::array{output_type<R>()};
  } else {
    using Types = decltype(with_fields(
        std::declval<R&>(), [](auto&... field) { return FieldList<std::remove_reference_t<decltype(field)>...>{}; }));
    return []<class... F>(FieldList<F...>) { return std::array{output_type<F>()...}; }(Types{});
  }
}

template <class... P>
constexpr auto argument_types(TypeList<P...>) {
  return std::array<ArgumentType, sizeof...(P)>{Parameter<P>::type...};
}

/// The type of the value of a parameter that is passed by value.
template <class P>
struct ValueIn {
  using type = P;
};
template <class T>
struct ValueIn<PerWorker<T>> {
  using type = T;
};
template <class T>
struct ValueIn<DeviceScalar<T>> {
  using type = T;
};

template <class... P>
consteval auto value_types(TypeList<P...>) {
  return std::array<std::string_view, sizeof...(P)>{
      Parameter<P>::type.bytes == 0 ? std::string_view() : type_name<typename ValueIn<P>::type>()...};
}

/// Some outputs of R, in the order in which the caller names them: the caller's result type, and the choice that the
/// workers are told.
template <class R, auto... kOutputs>
struct Choice {
  static_assert(kIsStruct<R> && !kIsTuple<R>,
                "only() chooses among the outputs of a struct: this function returns one output or none, or they were "
                "chosen already");
  static_assert(sizeof...(kOutputs) != 0, "only() is empty: name at least one output, as &Result::field");
  static_assert((is_output_of<R, kOutputs>() && ...), "only() names an output that this function does not have");
  static constexpr std::array<std::size_t, sizeof...(kOutputs)> kIndices{output_index<kOutputs>()...};

  template <std::size_t... I>
  static auto result(std::index_sequence<I...>) {
    if constexpr (sizeof...(I) == 1) return FieldList<FieldType<R, kIndices[0]>>{};
    else return FieldList<std::tuple<FieldType<R, kIndices[I]>...>>{};
  }
  template <class F>
  static F type_in(FieldList<F>);
  using Result = decltype(type_in(result(std::make_index_sequence<sizeof...(kOutputs)>{})));

  static constexpr OutputChoice kChoice = [] {
    OutputChoice choice{0, {}};
    for (std::size_t i = 0; i < kIndices.size(); ++i) {
      choice.mask |= std::uint32_t{1} << kIndices[i];
      choice.order[i] = static_cast<std::uint8_t>(kIndices[i]);
    }
    return choice;
  }();
  static_assert(std::popcount(kChoice.mask) == sizeof...(kOutputs), "only() names an output twice");
};

template <class R, class... P>
struct Signature {
  static_assert(Result<R>,
                "a replicated function returns void, one of Avg, Sum, Min, Max, Prod, Gather, Stack, Keep, or a plain "
                "struct of up to twelve of them");
  using Passed = typename PassedOnly<TypeList<>, P...>::type;
  static constexpr bool kHasComm = (std::same_as<P, Comm&> || ...);
  static constexpr bool kTellsOfGradient = (std::same_as<P, GradientReady&> || ...);
  static constexpr auto kArguments = argument_types(Passed{});
  static constexpr auto kOutputs = output_types<R>();
  static constexpr auto kValueTypes = value_types(Passed{});
  static constexpr auto kOutputNames = output_names<R>();
  static_assert(kArguments.size() <= kMaxArguments, "a replicated function takes up to sixteen arguments");

  static SignatureInfo info() noexcept { return {kArguments, kOutputs, kHasComm, kValueTypes, kOutputNames}; }

  /// Runs `invoke(parameters...)` once per slice and hands over what it returns to the call.
  template <class Invoke>
  static void run(WorkerCall& call, Invoke&& invoke) {
    while (call.next_slice()) run_slice(call, invoke, std::index_sequence_for<P...>{});
  }

  /// The same for a replayable function.
  template <Capture kCapture, class Invoke>
  static void replay(WorkerCall& call, Invoke&& invoke) {
    static_assert(
        kCapture == Capture::if_possible || !(kIsByValue<P> || ...),
        "a replayable function's host code runs only when it is captured: a by-value parameter would keep that "
        "call's value for ever. Take a DeviceScalar<T> and read it on the device, or use replayable_if_possible(), "
        "which captures the body for each value");
    static_assert(!kHasKeep<R>,
                  "a replayable function returns no Keep, because a recording writes to the same memory in every call: "
                  "pass a Value for a Local<T, N>, and write to it");
    while (call.next_slice()) replay_slice<kCapture>(call, invoke, std::index_sequence_for<P...>{});
  }

 private:
  /// The index of parameter kIndex among the parameters for which the caller passes an argument.
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
    std::tuple<decltype(bind<P, I>(call))...> parameters{bind<P, I>(call)...};  // braces evaluate left to right
    call.begin_body();
    const auto in_scope = [&]() -> R {
      const BodyScope scope;
      return std::apply(invoke, std::move(parameters));
    };
    if constexpr (std::is_void_v<R>) in_scope();
    else hand_over(call, in_scope());
  }

  /// Binds the arguments before the capture begins, because inputs arrive outside the graph.
  template <Capture kCapture, class Invoke, std::size_t... I>
  static void replay_slice([[maybe_unused]] WorkerCall& call, Invoke& invoke, std::index_sequence<I...>) {
    std::tuple<decltype(bind<P, I>(call))...> parameters{bind<P, I>(call)...};  // braces evaluate left to right
    const auto in_scope = [&]() -> R {
      const BodyScope scope;
      return std::apply(invoke, parameters);
    };
    auto run = [&] {
      if constexpr (std::is_void_v<R>) in_scope();
      else hand_over(call, in_scope());
    };
    (note_value<P, I>(call), ...);
    call.replay([](void* context) { (*static_cast<decltype(run)*>(context))(); }, &run, kCapture);
  }

  template <class Q, std::size_t kIndex>
  static void note_value(WorkerCall& call) {
    if constexpr (kIsByValue<Q>) call.note_value(passed_before<kIndex>(), Parameter<Q>::type.bytes);
  }

  template <class Outputs>
  static void hand_over(WorkerCall& call, Outputs result) {
    std::size_t index = 0;
    for_each_output(result, [&](auto& output) {
      using O = std::remove_reference_t<decltype(output)>;
      if constexpr (kIsKeep<O>) {
        const auto shape = output.shape();
        call.accept(index, kOutputs[index], shape.extents(), HandleAccess::release(output));
      } else if constexpr (O::dimensions == 0) {
        const auto value = output.value();
        const auto* const place = HandleAccess::number_place(output);
        if (place != nullptr) call.accept_device_scalar(index, kOutputs[index], place);
        else call.accept_scalar(index, kOutputs[index], &value);
      } else {
        const auto shape = output.shape();
        call.accept(index, kOutputs[index], shape.extents(), HandleAccess::release(output));
      }
      ++index;
    });
  }
};

template <class O>
void take_output(O& output, RawOutput& raw) {
  if constexpr (O::dimensions == 0) {
    typename O::element_type value;
    std::memcpy(&value, raw.scalar.data(), sizeof(value));
    output = O(value);
  } else {
    Shape<O::dimensions> shape;
    for (std::size_t i = 0; i < O::dimensions; ++i) shape[i] = raw.extents[i];
    output = HandleAccess::make<O>(shape, std::move(raw.buffer));
  }
}

/// Makes an array from a fetch (get_async).
template <class R>
struct ArrayIn {
  static constexpr bool kIsArray = false;
};
template <class T, std::size_t N>
struct ArrayIn<Array<T, N>> {
  static constexpr bool kIsArray = true;
  static Array<T, N> take(RawOutput& raw) {
    Array<T, N> array(to_shape<N>({raw.extents.data(), N}));
    if (array.size() != 0) std::memcpy(array.data(), raw.buffer.data(), array.span().size_bytes());
    return array;
  }
};

/// Makes the caller's result from the outputs that have arrived: from all outputs, or from those that were chosen.
template <class R>
Returned<R> assemble([[maybe_unused]] CallResult& arrived, [[maybe_unused]] const OutputChoice* choice) {
  if constexpr (ArrayIn<R>::kIsArray) {
    return ArrayIn<R>::take(arrived.outputs[0]);
  } else if constexpr (!std::is_void_v<R>) {
    R result{};
    std::size_t index = 0;
    for_each_output(result, [&](auto& output) {
      using O = std::remove_reference_t<decltype(output)>;
      const std::size_t place = choice == nullptr ? index : choice->order[index];
      ++index;
      if constexpr (kIsKeep<O>) {
        output = HandleAccess::make<O>(arrived.kept[place]);
      } else {
        take_output(output, arrived.outputs[place]);
      }
    });
    return result;
  }
}

}  // namespace syncrun::detail

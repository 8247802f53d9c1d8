#pragma once

// Bodies: the functions, lambdas and methods that become replicated functions, and the thunks that run them on a
// worker.

#include <cstring>
#include <type_traits>
#include <utility>

#include "syncrun/detail/call.hpp"
#include "syncrun/detail/passed.hpp"
#include "syncrun/detail/signature.hpp"
#include "syncrun/detail/worker_interface.hpp"

namespace syncrun::detail {

/// The kind of device that a body with these parameters runs on. It is CUDA if the body has a CudaWorker&. It is CPU if
/// the body has a CpuWorker&, or if it gets an address in memory. Otherwise any device will do.
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
  body.is_const = kIsConstMethod<Pointer>;
  return body;
}

template <class Pointer>
Pointer from_body_pointer(const BodyPointer& body) noexcept {
  Pointer pointer;
  std::memcpy(&pointer, body.words.data(), sizeof(Pointer));
  return pointer;
}

struct ReplayStateName {
  void replay_state();
};
template <class Owner>
struct ReplayStateProbe : Owner, ReplayStateName {};
/// Whether a class has a member of this name, public or not: then the name is ambiguous in the probe.
template <class Owner>
concept NamesReplayState =
    std::is_class_v<Owner> && !std::is_final_v<Owner> && !requires { &ReplayStateProbe<Owner>::replay_state; };

/// Before a call is replayed: a graph is for one state of the method's object, if the object tells it. `Owner` is void
/// for functions.
template <class Owner>
void note_state(WorkerCall& call) {
  if constexpr (requires(Owner& object) { object.replay_state(); }) {
    call.note_state(static_cast<Owner*>(call.object())->replay_state());
  } else {
    static_assert(!NamesReplayState<Owner>,
                  "replayable() calls replay_state() of this class: make it public and without parameters, or give it "
                  "another name");
  }
}

/// The signature of a body of type F, and the thunks that run it on a worker.
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
  template <Capture kCapture>
  static void replay(WorkerCall& call, const BodyPointer& body) {
    const auto function = from_body_pointer<R (*)(P...)>(body);
    Sig::template replay<kCapture>(call, [&](auto&&... p) -> R { return function(std::forward<decltype(p)>(p)...); });
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
  template <Capture kCapture>
  static void replay(WorkerCall& call, const BodyPointer& body) {
    const auto method = from_body_pointer<Pointer>(body);
    C& object = *static_cast<C*>(call.object());
    note_state<C>(call);
    Sig::template replay<kCapture>(call,
                                   [&](auto&&... p) -> R { return (object.*method)(std::forward<decltype(p)>(p)...); });
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

/// Returns a function pointer as it is, and converts a captureless lambda to one.
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

/// Checks a body that is not the body of a train step.
template <class Traits>
consteval void check_body() {
  static_assert(!Traits::Sig::kTellsOfGradient,
                "GradientReady& is a parameter of the body of a train step: give this one to "
                "train_step<Rule>(session, body, params), or leave the parameter out");
}

template <class Pointer>
Body make_body(Pointer pointer) noexcept {
  using Traits = BodyTraits<Pointer>;
  check_body<Traits>();
  return {Traits::kDevice, &Traits::run, to_body_pointer(pointer)};
}

template <class F, Capture kCapture>
Body make_body(const Replayable<F, kCapture>& replayable) noexcept {
  using Traits = BodyTraits<F>;
  check_body<Traits>();
  return {Traits::kDevice, &Traits::template replay<kCapture>, to_body_pointer(replayable.body), true};
}

template <class F, Capture kCapture>
auto as_pointer(const Replayable<F, kCapture>& replayable) {
  const auto pointer = as_pointer(replayable.body);
  return Replayable<std::remove_const_t<decltype(pointer)>, kCapture>{pointer};
}

template <class F>
struct PointerIn {
  using type = F;
};
template <class F, Capture kCapture>
struct PointerIn<Replayable<F, kCapture>> {
  using type = F;
};
template <class F>
inline constexpr bool kIsMethod = std::is_member_function_pointer_v<typename PointerIn<F>::type>;

}  // namespace syncrun::detail

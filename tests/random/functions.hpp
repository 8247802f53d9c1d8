#pragma once

// The functions of a session, and the devices that sessions may have. Each program of this folder defines them for its
// kinds of devices: cpu.cpp, fake_gpu.cpp or gpu.cu.

#include <string>
#include <type_traits>
#include <vector>

#include "tests/random/bodies.hpp"

namespace random_test {

/// The functions on arrays with elements of type T.
template <class T>
struct Functions {
  template <class Op>
  using ByRows = sr::Function<void, sr::Scattered<const T, 2>, sr::Update<Op, T, 2>, Fault>;
  struct Averages {
    sr::Function<Means<T>, sr::Scattered<const T, 2>, Fault> average;
    ByRows<sr::op::avg> by_rows;
  };
  struct None {};

  sr::Function<Folded<T>, sr::Scattered<const T, 2>, sr::Broadcast<const T, 2>, Fault> fold;
  ByRows<sr::op::sum> add_rows;
  ByRows<sr::op::max> max_rows;
  ByRows<sr::op::min> min_rows;
  sr::Function<void, sr::Local<T, 2>, double, sr::PerWorker<double>, Fault> change;
  sr::Function<void, sr::Local<T, 2>, sr::Local<const T, 2>, double, Fault> add;
  sr::Function<sr::Keep<T, 2>, sr::Local<const T, 2>, sr::Local<const T, 2>, Fault> keep;
  sr::Function<Read<T>, sr::Local<const T, 2>, Fault> read;
  sr::Function<Selected<T>, sr::Sliced<const T, 2>, Fault> select;
  sr::Function<sr::Sum<T, 1>, sr::Scattered<const T, 2>, sr::Local<T, 2>, sr::DeviceScalar<double>> replayed;
  sr::Function<sr::Min<int>, sr::Local<T, 2>, sr::Local<T, 2>, Operation, int, Fault> collect;
  sr::Function<Means2, sr::Scattered<const T, 2>, Fault> average_in_comm;
  [[no_unique_address]] std::conditional_t<sr::FloatingElement<T>, Averages, None> averages;
};

using RanksOfRows = sr::Function<sr::Gather<std::int64_t>>;

/// The element types of the programs.
template <template <class> class Each>
using ForEachType = std::tuple<Each<float>, Each<double>, Each<std::int32_t>, Each<std::int64_t>, Each<sr::bfloat16>,
                               Each<sr::float16>>;
using AllFunctions = ForEachType<Functions>;

AllFunctions all_functions_of(sr::Session& session);
RanksOfRows ranks_of_rows_in(sr::Session& session);

/// The lists of devices that sessions may have, such as "cpu0,cpu1". `gpus` is the number of GPUs, which only gpu.cu
/// uses. Empty: the machine has fewer.
std::vector<std::string> device_lists(int gpus);
/// The number of programs for which a session is opened.
int programs_per_session();

// ---- for the files that define these functions ------------------------------------------------------------------

/// A function with the bodies for kinds Cpu and Others. `BodyOf` returns the body for a kind.
template <class Cpu, class... Others, class BodyOf>
auto function_of(sr::Session& session, BodyOf body) {
  return session.function(body(Cpu()), body(Others())...);
}

template <class T, class... D>
Functions<T> functions_of(sr::Session& s) {
  const auto averages = [&] {
    if constexpr (sr::FloatingElement<T>) {
      return typename Functions<T>::Averages{
          function_of<D...>(s, []<class K>(K) { return average<K, T>; }),
          function_of<D...>(s, []<class K>(K) { return change_by_rows<K, T, sr::op::avg>; })};
    } else {
      return typename Functions<T>::None{};
    }
  };
  return {
      .fold = function_of<D...>(s, []<class K>(K) { return fold<K, T>; }),
      .add_rows = function_of<D...>(s, []<class K>(K) { return change_by_rows<K, T, sr::op::sum>; }),
      .max_rows = function_of<D...>(s, []<class K>(K) { return change_by_rows<K, T, sr::op::max>; }),
      .min_rows = function_of<D...>(s, []<class K>(K) { return change_by_rows<K, T, sr::op::min>; }),
      .change = function_of<D...>(s, []<class K>(K) { return change<K, T>; }),
      .add = function_of<D...>(s, []<class K>(K) { return add<K, T>; }),
      .keep = function_of<D...>(s, []<class K>(K) { return keep<K, T>; }),
      .read = function_of<D...>(s, []<class K>(K) { return read<K, T>; }),
      .select = function_of<D...>(s, []<class K>(K) { return select<K, T>; }),
      .replayed = function_of<D...>(s, []<class K>(K) { return K::replayed(&random_test::replayed<K, T>); }),
      .collect = function_of<D...>(s, []<class K>(K) { return collect<K, T>; }),
      .average_in_comm = function_of<D...>(s, []<class K>(K) { return average_in_comm<K, T>; }),
      .averages = averages(),
  };
}

template <class... D>
AllFunctions functions_for(sr::Session& session) {
  return {functions_of<float, D...>(session),        functions_of<double, D...>(session),
          functions_of<std::int32_t, D...>(session), functions_of<std::int64_t, D...>(session),
          functions_of<sr::bfloat16, D...>(session), functions_of<sr::float16, D...>(session)};
}

}  // namespace random_test

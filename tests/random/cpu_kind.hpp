#pragma once

// CPU devices, as a kind of device for the bodies.

#include <chrono>
#include <cstdint>
#include <thread>

#include "tests/random/bodies.hpp"

namespace random_test {

struct Cpu {
  using Worker = sr::CpuWorker;

  template <class F>
  static void run(Worker&, std::int64_t count, const F& f) {
    for (std::int64_t i = 0; i < count; ++i) f(i);
  }
  template <class T>
  static double load(const T* elements, std::int64_t i) {
    return static_cast<double>(elements[i]);
  }
  template <class T>
  static void store(T* elements, std::int64_t i, double number) {
    elements[i] = element_of<T>(number);
  }
  static void spin(Worker&, int us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }
  template <class Out, class T>
  static Out number(Worker&, const T* place) {
    return *place;
  }
  template <class F>
  static F replayed(F body) {
    return body;
  }
};

}  // namespace random_test

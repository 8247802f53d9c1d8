// Sessions with a fake GPU and CPU devices.

#include <chrono>
#include <cstdint>
#include <thread>

#include "tests/mixed/fake_gpu.hpp"
#include "tests/random/cpu_kind.hpp"
#include "tests/random/functions.hpp"

namespace random_test {
namespace {

using syncrun::test::enqueue;
using syncrun::test::host_view;

struct Fake {
  using Worker = sr::CudaWorker;

  template <class F>
  static void run(Worker& worker, std::int64_t count, const F& f) {
    enqueue(worker, [=] {
      for (std::int64_t i = 0; i < count; ++i) f(i);
    });
  }
  template <class T>
  static double load(const T* elements, std::int64_t i) {
    return Cpu::load(host_view(elements), i);
  }
  template <class T>
  static void store(T* elements, std::int64_t i, double number) {
    Cpu::store(host_view(elements), i, number);
  }
  static void spin(Worker& worker, int us) {
    enqueue(worker, [=] { std::this_thread::sleep_for(std::chrono::microseconds(us)); });
  }
  template <class Out, class T>
  static Out number(Worker&, const T* place) {
    return Out::in_device_memory(place);
  }
  template <class F>
  static F replayed(F body) {
    return body;  // it cannot capture work
  }
};

}  // namespace

AllFunctions all_functions_of(sr::Session& session) { return functions_for<Cpu, Fake>(session); }
RanksOfRows ranks_of_rows_in(sr::Session& session) { return session.function(ranks_of_rows<Cpu>, ranks_of_rows<Fake>); }

// A fake GPU cannot read the memory of another one.
std::vector<std::string> device_lists(int) { return {"cuda0", "cuda0,cpu0", "cpu0,cuda0", "cpu0,cuda0,cpu1"}; }
int programs_per_session() { return 20; }

}  // namespace random_test

// Function::describe(), and messages that name arguments and outputs.

#include <sstream>
#include <string_view>

#include "tests/support/on_workers.hpp"

namespace {

class Described : public OnWorkers {};
INSTANTIATE_ON_WORKERS(Described, 2);

struct Options {
  double rate;
  int steps;
};
struct Everything {
  sr::Avg<double> loss;
  sr::Max<float, 2> largest;
  sr::Stack<std::int32_t, 2> counts;
};

Everything everything(sr::CpuWorker& worker, sr::Comm&, sr::Scattered<const float, 2>, sr::Broadcast<const double, 1>,
                      Options, sr::PerWorker<int>, sr::Local<float, 3>, sr::Sliced<const std::uint8_t, 1>,
                      sr::Update<sr::op::sum, sr::bfloat16, 2>) {
  return {.loss = 1, .largest = {worker, {1, 1}}, .counts = {worker, {2}}};
}

// The name of a field in describe(). It is missing if the compiler does not give it, as Clang before version 18.
std::string field([[maybe_unused]] const std::string& name) {
  constexpr bool kIsTold = !syncrun::detail::field_name<Everything, 0>().empty();
  return kIsTold ? " (" + name + ")" : "";
}

TEST_P(Described, SaysWhatItsSignatureSays) {
  const auto f = session().function(everything, "everything");
  const std::string text = f.describe();
  for (const std::string line :
       {"everything\n", "  argument 0: Scattered<float32, 2>\n", "  argument 1: Broadcast<float64, 1>\n",
        "  argument 3: PerWorker<int>\n", "  argument 4: Local<float32, 3>\n", "  argument 5: Sliced<uint8, 1>\n",
        "  argument 6: Update<sum, bfloat16, 2>\n", "  on CPU devices, with a Comm\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << text;
  }
  EXPECT_NE(text.find("Options, by value\n"), std::string::npos) << text;
  for (const std::string& line :
       {"  output 0" + field("loss") + ": Avg<float64>\n", "  output 1" + field("largest") + ": Max<float32, 2>\n",
        "  output 2" + field("counts") + ": Gather<int32, 2>\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << text;
  }
  std::ostringstream stream;
  stream << f;
  EXPECT_EQ(stream.str(), text);
}

TEST_P(Described, SaysWhereItRuns) {
  const auto cpu = [](sr::CpuWorker&, sr::Local<float, 1>) {};
  const auto cuda = [](sr::CudaWorker&, sr::Local<float, 1>) {};
  EXPECT_EQ(session().function([](int, std::string_view) {}, "any").describe(),
            "any\n  argument 0: int, by value\n  argument 1: std::string_view, by value\n  no outputs\n"
            "  on CPU devices and CUDA devices\n");
  EXPECT_EQ(session().function(cuda, "gpu").describe(),
            "gpu\n  argument 0: Local<float32, 1>\n  no outputs\n  on CUDA devices\n");
  EXPECT_EQ(session().function(cpu, sr::replayable(cuda), "both").describe(),
            "both\n  argument 0: Local<float32, 1>\n  no outputs\n  on CPU devices and CUDA devices (replayed)\n");
}

class Counter {
 public:
  explicit Counter(int) {}
  sr::Sum<int> count() { return 1; }
};

TEST_P(Described, SaysThatItIsAMethod) {
  const auto counter = session().replicate<Counter>(0);
  const std::string text = session().function(&Counter::count, counter, "count").describe();
  EXPECT_EQ(text,
            "count\n  output 0: Sum<int32>\n  on CPU devices and CUDA devices, a method of a replicated object\n");
}

TEST_P(Described, NamesTheOutputWhoseShapesDiffer) {
  struct Two {
    sr::Sum<int> number;
    sr::Sum<float, 1> uneven;
  };
  const auto f = session().function(
      [](sr::CpuWorker& worker, std::int64_t size) {
        return Two{.number = 1, .uneven = {worker, {size + worker.rank()}}};
      },
      "uneven");
  for (const std::int64_t size : {1, 40'000}) {  // the workers reduce the second one
    EXPECT_ERROR(f(size), sr::ErrorKind::function,
                 "output 1" + field("uneven") + " has shape [" + std::to_string(size) + "] on rank 0");
    EXPECT_EQ(session().function([]() -> sr::Sum<int> { return 1; })(), world_size());
  }
}

}  // namespace

// Programs that must not compile, one per macro; tests/project/CMakeLists.txt says which words each must be refused
// with. Without a macro it compiles, so that a refusal is of the wrong line and of nothing else.

#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

namespace {

[[maybe_unused]] sr::Sum<double> total(sr::Scattered<const float, 2> x) { return double(x.rows()); }
struct Two {
  sr::Sum<double> sum;
  sr::Max<double> max;
};
struct Other {
  sr::Sum<double> sum;
};
[[maybe_unused]] Two two(sr::Scattered<const float, 2> x) { return {double(x.rows()), 1}; }
[[maybe_unused]] void whole(sr::Broadcast<const float, 2>) {}
[[maybe_unused]] void train(sr::Local<float, 1> weights) { weights[0] = 0; }

#if defined(AVERAGE_OF_INTEGERS)
sr::Avg<int> mean(sr::Scattered<const int, 1> x) { return x[0]; }
#elif defined(AVERAGE_OF_INTEGERS_IN_UPDATE)
void mean(sr::Update<sr::op::avg, int, 1> counts) { counts.value()[0] = 1; }
#elif defined(RESULT_WITH_ANOTHER_FIELD)
struct Stats {
  sr::Sum<double> total;
  double leftover;
};
Stats stats(sr::Scattered<const float, 2> x) { return {double(x.rows()), 0}; }
#elif defined(RESULT_THAT_IS_A_NUMBER)
double stats(sr::Scattered<const float, 2> x) { return double(x.rows()); }
#elif defined(POINTER_PARAMETER)
void fill(const float* values) { static_cast<void>(values); }
#elif defined(REFERENCE_PARAMETER)
void fill(float& value) { value = 0; }
#elif defined(PARAMETER_THAT_OWNS_MEMORY)
void fill(std::vector<float> values) { static_cast<void>(values); }
#elif defined(WRITABLE_INPUT)
void fill(sr::Scattered<float, 2> x) { x(0, 0) = 0; }
#endif

}  // namespace

int main(int argc, char** argv) {
  return sr::run(argc, argv, [](sr::Session& session) {
    [[maybe_unused]] const auto f = session.function(total);
    [[maybe_unused]] const auto g = session.function(train);
    [[maybe_unused]] const auto h = session.function(two);
#if defined(WRONG_ELEMENT_TYPE)
    f(session.data<double, 2>({8, 3}));
#elif defined(WRONG_DIMENSIONS)
    f(session.data<float, 1>({8}));
#elif defined(WRONG_SHARED)
    g(session.shared<double, 1>());
#elif defined(DATA_FOR_SHARED)
    g(session.data<float, 1>({8}));
#elif defined(VECTOR_FOR_DATA)
    f(std::vector<float>(8));
#elif defined(TOO_FEW_ARGUMENTS)
    f();
#elif defined(EMPTY_SUBSET)
    static_cast<void>(h.only<>());
#elif defined(SUBSET_OUT_OF_RANGE)
    static_cast<void>(h.only<2>());
#elif defined(SUBSET_OF_ANOTHER_STRUCT)
    static_cast<void>(h.only<&Other::sum>());
#elif defined(SUBSET_THAT_REPEATS)
    static_cast<void>(h.only<&Two::max, 1>());
#elif defined(SUBSET_OF_ONE_OUTPUT)
    static_cast<void>(f.only<0>());
#elif defined(LOSSY_INPUT)
    h.inputs(sr::view_of(std::vector<double>(8), sr::Shape{4, 2}));
#elif defined(LOSSY_CONVERSION)
    sr::convert<std::int32_t>(std::vector<std::int64_t>(8));
#elif defined(INPUT_OF_OTHER_DIMENSIONS)
    h.inputs(std::vector<float>(8));
#elif defined(TOO_MANY_INPUTS)
    h.inputs(std::vector<float>(8), std::vector<float>(8));
#elif defined(MINIBATCH_FOR_BROADCAST)
    session.function(whole)(sr::minibatch(session.data<float, 2>({8, 3})));
#elif defined(CAPTURING_LAMBDA)
    double factor = 2;
    session.function([factor](sr::Scattered<const float, 2> x) -> sr::Sum<double> { return factor * double(x.rows()); });
#elif defined(GENERIC_LAMBDA)
    session.function([](auto x) -> sr::Sum<double> { return double(x.rows()); });
#elif defined(AVERAGE_OF_INTEGERS) || defined(AVERAGE_OF_INTEGERS_IN_UPDATE)
    session.function(mean);
#elif defined(RESULT_WITH_ANOTHER_FIELD) || defined(RESULT_THAT_IS_A_NUMBER)
    session.function(stats);
#elif defined(POINTER_PARAMETER) || defined(REFERENCE_PARAMETER) || defined(PARAMETER_THAT_OWNS_MEMORY) || \
    defined(WRITABLE_INPUT)
    session.function(fill);
#endif
  });
}

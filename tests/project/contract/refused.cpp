// Programs that must not compile, one for each macro. tests/project/CMakeLists.txt says which words the compiler must
// print for each. Without a macro the file compiles, so only the line of the macro can be the reason of a refusal.

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
#elif defined(SPAN_PARAMETER)
void fill(std::span<const float> values) { static_cast<void>(values); }
#elif defined(WIDE_TEXT_PARAMETER)
void fill(std::wstring_view text) { static_cast<void>(text); }
#elif defined(TEXT_PER_WORKER)
void fill(sr::PerWorker<std::string_view> text) { static_cast<void>(text); }
#elif defined(NUMBER_FOR_A_TEXT) || defined(NULL_FOR_A_TEXT)
void fill(std::string_view text) { static_cast<void>(text); }
#elif defined(WORKER_BY_VALUE)
void fill(sr::CpuWorker) {}
#elif defined(WORKER_BY_CONST_REFERENCE)
void fill(const sr::CpuWorker&) {}
#elif defined(GRADIENT_READY_OF_NO_STEP)
void fill(sr::GradientReady& ready, sr::Local<float, 1>) { ready.from(0); }
#elif defined(GRADIENT_READY_BY_VALUE)
void fill(sr::GradientReady) {}
#elif defined(WRITABLE_INPUT)
void fill(sr::Scattered<float, 2> x) { x(0, 0) = 0; }
#elif defined(STEP_WITHOUT_GRADIENT)
void step_body(sr::Scattered<const float, 2>, sr::Local<float, 1>, float) {}
#elif defined(STEP_WITH_TWO_TYPES)
void step_body(sr::Scattered<const float, 2>, sr::Local<float, 1>, sr::Local<double, 1>) {}
#elif defined(STEP_FOR_OTHER_PARAMETERS)
void step_body(sr::Scattered<const float, 2>, sr::Local<double, 1>, sr::Local<double, 1>) {}
#elif defined(UPDATE_WITHOUT_STATE)
void fill(sr::CpuWorker& worker, sr::Local<float, 1> params, sr::Local<float, 1> gradient) {
  sr::update(worker, sr::Adam{.step = 1}, params, gradient);
}
#elif defined(UPDATE_OF_INTEGERS)
void fill(sr::CpuWorker& worker, sr::Local<int, 1> params, sr::Local<int, 1> gradient) {
  sr::update(worker, sr::Sgd{}, params, gradient);
}
#elif defined(KEEP_OF_A_REPLAYABLE_FUNCTION)
sr::Keep<float, 1> kept(sr::CudaWorker& worker, sr::Local<const float, 1> x) { return {worker, x.shape()}; }
#elif defined(PRIVATE_REPLAY_STATE)
class Modal {
 public:
  void step() {}

 private:
  std::span<const std::uint64_t> replay_state();
};
#elif defined(PRODUCER_OF_SOMETHING_ELSE)
void build(std::vector<float>& out) { out.clear(); }
#elif defined(ARGUMENTS_OF_A_PRODUCER)
void build(sr::Producer<sr::Data<float, 2> >& out, int batches) { out.next().push(batches); }
#elif defined(MESSAGE_THAT_IS_A_POINTER)
void talk(sr::Pipe<const char*, int>& pipe) { pipe.send(1); }
#elif defined(ARGUMENTS_OF_A_TASK)
int talk(int number) { return number; }
#elif defined(RESULT_OF_A_TASK)
std::vector<std::vector<int> > talk() { return {}; }
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
#elif defined(MAPPED_BOOLS)
    session.map_npy<bool, 1>("flags.npy");
#elif defined(RAW_BOOLS)
    session.map_raw<bool, 1>("flags.bin", {-1});
#elif defined(DATA_FOR_SHARED)
    g(session.data<float, 1>({8}));
#elif defined(ELEMENTS_OF_DATA)
    session.data<long double, 1>({8});
#elif defined(ELEMENTS_OF_A_VARIABLE)
    session.shared<long double, 1>("x");
#elif defined(ELEMENTS_OF_A_RESULT)
    session.function([](sr::CpuWorker&) -> sr::Sum<long double> { return 0; });
#elif defined(ELEMENTS_OF_A_COLLECTIVE)
    session.function([](sr::Comm& comm) { comm.all_reduce(std::vector<long double>(8), sr::Reduction::sum); });
#elif defined(ELEMENTS_OF_A_PARAMETER)
    session.function([](sr::Scattered<const long double, 1>) {});
#elif defined(VALUE_FOR_SCATTERED)
    f(session.value(std::vector<float>(8), sr::Shape{4, 2}));
#elif defined(VALUE_FOR_BROADCAST)
    session.function(whole)(session.value(std::vector<float>(8), sr::Shape{4, 2}));
#elif defined(HOST_READ_OF_DEVICE_MEMORY)
    session.function([](sr::DeviceScalar<double> factor) -> sr::Sum<double> { return *factor.data(); });
#elif defined(HOST_INDEX_OF_DEVICE_MEMORY)
    session.function([](sr::DeviceScalar<double> factor) -> sr::Sum<double> { return factor.data()[0]; });
#elif defined(KEEP_OF_A_REPLAYABLE_FUNCTION)
    session.function(sr::replayable(kept));
#elif defined(PRIVATE_REPLAY_STATE)
    session.function(sr::replayable(&Modal::step), session.replicate<Modal>());
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
#elif defined(STEP_WITHOUT_GRADIENT) || defined(STEP_WITH_TWO_TYPES) || defined(STEP_FOR_OTHER_PARAMETERS)
    sr::train_step<sr::Adam>(session, step_body, session.shared<float, 1>());
#elif defined(UPDATE_WITHOUT_STATE) || defined(UPDATE_OF_INTEGERS)
    session.function(fill);
#elif defined(POINTER_PARAMETER) || defined(REFERENCE_PARAMETER) || defined(PARAMETER_THAT_OWNS_MEMORY) ||             \
    defined(SPAN_PARAMETER) || defined(TEXT_PER_WORKER) || defined(WIDE_TEXT_PARAMETER) || defined(WORKER_BY_VALUE) || \
    defined(WORKER_BY_CONST_REFERENCE) || defined(WRITABLE_INPUT) || defined(GRADIENT_READY_BY_VALUE) ||               \
    defined(GRADIENT_READY_OF_NO_STEP)
    session.function(fill);
#elif defined(NUMBER_FOR_A_TEXT)
    session.function(fill)(7);
#elif defined(NULL_FOR_A_TEXT)
    session.function(fill)(nullptr);
#elif defined(PRODUCER_OF_SOMETHING_ELSE)
    session.producers(1, build, {{8, 3}});
#elif defined(ARGUMENTS_OF_A_PRODUCER)
    session.producers(1, build, {{8, 3}}, {}, std::vector<int>{1});
#elif defined(MESSAGE_THAT_IS_A_POINTER)
    sr::task(talk);
#elif defined(ARGUMENTS_OF_A_TASK)
    sr::task(talk, {}, "one");
#elif defined(RESULT_OF_A_TASK)
    sr::task(talk);
#elif defined(CAPTURING_TASK)
    sr::task([&session] { return session.world_size(); });
#endif
  });
}

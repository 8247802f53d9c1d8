// Handles that were moved from: every use throws Error (usage), which names the type. The session stays usable.
// NOLINTBEGIN(bugprone-use-after-move): that is the point

#include <filesystem>

#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

using sr::ErrorKind;

class MovedFrom : public OnWorkers {
 protected:
  sr::Data<float, 1> data() { return session().data(counting<float>(6)); }
  sr::Shared<float, 1> shared() {
    auto variable = session().shared<float, 1>();
    variable.broadcast(counting<float>(6));
    return variable;
  }
};
INSTANTIATE_ON_WORKERS(MovedFrom, 2);

/// Moves from the handle and returns it. The handle that receives its contents is destroyed before the return.
template <class Handle>
Handle& moved_from(Handle& handle) {
  const Handle gone = std::move(handle);
  return handle;  // NOLINT(bugprone-use-after-move): that is the point
}

// Runs each statement, and expects that it throws Error (usage) with the name of the type.
#define EXPECT_MOVED_FROM(type, ...) __VA_OPT__(EXPAND(EACH_MOVED_FROM("this " type " was moved from", __VA_ARGS__)))
#define EACH_MOVED_FROM(text, statement, ...)                        \
  EXPECT_ERROR(static_cast<void>(statement), ErrorKind::usage, text) \
  __VA_OPT__(EACH_AGAIN PARENS(text, __VA_ARGS__))
#define EACH_AGAIN() EACH_MOVED_FROM
#define PARENS ()
#define EXPAND(...) EXPAND2(EXPAND2(EXPAND2(__VA_ARGS__)))
#define EXPAND2(...) EXPAND1(EXPAND1(EXPAND1(__VA_ARGS__)))
#define EXPAND1(...) EXPAND0(EXPAND0(EXPAND0(__VA_ARGS__)))
#define EXPAND0(...) __VA_ARGS__

TEST_P(MovedFrom, DataIsAnError) {
  auto x = data();
  const auto kept = std::move(x);
  const std::vector<float> values(6);
  EXPECT_MOVED_FROM("Data", x.shape(), x.rows(), x.size(), x.name(), x.capacity_bytes(), x.view(), x.span(), x.at(0),
                    x.slice({0, 1}), x.write(), x.set(values), x.set_rows(0, values), x.fill(1), x.resize({3}),
                    x.resize_rows(3), x.free(), sr::detail::record_of(x));
  EXPECT_EQ(kept.size(), 6);
  auto back = data();
  back = std::move(x);
  EXPECT_MOVED_FROM("Data", back.shape());
  back = kept;
  EXPECT_EQ(back.size(), 6) << "a handle that was moved from can be assigned to";
}

TEST_P(MovedFrom, WriteGuardIsAnError) {
  auto x = data();
  auto guard = x.write();
  const auto kept = std::move(guard);
  EXPECT_MOVED_FROM("WriteGuard", guard.view(), guard.span(), guard.data(), guard.shape(), guard.begin(), guard.end(),
                    guard[0], guard(0), guard.slice({0, 1}));
  EXPECT_EQ(kept[5], 5);
}

TEST_P(MovedFrom, SharedIsAnError) {
  auto x = shared();
  const auto kept = std::move(x);
  const std::vector<float> values(6);
  const auto sum = sr::Reduction::sum;
  EXPECT_MOVED_FROM("Shared", x.broadcast(values), x.broadcast(data()), x.broadcast(0), x.scatter(values),
                    x.scatter(data()), x.gather(), x.gather_stacked(), x.all_gather(), x.all_reduce(sum),
                    x.reduce(sum, 0), x.reduce(sum), x.reduce_scatter(sum), x.get(0), x.get_async(0), x.copy(0, 0),
                    x.set(0, values), x.shape(0), x.shapes(), x.lengths(), x.name(),
                    session().all_reduce({kept, x}, sum), session().gather(kept, x), session().reduce(sum, kept, x),
                    session().broadcast({{x, values}}), session().scatter({{x, data()}}),
                    sr::state_for<sr::Adam>(session(), x));
  auto y = data();
  EXPECT_MOVED_FROM("Data", session().broadcast({{kept, moved_from(y)}}));
  EXPECT_EQ(kept.get(0).size(), 6);
}

sr::Sum<float> first(sr::Scattered<const float, 1> x, sr::Local<float, 1> y) { return x[0] + y[0]; }

struct Ends {
  sr::Sum<float> first;
  sr::Sum<float> last;
};
Ends ends(sr::Local<float, 1> x) { return {x[0], x[x.rows() - 1]}; }

TEST_P(MovedFrom, ArgumentIsNamed) {
  const auto f = session().function(first, "first");
  auto x = data();
  auto y = shared();
  const auto kept_x = std::move(x);
  const auto kept_y = std::move(y);
  const std::string text = " is a handle that was moved from";
  EXPECT_ERROR(f(x, kept_y), ErrorKind::usage, "argument 0 (Scattered) of 'first'" + text);
  EXPECT_ERROR(f(sr::minibatch(x), kept_y), ErrorKind::usage, "argument 0 (Scattered) of 'first'" + text);
  EXPECT_ERROR(f(kept_x, y), ErrorKind::usage, "argument 1 (Local) of 'first'" + text);
  EXPECT_ERROR(static_cast<void>(f.async(kept_x, y)), ErrorKind::usage, "argument 1 (Local) of 'first'" + text);
  EXPECT_EQ(f.on_rank(0)(kept_x, kept_y), 0);
}

sr::Keep<float, 1> twice(sr::CpuWorker& worker, sr::Local<const float, 1> x) {
  sr::Keep<float, 1> y(worker, x.shape());
  for (std::int64_t i = 0; i < x.rows(); ++i) y[i] = 2 * x[i];
  return y;
}

TEST_P(MovedFrom, ValueIsAnError) {
  const auto device = session().device(0);
  auto x = session().value(counting<float>(6), sr::Shape{6}, device);
  const auto kept = std::move(x);
  EXPECT_MOVED_FROM("Value", x.to(device), x.to_host(), x.set(counting<float>(6)), x.get(), x.get_async(), x.shape(),
                    x.where(), x.is_on_host(), x.pin(device), x.unpin(), x.name());
  auto y = data();
  moved_from(y);
  EXPECT_MOVED_FROM("Data", session().value(y), session().value(y, device));
  const auto f = session().function(twice, "twice");
  EXPECT_ERROR(f.on(device)(x), ErrorKind::usage,
               "argument 0 (Local const) of 'twice' is a handle that was moved from");
  EXPECT_ERROR(static_cast<void>(f.on(device).async(x)), ErrorKind::usage, "is a handle that was moved from");
  EXPECT_EQ(f.on(device)(kept).get()[5], 10);
}

TEST_P(MovedFrom, CenterOfAsynchronousTrainingIsAnError) {
  const std::vector<sr::Device> devices{session().device(0)};
  auto center = session().value(counting<float>(6), sr::Shape{6}, devices[0]);
  const auto kept = std::move(center);
  const auto train = session().function([](sr::Local<float, 1>) {});
  const auto start = [&](const sr::Round<float>& round) { return train.on(round.device).async(round.params); };
  const auto after = [](const sr::Round<float>&) { return true; };
  EXPECT_MOVED_FROM("Value", sr::easgd(session(), center, devices, start, after, {.rounds = 1}),
                    sr::downpour(session(), center, devices, start, after, {.rounds = 1}));
  EXPECT_EQ(sr::downpour(session(), kept, devices, start, after, {.rounds = 1}).arrivals.size(), 1U);
}

struct KeptAndSum {
  sr::Keep<float, 1> kept;
  sr::Sum<float> sum;
};
KeptAndSum keep_and_sum(sr::CpuWorker& worker, sr::Local<const float, 1> x) { return {twice(worker, x), x[5]}; }

TEST_P(MovedFrom, KeepIsAnError) {
  const auto device = session().device(0);
  const auto x = session().value(counting<float>(6), sr::Shape{6}, device);
  const auto f = session().function(keep_and_sum);
  const auto g = session().function(twice, "twice");
  auto result = f.on(device)(x);
  const auto kept = std::move(result.kept);
  EXPECT_MOVED_FROM("Keep", result.kept.value(), (sr::Value<float, 1>(result.kept)));
  EXPECT_ERROR(g.on(device)(result.kept), ErrorKind::usage, "of 'twice' is a handle that was moved from");
  EXPECT_EQ(g.on(device)(kept).get()[5], 20);
}

TEST_P(MovedFrom, KeepThatABodyReturnsIsAnError) {
  const auto device = session().device(0);
  const auto x = session().value(counting<float>(6), sr::Shape{6}, device);
  const auto f = session().function([](sr::CpuWorker& worker, sr::Local<const float, 1> of) -> sr::Keep<float, 1> {
    auto y = twice(worker, of);
    const auto gone = std::move(y);
    return y;
  });
  EXPECT_ERROR(static_cast<void>(f.on(device)(x).get()), ErrorKind::function, "returned without memory");
}

TEST_P(MovedFrom, FunctionIsAnError) {
  auto f = session().function(first, "first");
  const auto kept = std::move(f);
  const auto x = data();
  const auto y = shared();
  EXPECT_MOVED_FROM("Function", f(x, y), f.async(x, y), f.on_rank(0), f.on(session().device(0)),
                    f.on({session().device(0)}), session().balance(f, x, y), f.inputs(std::vector<float>(6)), f.name(),
                    f.describe());
  EXPECT_EQ(kept.on_rank(0)(x, y), 0);
  auto placed = kept.on(session().device(0));
  const auto kept_placed = std::move(placed);
  EXPECT_MOVED_FROM("Function", placed(x, y), placed.async(x, y));
  EXPECT_EQ(kept_placed(x, y), 0);
  auto h = session().function([]() -> sr::Sum<int> { return 1; });
  moved_from(h);
  EXPECT_MOVED_FROM("Function", session().balance(h, {.rows = 100}));
  auto g = session().function(ends);
  const auto kept_g = std::move(g);
  EXPECT_MOVED_FROM("Function", g.only<&Ends::last>());
  EXPECT_EQ(kept_g.only<&Ends::last>()(y), 5 * world_size());
}

TEST_P(MovedFrom, FutureIsAnError) {
  const auto f = session().function(first, "first");
  auto future = f.on_rank(0).async(data(), shared());
  auto kept = std::move(future);
  EXPECT_ERROR(static_cast<void>(session().wait_any(std::span(&future, 1))), ErrorKind::usage,
               "wait_any requires a future");
  session().wait_all(std::span(&future, 1));  // a future that was moved from does not count
  EXPECT_MOVED_FROM("Future", future.get(), future.is_ready());
  const auto device = session().device(0);
  const auto x = session().value(counting<float>(6), sr::Shape{6}, device);
  auto making = session().function(twice).on(device).async(x);
  auto kept_making = std::move(making);
  EXPECT_MOVED_FROM("Future", making.kept());
  EXPECT_EQ(kept_making.kept().get()[5], 10);
  EXPECT_EQ(kept.get(), 0);
  EXPECT_ERROR(kept.get(), ErrorKind::usage, "Future::get was called twice");
}

struct CallCounter {
  int count = 0;
  sr::Sum<int> next() { return ++count; }
};

TEST_P(MovedFrom, ReplicatedIsAnError) {
  auto object = session().replicate<CallCounter>();
  const auto kept = std::move(object);
  EXPECT_MOVED_FROM("Replicated", session().function(&CallCounter::next, object));
  EXPECT_EQ(session().function(&CallCounter::next, kept)(), world_size());
}

sr::Avg<double> half_square(sr::Scattered<const double, 1> x, sr::Local<double, 1> params,
                            sr::Local<double, 1> gradient) {
  std::copy(params.begin(), params.end(), gradient.begin());
  return x[0];
}

TEST_P(MovedFrom, TrainStepIsAnError) {
  auto weights = session().shared("weights", std::vector<double>{1, 2});
  const auto x = session().data(std::vector<double>(4, 1));
  auto step = sr::train_step<sr::Sgd>(session(), half_square, weights);
  auto kept = std::move(step);
  EXPECT_MOVED_FROM("TrainStep", step(x, {}), step.async(x, {}), step.params(), step.gradient(), step.state(),
                    step.steps(), step.set_steps(1), step.name());
  EXPECT_EQ(kept(x, {}), 1);
  EXPECT_MOVED_FROM("Shared", sr::train_step<sr::Sgd>(session(), half_square, moved_from(weights)));
}

TEST_P(MovedFrom, AveragedWeightsAreAnError) {
  auto weights = shared();
  auto average = sr::averaged_weights(session(), weights);
  moved_from(average);
  EXPECT_MOVED_FROM("AveragedWeights", average.update(), average.async(), average.values(), average.updates(),
                    average.set_updates(1));
  EXPECT_MOVED_FROM("Shared", sr::averaged_weights(session(), moved_from(weights)));
}

TEST_P(MovedFrom, CheckpointAndWhatItIsToHoldAreErrors) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "run";
  auto x = data();
  auto y = shared();
  sr::save_checkpoint(path, {{"x", x}, {"y", y}}, {{"epoch", 1}});
  sr::Checkpoint checkpoint(path);
  const sr::Checkpoint kept = std::move(checkpoint);
  EXPECT_MOVED_FROM("Checkpoint", checkpoint.has_value("epoch"), checkpoint.text("epoch"),
                    checkpoint.value<int>("epoch"), (checkpoint.array<float, 1>("x")), checkpoint.load({{"x", x}}));
  const auto kept_x = std::move(x);
  const auto kept_y = std::move(y);
  EXPECT_MOVED_FROM("Data", kept.load({{"x", x}}));
  EXPECT_MOVED_FROM("Shared", sr::save_checkpoint(path, {{"y", y}}));
  EXPECT_MOVED_FROM("Data", sr::save(folder.path() / "x.npy", x));
  EXPECT_MOVED_FROM("Shared", sr::load(folder.path() / "x.npy", y));
  EXPECT_EQ(sr::Checkpoint(path).value<int>("epoch"), 1);
}

void build(sr::Producer<sr::Data<float, 1>>& out) {
  while (auto draft = out.next()) {
    auto moved = std::move(draft);
    try {
      draft.push();
      std::_Exit(9);
    } catch (const sr::Error& error) {
      const bool is_named =
          std::string(error.what()).find("Draft was already pushed or moved from") != std::string::npos;
      moved.array()[0] = is_named ? 1.0F : 0.0F;
    }
    moved.push();
  }
}

TEST_P(MovedFrom, QueueAndDraftAreErrors) {
  auto queue = session().producers(1, build, {{4}});
  auto kept = std::move(queue);
  EXPECT_MOVED_FROM("BatchQueue", queue.next(), queue.begin(), queue.close(), queue.name(), queue.capacity(),
                    queue.producer_pids());
  EXPECT_EQ(kept.next()->at(0), 1);
  kept.close();
}

TEST_P(MovedFrom, TaskIsAnError) {
  auto task = sr::task(+[](sr::Pipe<int, int>& pipe) { pipe.send(pipe.receive().value_or(-1)); }, {.name = "echo"});
  auto kept = std::move(task);
  EXPECT_MOVED_FROM("Task", task.send(1), task.receive(), task.is_ready(), task.end_messages(), task.get(), task.name(),
                    task.pid());
  kept.send(7);
  EXPECT_EQ(kept.receive(), 7);
  kept.get();
}

}  // namespace
// NOLINTEND(bugprone-use-after-move)

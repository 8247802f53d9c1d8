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

#define EXPECT_MOVED_FROM(statement, type) \
  EXPECT_ERROR(static_cast<void>(statement), ErrorKind::usage, "this " type " was moved from")

TEST_P(MovedFrom, DataIsAnError) {
  auto x = data();
  const auto kept = std::move(x);
  const std::vector<float> values(6);
  EXPECT_MOVED_FROM(x.shape(), "Data");
  EXPECT_MOVED_FROM(x.rows(), "Data");
  EXPECT_MOVED_FROM(x.size(), "Data");
  EXPECT_MOVED_FROM(x.name(), "Data");
  EXPECT_MOVED_FROM(x.capacity_bytes(), "Data");
  EXPECT_MOVED_FROM(x.view(), "Data");
  EXPECT_MOVED_FROM(x.span(), "Data");
  EXPECT_MOVED_FROM(x.at(0), "Data");
  EXPECT_MOVED_FROM(x.slice({0, 1}), "Data");
  EXPECT_MOVED_FROM(x.write(), "Data");
  EXPECT_MOVED_FROM(x.set(values), "Data");
  EXPECT_MOVED_FROM(x.set_rows(0, values), "Data");
  EXPECT_MOVED_FROM(x.fill(1), "Data");
  EXPECT_MOVED_FROM(x.resize({3}), "Data");
  EXPECT_MOVED_FROM(x.resize_rows(3), "Data");
  EXPECT_MOVED_FROM(x.free(), "Data");
  EXPECT_MOVED_FROM(x.record(), "Data");
  EXPECT_EQ(kept.size(), 6);
  auto back = data();
  back = std::move(x);
  EXPECT_MOVED_FROM(back.shape(), "Data");
  back = kept;
  EXPECT_EQ(back.size(), 6) << "a handle that was moved from can be assigned to";
}

TEST_P(MovedFrom, WriteGuardIsAnError) {
  auto x = data();
  auto guard = x.write();
  const auto kept = std::move(guard);
  EXPECT_MOVED_FROM(guard.view(), "WriteGuard");
  EXPECT_MOVED_FROM(guard.span(), "WriteGuard");
  EXPECT_MOVED_FROM(guard.data(), "WriteGuard");
  EXPECT_MOVED_FROM(guard.shape(), "WriteGuard");
  EXPECT_MOVED_FROM(guard.begin(), "WriteGuard");
  EXPECT_MOVED_FROM(guard.end(), "WriteGuard");
  EXPECT_MOVED_FROM(guard[0], "WriteGuard");
  EXPECT_MOVED_FROM(guard(0), "WriteGuard");
  EXPECT_MOVED_FROM(guard.slice({0, 1}), "WriteGuard");
  EXPECT_EQ(kept[5], 5);
}

TEST_P(MovedFrom, SharedIsAnError) {
  auto x = shared();
  const auto kept = std::move(x);
  const std::vector<float> values(6);
  const auto sum = sr::Reduction::sum;
  EXPECT_MOVED_FROM(x.broadcast(values), "Shared");
  EXPECT_MOVED_FROM(x.broadcast(data()), "Shared");
  EXPECT_MOVED_FROM(x.broadcast(0), "Shared");
  EXPECT_MOVED_FROM(x.scatter(values), "Shared");
  EXPECT_MOVED_FROM(x.scatter(data()), "Shared");
  EXPECT_MOVED_FROM(x.gather(), "Shared");
  EXPECT_MOVED_FROM(x.gather_stacked(), "Shared");
  EXPECT_MOVED_FROM(x.all_gather(), "Shared");
  EXPECT_MOVED_FROM(x.all_reduce(sum), "Shared");
  EXPECT_MOVED_FROM(x.reduce(sum, 0), "Shared");
  EXPECT_MOVED_FROM(x.reduce(sum), "Shared");
  EXPECT_MOVED_FROM(x.reduce_scatter(sum), "Shared");
  EXPECT_MOVED_FROM(x.get(0), "Shared");
  EXPECT_MOVED_FROM(x.get_async(0), "Shared");
  EXPECT_MOVED_FROM(x.copy(0, 0), "Shared");
  EXPECT_MOVED_FROM(x.set(0, values), "Shared");
  EXPECT_MOVED_FROM(x.shape(0), "Shared");
  EXPECT_MOVED_FROM(x.shapes(), "Shared");
  EXPECT_MOVED_FROM(x.lengths(), "Shared");
  EXPECT_MOVED_FROM(x.name(), "Shared");
  EXPECT_MOVED_FROM(session().all_reduce({kept, x}, sum), "Shared");
  EXPECT_MOVED_FROM(session().gather(kept, x), "Shared");
  EXPECT_MOVED_FROM(session().reduce(sum, kept, x), "Shared");
  EXPECT_MOVED_FROM(session().broadcast({{x, values}}), "Shared");
  EXPECT_MOVED_FROM(session().scatter({{x, data()}}), "Shared");
  EXPECT_MOVED_FROM(sr::state_for<sr::Adam>(session(), x), "Shared");
  auto y = data();
  EXPECT_MOVED_FROM(session().broadcast({{kept, moved_from(y)}}), "Data");
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
  EXPECT_MOVED_FROM(x.to(device), "Value");
  EXPECT_MOVED_FROM(x.to_host(), "Value");
  EXPECT_MOVED_FROM(x.set(counting<float>(6)), "Value");
  EXPECT_MOVED_FROM(x.get(), "Value");
  EXPECT_MOVED_FROM(x.get_async(), "Value");
  EXPECT_MOVED_FROM(x.shape(), "Value");
  EXPECT_MOVED_FROM(x.where(), "Value");
  EXPECT_MOVED_FROM(x.is_on_host(), "Value");
  EXPECT_MOVED_FROM(x.pin(device), "Value");
  EXPECT_MOVED_FROM(x.unpin(), "Value");
  EXPECT_MOVED_FROM(x.name(), "Value");
  auto y = data();
  moved_from(y);
  EXPECT_MOVED_FROM(session().value(y), "Data");
  EXPECT_MOVED_FROM(session().value(y, device), "Data");
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
  EXPECT_MOVED_FROM(sr::easgd(session(), center, devices, start, after, {.rounds = 1}), "Value");
  EXPECT_MOVED_FROM(sr::downpour(session(), center, devices, start, after, {.rounds = 1}), "Value");
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
  EXPECT_MOVED_FROM(result.kept.value(), "Keep");
  EXPECT_MOVED_FROM((sr::Value<float, 1>(result.kept)), "Keep");
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
  EXPECT_MOVED_FROM(f(x, y), "Function");
  EXPECT_MOVED_FROM(f.async(x, y), "Function");
  EXPECT_MOVED_FROM(f.on_rank(0), "Function");
  EXPECT_MOVED_FROM(f.on(session().device(0)), "Function");
  EXPECT_MOVED_FROM(f.on({session().device(0)}), "Function");
  EXPECT_MOVED_FROM(session().balance(f, x, y), "Function");
  EXPECT_MOVED_FROM(f.inputs(std::vector<float>(6)), "Function");
  EXPECT_MOVED_FROM(f.name(), "Function");
  EXPECT_MOVED_FROM(f.describe(), "Function");
  EXPECT_EQ(kept.on_rank(0)(x, y), 0);
  auto placed = kept.on(session().device(0));
  const auto kept_placed = std::move(placed);
  EXPECT_MOVED_FROM(placed(x, y), "Function");
  EXPECT_MOVED_FROM(placed.async(x, y), "Function");
  EXPECT_EQ(kept_placed(x, y), 0);
  auto h = session().function([]() -> sr::Sum<int> { return 1; });
  moved_from(h);
  EXPECT_MOVED_FROM(session().balance(h, {.rows = 100}), "Function");
  auto g = session().function(ends);
  const auto kept_g = std::move(g);
  EXPECT_MOVED_FROM(g.only<&Ends::last>(), "Function");
  EXPECT_EQ(kept_g.only<&Ends::last>()(y), 5 * world_size());
}

TEST_P(MovedFrom, FutureIsAnError) {
  const auto f = session().function(first, "first");
  auto future = f.on_rank(0).async(data(), shared());
  auto kept = std::move(future);
  EXPECT_ERROR(static_cast<void>(session().wait_any(std::span(&future, 1))), ErrorKind::usage,
               "wait_any requires a future");
  session().wait_all(std::span(&future, 1));  // a future that was moved from does not count
  EXPECT_MOVED_FROM(future.get(), "Future");
  EXPECT_MOVED_FROM(future.is_ready(), "Future");
  const auto device = session().device(0);
  const auto x = session().value(counting<float>(6), sr::Shape{6}, device);
  auto making = session().function(twice).on(device).async(x);
  auto kept_making = std::move(making);
  EXPECT_MOVED_FROM(making.kept(), "Future");
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
  EXPECT_MOVED_FROM(session().function(&CallCounter::next, object), "Replicated");
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
  EXPECT_MOVED_FROM(step(x, {}), "TrainStep");
  EXPECT_MOVED_FROM(step.async(x, {}), "TrainStep");
  EXPECT_MOVED_FROM(step.params(), "TrainStep");
  EXPECT_MOVED_FROM(step.gradient(), "TrainStep");
  EXPECT_MOVED_FROM(step.state(), "TrainStep");
  EXPECT_MOVED_FROM(step.steps(), "TrainStep");
  EXPECT_MOVED_FROM(step.set_steps(1), "TrainStep");
  EXPECT_MOVED_FROM(step.name(), "TrainStep");
  EXPECT_EQ(kept(x, {}), 1);
  EXPECT_MOVED_FROM(sr::train_step<sr::Sgd>(session(), half_square, moved_from(weights)), "Shared");
}

TEST_P(MovedFrom, CheckpointAndWhatItIsToHoldAreErrors) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "run";
  auto x = data();
  auto y = shared();
  sr::save_checkpoint(path, {{"x", x}, {"y", y}}, {{"epoch", 1}});
  sr::Checkpoint checkpoint(path);
  const sr::Checkpoint kept = std::move(checkpoint);
  EXPECT_MOVED_FROM(checkpoint.has_value("epoch"), "Checkpoint");
  EXPECT_MOVED_FROM(checkpoint.text("epoch"), "Checkpoint");
  EXPECT_MOVED_FROM(checkpoint.value<int>("epoch"), "Checkpoint");
  EXPECT_MOVED_FROM((checkpoint.array<float, 1>("x")), "Checkpoint");
  EXPECT_MOVED_FROM(checkpoint.load({{"x", x}}), "Checkpoint");
  const auto kept_x = std::move(x);
  const auto kept_y = std::move(y);
  EXPECT_MOVED_FROM(kept.load({{"x", x}}), "Data");
  EXPECT_MOVED_FROM(sr::save_checkpoint(path, {{"y", y}}), "Shared");
  EXPECT_MOVED_FROM(sr::save(folder.path() / "x.npy", x), "Data");
  EXPECT_MOVED_FROM(sr::load(folder.path() / "x.npy", y), "Shared");
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
  EXPECT_MOVED_FROM(queue.next(), "BatchQueue");
  EXPECT_MOVED_FROM(queue.begin(), "BatchQueue");
  EXPECT_MOVED_FROM(queue.close(), "BatchQueue");
  EXPECT_MOVED_FROM(queue.name(), "BatchQueue");
  EXPECT_MOVED_FROM(queue.capacity(), "BatchQueue");
  EXPECT_MOVED_FROM(queue.producer_pids(), "BatchQueue");
  EXPECT_EQ(kept.next()->at(0), 1);
  kept.close();
}

TEST_P(MovedFrom, TaskIsAnError) {
  auto task = sr::task(+[](sr::Pipe<int, int>& pipe) { pipe.send(pipe.receive().value_or(-1)); }, {.name = "echo"});
  auto kept = std::move(task);
  EXPECT_MOVED_FROM(task.send(1), "Task");
  EXPECT_MOVED_FROM(task.receive(), "Task");
  EXPECT_MOVED_FROM(task.is_ready(), "Task");
  EXPECT_MOVED_FROM(task.end_messages(), "Task");
  EXPECT_MOVED_FROM(task.get(), "Task");
  EXPECT_MOVED_FROM(task.name(), "Task");
  EXPECT_MOVED_FROM(task.pid(), "Task");
  kept.send(7);
  EXPECT_EQ(kept.receive(), 7);
  kept.get();
}

}  // namespace
// NOLINTEND(bugprone-use-after-move)

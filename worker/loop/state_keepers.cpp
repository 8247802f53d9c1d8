// What Session::verify asks of a worker: to keep the state that calls change beside variables, and to put it back.

#include <algorithm>
#include <string>
#include <vector>

#include "syncrun/detail/verified_call.hpp"
#include "worker/loop/command_loop.hpp"

namespace syncrun::detail {

namespace {

std::vector<StateKeeper*>& state_keepers() {
  static std::vector<StateKeeper*> keepers;
  return keepers;
}

std::string change_state(worker::loop::BodyTools& tools, const StateKeeper::Caller& caller, StateAction action) {
  using Generators = StateKeeper::Generators;
  std::string text;
  switch (action) {
    case StateAction::keep: tools.kept_rng = tools.rng; break;
    case StateAction::restore:
      if (tools.kept_rng) tools.rng = *tools.kept_rng;  // a worker that has replaced another one has nothing
      break;
    case StateAction::drop: tools.kept_rng.reset(); break;
    case StateAction::restore_buffers:
    case StateAction::describe: break;
  }
  for (StateKeeper* const keeper : state_keepers()) {
    switch (action) {
      case StateAction::keep: keeper->keep(caller); break;
      case StateAction::restore: keeper->restore(caller, Generators::restored); break;
      case StateAction::restore_buffers: keeper->restore(caller, Generators::as_they_are); break;
      case StateAction::drop: keeper->drop(); break;
      case StateAction::describe: text += keeper->describe(); break;
    }
  }
  return text;
}

}  // namespace

void add_state_keeper(StateKeeper& keeper) { state_keepers().push_back(&keeper); }
void remove_state_keeper(StateKeeper& keeper) noexcept { std::erase(state_keepers(), &keeper); }

std::string change_worker_state(CpuWorker& worker, StateAction action) {
  return change_state(HandleAccess::command_loop(worker).tools(), {&worker, nullptr}, action);
}
std::string change_worker_state(CudaWorker& worker, StateAction action) {
  return change_state(HandleAccess::command_loop(worker).tools(), {nullptr, &worker}, action);
}

}  // namespace syncrun::detail

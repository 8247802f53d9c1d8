// Members of Values, results of calls, and members of the session.

#include "tests/random/operations.hpp"

namespace random_test {
namespace {

template <class T>
void use_one_value(Program& program, Choices& choices) {
  const int rank = choices.index(static_cast<std::size_t>(program.ranks()));
  const auto value = choose_value<T>(program, choices, rank);
  if (value == nullptr) return;
  const auto device = program.session().device(rank);
  const auto kind = choices.number(0, 9);
  const auto call = program.begin_transfer("", {});
  const auto name_it = [&](const std::string& text) { program.say(call->text = value->name + "." + text); };
  program.use(*call, *value);
  // Whatever a failure leaves, settle() checks it.
  const bool is_known = value->copies[0].is_certain();
  switch (kind) {
    case 0:
    case 1:
      name_it("to(" + text_of(rank) + ")");
      value->begin_move(rank);
      if (program.attempt(*call, [&] { value->handle.to(device); })) value->holders.insert(rank);
      break;
    case 2:
      name_it("to_host()");
      value->begin_move(-1);
      if (program.attempt(*call, [&] { value->handle.to_host(); })) value->is_on_host = true;
      break;
    case 3:
      name_it("pin(" + text_of(rank) + ")");
      value->begin_move(rank);
      if (!program.attempt(*call, [&] { value->handle.pin(device); })) break;
      value->holders.insert(rank);
      value->pinned_to = rank;
      break;
    case 4:
      name_it("unpin()");
      if (program.attempt(*call, [&] { value->handle.unpin(); })) value->pinned_to = -1;
      break;
    case 5: {
      if (!is_known) break;
      name_it("get_async()");
      const auto check = [text = call->text, expected = value->copies[0].newest()](const sr::Array<T, 2>& got) {
        compare(numbers_of(got.span(), got.rows(), got.shape()[1]), expected, text);
      };
      program.attempt(*call, [&] {
        auto future = value->handle.get_async();
        program.results.push_back(
            std::make_unique<ResultOf<decltype(future), decltype(check)>>(call, std::move(future), check));
      });
      return;
    }
    case 6:
      name_it("handle is dropped");
      std::erase(program.arrays, std::static_pointer_cast<Array>(value));
      break;
    default:
      name_it("get()");
      program.attempt(*call, [&] {
        const Numbers got = value->fetch(0);
        if (is_known) compare(got, value->copies[0].newest(), call->text);
      });
  }
  call->has_ended = true;
  if (program.may_lose()) value->is_used_since_kill = true;
}

}  // namespace

void use_value(Program& program, Choices& choices) {
  with_type(choices, [&]<class T> { use_one_value<T>(program, choices); });
}

void take_result(Program& program, Choices& choices) {
  if (program.results.empty()) return;
  const auto kind = choices.number(0, 9);
  std::size_t index = static_cast<std::size_t>(choices.index(program.results.size()));
  if (kind == 0) index = 0;
  if (kind == 1) index = program.results.size() - 1;
  if (kind == 2) {
    for (std::size_t i = 0; i < program.results.size(); ++i) {
      if (program.results[i]->is_ready()) index = i;
    }
  }
  program.say("takes the result of '" + program.results[index]->call->text + "'");
  program.take(index);
}

void use_session(Program& program, Choices& choices) {
  const auto kind = choices.number(0, 9);
  const int rank = choices.index(static_cast<std::size_t>(program.ranks()));
  if (kind <= 3) {
    if (!program.can_be_killed() || !choices.chance(60)) return;
    const int delay_us = choices.chance(30) ? 0 : static_cast<int>(choices.number(0, 3000));
    const int other = choices.index(static_cast<std::size_t>(program.ranks()));
    const int stopped = choices.chance(20) && other != rank ? other : -1;
    program.say("rank " + text_of(rank) + " is killed after " + text_of(delay_us) + " us" +
                (stopped < 0 ? "" : ", while rank " + text_of(stopped) + " is stopped"));
    program.kill(rank, delay_us, stopped);
    return;
  }
  if (kind <= 5) {
    program.weights.clear();
    if (choices.chance(60)) {
      double sum = 0;
      for (int i = 0; i < program.ranks(); ++i) {
        program.weights.push_back(choices.one_of({0.0, 1.0, 1.0, 2.0, 4.5}));
        sum += program.weights.back();
      }
      if (sum == 0) program.weights.clear();
    }
    std::string text = "set_weights(";
    for (const double weight : program.weights) text += std::to_string(weight) + " ";
    program.say(text + ")");
    program.session().set_weights(program.weights);
    return;
  }
  if (kind == 6 && !program.arrays.empty()) {
    const int index = choices.index(program.arrays.size());
    program.say("handle of " + program.arrays[static_cast<std::size_t>(index)]->name + " is dropped");
    program.arrays.erase(program.arrays.begin() + index);
    return;
  }
  const auto call = program.begin_transfer(kind == 7 ? "synchronize(" + text_of(rank) + ")" : "wait()", {});
  program.wait_in(*call, kind == 7 ? rank : -1);
}

void Program::run_one(Choices& choices) {
  const auto kind = choices.number(0, 99);
  if (results.size() > 12) take_result(*this, choices);
  else if (kind < 22) transfer(*this, choices);
  else if (kind < 48) call_on_arrays(*this, choices);
  else if (kind < 68) call_on_rows(*this, choices);
  else if (kind < 80) use_value(*this, choices);
  else if (kind < 90) take_result(*this, choices);
  else if (kind < 94) change_input(*this, choices);
  else use_session(*this, choices);
}

}  // namespace random_test

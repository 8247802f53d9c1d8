#pragma once

// The operations of random programs. Each makes random choices, does something in the session and in the oracle, and
// compares the two. An operation that makes no sense at the moment does nothing.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/random/program.hpp"

namespace random_test {

template <class T>
class ArrayOf : public Array {
 public:
  using Array::Array;
  virtual sr::detail::SharedArgument<T, 2> argument() const = 0;
};

template <class T>
class Variable final : public ArrayOf<T> {
 public:
  Variable(Program& program, std::string name)
      : ArrayOf<T>(name, false, program.ranks()),
        handle(program.session().template shared<T, 2>(name)),
        read_(program.functions<T>().read) {}
  Numbers fetch(int rank) override {
    const auto copy = handle.get(rank);
    return numbers_of(copy.span(), copy.rows(), copy.shape()[1]);
  }
  void read_on(int rank) override { static_cast<void>(read_.template only<0>().on_rank(rank)(handle, Fault{})); }
  sr::detail::SharedArgument<T, 2> argument() const override { return handle; }

  sr::Shared<T, 2> handle;

 private:
  sr::Function<Read<T>, sr::Local<const T, 2>, Fault> read_;
};

template <class T>
class OneValue final : public ArrayOf<T> {
 public:
  OneValue(std::string name, sr::Value<T, 2> handle)
      : ArrayOf<T>(std::move(name), true, 1), handle(std::move(handle)) {}
  Numbers fetch(int) override {
    const auto copy = handle.get();
    return numbers_of(copy.span(), copy.rows(), copy.shape()[1]);
  }
  void read_on(int) override {}
  void find_holders() override {
    this->holders.clear();
    for (const auto& device : handle.where()) this->holders.insert(device.rank());
    this->is_on_host = handle.is_on_host();
  }
  sr::detail::SharedArgument<T, 2> argument() const override { return handle; }

  sr::Value<T, 2> handle;
};

template <class T>
struct InputOf final : Input {
  explicit InputOf(sr::Data<T, 2> handle) : handle(std::move(handle)) {}
  sr::Data<T, 2> handle;
};

template <class Future, class Check>
class ResultOf final : public Result {
 public:
  ResultOf(std::shared_ptr<Call> call, Future future, Check check)
      : Result(std::move(call)), future_(std::move(future)), check_(std::move(check)) {}
  bool is_ready() override { return future_.is_ready(); }
  void take() override {
    if constexpr (std::is_void_v<decltype(future_.get())>) {
      future_.get();
      call->require_success();
      check_();
    } else {
      const auto result = future_.get();
      call->require_success();
      check_(result);
    }
  }

 private:
  Future future_;
  Check check_;
};

/// How the program makes a call.
enum class Way : std::uint8_t { waits, holds, drops };
inline Way choose_way(Choices& choices) {
  return choices.one_of({Way::waits, Way::holds, Way::holds, Way::holds, Way::drops});
}

/// Calls `f` in this way. `check` gets the result.
template <class F, class Check, class... A>
void make_call(Program& program, Way way, const std::shared_ptr<Call>& call, const F& f, Check check,
               const sr::CallOptions& options, const A&... arguments) {
  using Future = decltype(f.async(arguments..., options));
  if (way == Way::waits) {
    program.attempt(*call, [&] {
      if constexpr (std::is_void_v<decltype(std::declval<Future&>().get())>) {
        auto future = f.async(arguments..., options);
        future.get();
        call->require_success();
        check();
      } else {
        const auto result = f(arguments..., options);
        call->require_success();
        check(result);
      }
      call->has_ended = true;
    });
    return;
  }
  program.attempt(*call, [&] {
    auto future = f.async(arguments..., options);
    if (way == Way::holds) {
      program.results.push_back(std::make_unique<ResultOf<Future, Check>>(call, std::move(future), std::move(check)));
    }
  });
}

/// The same on some ranks: on all of them, on one rank, or on a set of devices.
template <class F, class Check, class... A>
void make_call_on(const std::vector<int>& ranks, Choices& choices, Program& program, Way way,
                  const std::shared_ptr<Call>& call, const F& f, Check check, const sr::CallOptions& options,
                  const A&... arguments) {
  const bool by_rank = choices.chance(50);
  if (static_cast<int>(ranks.size()) == program.ranks() && by_rank) {
    return make_call(program, way, call, f, std::move(check), options, arguments...);
  }
  if (ranks.size() == 1 && by_rank) {
    return make_call(program, way, call, f.on_rank(ranks[0]), std::move(check), options, arguments...);
  }
  std::vector<sr::Device> devices;
  for (const int rank : ranks) devices.push_back(program.session().device(rank));
  make_call(program, way, call, f.on(devices), std::move(check), options, arguments...);
}

/// A statement that must throw a usage error.
void refuse(Program& program, const std::shared_ptr<Call>& call, const std::function<void()>& statement);

std::string text_of(const std::vector<int>& ranks);
inline std::string text_of(std::int64_t number) { return std::to_string(number); }
std::string text_of(const Numbers& numbers);

/// From 1 row to many.
std::int64_t choose_rows(Choices& choices);
template <class T>
Numbers random_numbers(Choices& choices, std::int64_t rows, std::int64_t columns) {
  Numbers numbers{.rows = rows, .columns = columns, .values = {}, .slack = 0};
  const bool has_fractions = sr::FloatingElement<T> && choices.chance(20);
  const bool has_odd = sr::FloatingElement<T> && choices.chance(10);
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    double number = static_cast<double>(choices.number(-2, 9));
    if (has_fractions) number = number / 7;
    if (has_odd && choices.chance(3)) {
      const double infinity = std::numeric_limits<double>::infinity();
      number = choices.one_of({infinity, -infinity, std::numeric_limits<double>::quiet_NaN()});
    }
    numbers.values.push_back(static_cast<double>(element_of<T>(number)));
  }
  return numbers;
}

/// Larger numbers are not used, because sums of them would be too large for the smallest type.
inline constexpr double kTooLarge = 500;

/// Arrays of this type for which `fits` holds. Forgets those with large numbers.
template <class A, class Fits>
std::vector<std::shared_ptr<A>> arrays_of(Program& program, Fits fits) {
  std::erase_if(program.arrays, [](const auto& array) {
    return array->is_certain() && std::any_of(array->copies.begin(), array->copies.end(), [](const Copy& copy) {
             return copy.is_assigned && copy.newest().magnitude() > kTooLarge;
           });
  });
  std::vector<std::shared_ptr<A>> found;
  for (const auto& array : program.arrays) {
    auto typed = std::dynamic_pointer_cast<A>(array);
    if (typed && fits(*typed)) found.push_back(std::move(typed));
  }
  return found;
}

template <class T>
std::shared_ptr<Variable<T>> choose_variable(Program& program, Choices& choices) {
  const auto found = arrays_of<Variable<T>>(program, [](const auto&) { return true; });
  if (found.size() >= 3 || (!found.empty() && choices.chance(75))) return choices.one_of(found);
  auto made = std::make_shared<Variable<T>>(program, program.new_name("s"));
  made->is_replicated.reset();
  program.arrays.push_back(made);
  return made;
}

inline bool is_in(const Program& program, const std::shared_ptr<Array>& array) {
  return std::find(program.arrays.begin(), program.arrays.end(), array) != program.arrays.end();
}
inline bool is_assigned(const Array& array, const std::vector<int>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](int rank) { return array.copies[static_cast<std::size_t>(rank)].is_assigned; });
}

/// A transfer of the master that gives these contents to these ranks. Returns whether it has worked.
template <class T>
bool replace(Program& program, Variable<T>& variable, const std::string& text, const std::vector<int>& ranks,
             const std::vector<Numbers>& contents, std::optional<bool> is_replicated,
             const std::function<void()>& statement) {
  const auto call = program.begin_transfer(variable.name + "." + text, program.all_ranks());
  program.use(*call, variable);
  const bool has_worked = program.attempt(*call, statement);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (has_worked) variable.copy(ranks[i]).set(contents[i]);
    else program.write(call, variable, ranks[i], {.numbers = contents[i], .is_wild = true});
  }
  call->has_ended = true;
  variable.is_replicated = has_worked ? is_replicated : std::nullopt;
  return has_worked;
}

template <class T>
void broadcast_values(Program& program, Choices& choices, Variable<T>& variable, std::int64_t rows,
                      std::int64_t columns) {
  const auto numbers = random_numbers<T>(choices, rows, columns);
  const auto values = elements_of<T>(numbers);
  const std::vector<Numbers> contents(static_cast<std::size_t>(program.ranks()), numbers);
  replace(program, variable, "broadcast(" + text_of(numbers) + ")", program.all_ranks(), contents, true, [&] {
    variable.handle.broadcast(values, sr::Shape{numbers.rows, numbers.columns});
  });
}

template <class T>
void broadcast_values(Program& program, Choices& choices, Variable<T>& variable) {
  const auto rows = choose_rows(choices);
  broadcast_values(program, choices, variable, rows, choices.number(1, 3));
}

/// A variable whose copies on these ranks have values, which it gets if it has none. Null if that fails.
template <class T>
std::shared_ptr<Variable<T>> choose_assigned(Program& program, Choices& choices, const std::vector<int>& ranks) {
  const auto variable = choose_variable<T>(program, choices);
  if (!is_assigned(*variable, ranks)) broadcast_values(program, choices, *variable);
  for (const int rank : ranks) {
    if (variable->copy(rank).is_wild) program.make_certain(*variable);
  }
  program.settle_if_needed();
  return is_assigned(*variable, ranks) ? variable : nullptr;
}

/// A Value that a call on this rank can use.
template <class T>
std::shared_ptr<OneValue<T>> choose_value(Program& program, Choices& choices, int rank) {
  const auto found = arrays_of<OneValue<T>>(
      program, [&](const OneValue<T>& value) { return value.pinned_to < 0 || value.pinned_to == rank; });
  if (found.size() >= 4 || (!found.empty() && choices.chance(75))) return choices.one_of(found);
  const auto numbers = random_numbers<T>(choices, choose_rows(choices), choices.number(1, 3));
  const auto values = elements_of<T>(numbers);
  const sr::Shape<2> shape{numbers.rows, numbers.columns};
  const std::string name = program.new_name("v");
  const bool on_host = choices.chance(30);
  const auto call = program.begin_transfer(
      name + " = value(" + text_of(numbers) + (on_host ? ", host)" : ", rank " + text_of(rank) + ")"), {rank});
  std::shared_ptr<OneValue<T>> made;
  if (!program.attempt(*call, [&] {
        auto handle = on_host ? program.session().value(values, shape, name)
                              : program.session().value(values, shape, program.session().device(rank), name);
        made = std::make_shared<OneValue<T>>(name, std::move(handle));
      })) {
    program.settle();
    return nullptr;
  }
  made->copies[0].set(numbers);
  made->is_on_host = on_host;
  if (!on_host) made->holders = {rank};
  made->is_used_since_kill = true;
  made->made_by = call;
  program.arrays.push_back(made);
  return made;
}

template <class T>
std::shared_ptr<InputOf<T>> choose_input(Program& program, Choices& choices) {
  std::vector<std::shared_ptr<InputOf<T>>> found;
  for (const auto& input : program.inputs) {
    if (auto typed = std::dynamic_pointer_cast<InputOf<T>>(input)) found.push_back(std::move(typed));
  }
  if (found.size() >= 3 || (!found.empty() && choices.chance(75))) return choices.one_of(found);
  const auto numbers = random_numbers<T>(choices, choose_rows(choices), choices.number(1, 3));
  const std::string name = program.new_name("d");
  auto made = std::make_shared<InputOf<T>>(
      program.session().data(elements_of<T>(numbers), sr::Shape{numbers.rows, numbers.columns}, name));
  made->name = name;
  made->numbers = numbers;
  program.say(name + " = data(" + text_of(numbers) + ")");
  program.inputs.push_back(made);
  return made;
}

/// Calls `f` with one of the element types.
template <class F>
void with_type(Choices& choices, const F& f) {
  switch (choices.number(0, 5)) {
    case 0: return f.template operator()<float>();
    case 1: return f.template operator()<double>();
    case 2: return f.template operator()<std::int32_t>();
    case 3: return f.template operator()<std::int64_t>();
    case 4: return f.template operator()<sr::bfloat16>();
    default: return f.template operator()<sr::float16>();
  }
}

// ---- the operations ---------------------------------------------------------------------------------------------

void transfer(Program& program, Choices& choices);
void use_value(Program& program, Choices& choices);
void call_on_arrays(Program& program, Choices& choices);
void call_on_rows(Program& program, Choices& choices);
void change_input(Program& program, Choices& choices);
void take_result(Program& program, Choices& choices);
void use_session(Program& program, Choices& choices);

}  // namespace random_test

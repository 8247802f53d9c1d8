// Collectives and transfers of the master on shared variables.

#include "tests/random/operations.hpp"

namespace random_test {
namespace {

using sr::Reduction;

template <class T>
Reduction choose_reduction(Choices& choices) {
  const bool averages = sr::FloatingElement<T> && choices.chance(25);
  const auto chosen = choices.one_of({Reduction::sum, Reduction::max, Reduction::min});
  return averages ? Reduction::avg : chosen;
}

bool have_one_shape(const Array& array) {
  const Numbers& first = array.copies[0].newest();
  return std::all_of(array.copies.begin(), array.copies.end(), [&](const Copy& copy) {
    return copy.newest().rows == first.rows && copy.newest().columns == first.columns;
  });
}

bool have_one_width(const Array& array) {
  return std::all_of(array.copies.begin(), array.copies.end(),
                     [&](const Copy& copy) { return copy.newest().columns == array.copies[0].newest().columns; });
}

std::vector<Numbers> copies_of(const Array& array) {
  std::vector<Numbers> copies;
  for (const Copy& copy : array.copies) copies.push_back(copy.newest());
  return copies;
}

template <class T>
void scatter_values(Program& program, Choices& choices, Variable<T>& variable) {
  const auto numbers = random_numbers<T>(choices, choose_rows(choices), choices.number(1, 3));
  const auto values = elements_of<T>(numbers);
  const sr::Shape<2> shape{numbers.rows, numbers.columns};
  std::vector<std::int64_t> list;
  sr::ScatterOptions options;
  std::string how;
  Numbers chosen = numbers;
  if (choices.chance(30)) {
    for (std::int64_t i = choices.number(1, 8); i > 0; --i) list.push_back(choices.number(0, numbers.rows - 1));
    options.batch = list;
    chosen = rows_of(numbers, list);
    how = ", a list of " + text_of(chosen.rows);
  }
  const auto division = program.division(program.all_ranks(), chosen.rows);
  std::vector<Numbers> parts;
  std::int64_t begin = 0;
  for (const std::int64_t count : division) {
    parts.push_back(rows_of(chosen, begin, begin + count));
    begin += count;
  }
  replace(program, variable, "scatter(" + text_of(numbers) + how + ")", program.all_ranks(), parts, false,
          [&] { variable.handle.scatter(values, shape, options); });
}

template <class T>
void set_one(Program& program, Choices& choices, Variable<T>& variable) {
  const int rank = choices.index(static_cast<std::size_t>(program.ranks()));
  std::int64_t rows = choose_rows(choices);
  std::int64_t columns = choices.number(1, 3);
  if (variable.copy(0).is_assigned && choices.chance(70)) {
    rows = variable.copy(0).newest().rows;
    columns = variable.copy(0).newest().columns;
  }
  const auto numbers = random_numbers<T>(choices, rows, columns);
  const auto values = elements_of<T>(numbers);
  replace(program, variable, "set(" + text_of(rank) + ", " + text_of(numbers) + ")", {rank}, {numbers}, false, [&] {
    variable.handle.set(rank, values, sr::Shape{rows, columns});
  });
}

template <class T>
void change_copies(Program& program, Choices& choices, Variable<T>& variable) {
  const auto rounding = rounding_of<T>();
  const auto all = program.all_ranks();
  const auto count = all.size();
  const bool one_shape = have_one_shape(variable);
  switch (choices.number(0, 5)) {
    case 0: {
      const int root = choices.index(count);
      const std::vector<Numbers> contents(count, variable.copy(root).newest());
      replace(program, variable, "broadcast from rank " + text_of(root), all, contents, true,
              [&] { variable.handle.broadcast(root); });
      return;
    }
    case 1: {
      if (!have_one_width(variable)) return;
      const std::vector<Numbers> contents(count, joined(copies_of(variable)));
      if (contents[0].rows > 20'000) return;
      replace(program, variable, "all_gather()", all, contents, true, [&] { variable.handle.all_gather(); });
      return;
    }
    case 2:
    case 3: {
      if (!one_shape) return;
      const auto reduction = choose_reduction<T>(choices);
      const std::vector<Numbers> contents(count, reduced(copies_of(variable), reduction, rounding));
      const auto route = choices.one_of({sr::Route::device, sr::Route::device, sr::Route::host});
      replace(program, variable, "all_reduce(" + std::string(to_string(reduction)) + ")", all, contents, true,
              [&] { variable.handle.all_reduce(reduction, {.route = route}); });
      return;
    }
    case 4: {
      if (!one_shape) return;
      const int root = choices.index(count);
      const auto reduction = choose_reduction<T>(choices);
      std::vector<Numbers> contents = copies_of(variable);
      contents[static_cast<std::size_t>(root)] = reduced(copies_of(variable), reduction, rounding);
      if (!replace(program, variable, "reduce(" + std::string(to_string(reduction)) + ", root " + text_of(root) + ")",
                   all, contents, std::nullopt, [&] { variable.handle.reduce(reduction, root); })) {
        return;
      }
      for (const int rank : all) variable.copy(rank).is_wild = rank != root;
      return;
    }
    default: {
      if (!one_shape) return;
      const auto reduction = choose_reduction<T>(choices);
      const Numbers sum = reduced(copies_of(variable), reduction, rounding);
      std::vector<Numbers> parts;
      const auto ranks = static_cast<std::int64_t>(count);
      std::int64_t begin = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t end = begin + sum.rows / ranks + (rank < sum.rows % ranks ? 1 : 0);
        parts.push_back(rows_of(sum, begin, end));
        begin = end;
      }
      replace(program, variable, "reduce_scatter(" + std::string(to_string(reduction)) + ")", all, parts, std::nullopt,
              [&] { variable.handle.reduce_scatter(reduction); });
    }
  }
}

template <class T>
void change_by_all(Program& program, Choices& choices, Variable<T>& variable) {
  const bool is_ambiguous = program.is_ambiguous(variable, program.all_ranks());
  change_copies(program, choices, variable);
  for (Copy& copy : variable.copies) copy.is_wild = copy.is_wild || is_ambiguous;
}

template <class T>
void look(Program& program, Choices& choices, Variable<T>& variable) {
  const auto all = program.all_ranks();
  const auto rounding = rounding_of<T>();
  if (program.is_ambiguous(variable, all)) return;
  const auto read = [&](const std::string& text, const std::vector<int>& ranks, const auto& statement) {
    const auto call = program.begin_transfer(variable.name + "." + text, ranks);
    program.use(*call, variable);
    program.attempt(*call, [&] { statement(call->text); });
    call->has_ended = true;
  };
  switch (choices.number(0, 4)) {
    case 0: {
      if (!have_one_width(variable)) return;
      return read("gather()", all, [&](const std::string& text) {
        const auto got = variable.handle.gather();
        compare(numbers_of(got.span(), got.rows(), got.shape()[1]), joined(copies_of(variable)), text);
      });
    }
    case 1: {
      if (!have_one_shape(variable)) return;
      return read("gather_stacked()", all, [&](const std::string& text) {
        const auto got = variable.handle.gather_stacked();
        compare(numbers_of(got.span(), got.rows() * got.shape()[1], got.shape()[2]), joined(copies_of(variable)), text);
      });
    }
    case 2: {
      if (!have_one_shape(variable)) return;
      const auto reduction = choose_reduction<T>(choices);
      return read("reduce(" + std::string(to_string(reduction)) + ")", all, [&](const std::string& text) {
        const auto got = variable.handle.reduce(reduction);
        compare(numbers_of(got.span(), got.rows(), got.shape()[1]), reduced(copies_of(variable), reduction, rounding),
                text);
      });
    }
    case 3: {
      const int rank = choices.index(all.size());
      return read("get(" + text_of(rank) + ")", {rank},
                  [&](const std::string& text) { compare(variable.fetch(rank), variable.copy(rank).newest(), text); });
    }
    default: {
      const int rank = choices.index(all.size());
      const auto call = program.begin_call(variable.name + ".get_async(" + text_of(rank) + ")", {rank});
      call->is_master = true;
      program.use(*call, variable);
      const auto check = [text = call->text, expected = variable.copy(rank).newest()](const sr::Array<T, 2>& got) {
        compare(numbers_of(got.span(), got.rows(), got.shape()[1]), expected, text);
      };
      program.attempt(*call, [&] {
        auto future = variable.handle.get_async(rank);
        program.results.push_back(
            std::make_unique<ResultOf<decltype(future), decltype(check)>>(call, std::move(future), check));
      });
    }
  }
}

template <class T>
void copy_one(Program& program, Choices& choices, Variable<T>& variable) {
  const auto count = static_cast<std::size_t>(program.ranks());
  const int from = choices.index(count);
  const int to = choices.index(count);
  if (!variable.copy(from).is_assigned) return;
  // Like a call whose future is dropped.
  const auto call = program.begin_call(variable.name + ".copy(" + text_of(from) + ", " + text_of(to) + ")",
                                       from == to ? std::vector{from} : std::vector{from, to});
  if (from != to) call->source = from;
  program.use(*call, variable);
  const Numbers numbers = variable.copy(from).newest();
  const bool is_ambiguous = program.is_ambiguous(variable, {from});
  program.attempt(*call, [&] { variable.handle.copy(from, to); });
  // A copy that fails leaves no values.
  program.write(call, variable, to, {.numbers = numbers, .is_wild = true, .may_vanish = true});
  if (is_ambiguous) variable.copy(to).is_wild = true;
  program.wrote(call, variable);
  if (from != to) variable.is_replicated.reset();
}

/// One collective on two variables.
template <class T>
void change_two(Program& program, Choices& choices, Variable<T>& first) {
  const auto all = program.all_ranks();
  const auto others = arrays_of<Variable<T>>(program, [&](const Variable<T>& other) {
    return &other != &first && is_assigned(other, all) && other.is_certain() && have_one_shape(other);
  });
  if (others.empty() || !have_one_shape(first)) return;
  Variable<T>& second = *choices.one_of(others);
  const auto reduction = choose_reduction<T>(choices);
  const auto rounding = rounding_of<T>();
  const auto call = program.begin_transfer(
      "all_reduce({" + first.name + ", " + second.name + "}, " + std::string(to_string(reduction)) + ")", all);
  program.use(*call, first);
  program.use(*call, second);
  const bool is_ambiguous = program.is_ambiguous(first, all) || program.is_ambiguous(second, all);
  const bool has_worked = program.attempt(*call, [&] {
    program.session().all_reduce({first.handle, second.handle}, reduction);
  });
  for (Variable<T>* variable : {&first, &second}) {
    const Numbers numbers = reduced(copies_of(*variable), reduction, rounding);
    for (const int rank : all) {
      if (has_worked) variable->copy(rank).set(numbers);
      else program.write(call, *variable, rank, {.numbers = numbers, .is_wild = true});
      variable->copy(rank).is_wild = variable->copy(rank).is_wild || is_ambiguous;
    }
    if (has_worked) variable->is_replicated = true;
    else variable->is_replicated.reset();
  }
  call->has_ended = true;
}

template <class T>
void assign(Program& program, Choices& choices, Variable<T>& variable) {
  switch (choices.number(0, 3)) {
    case 0: return scatter_values(program, choices, variable);
    case 1: return set_one(program, choices, variable);
    default: return broadcast_values(program, choices, variable);
  }
}

/// A rank dies in a call that reads the variable. The next operation on the variable meets the loss at any time: before it
/// begins, while it waits, or later.
template <class T>
void transfer_at_loss(Program& program, Choices& choices, Variable<T>& variable) {
  const int rank = choices.index(static_cast<std::size_t>(program.ranks()));
  const Fault fault = program.deadly_fault(choices, rank);
  const auto call = program.begin_call("read(" + variable.name + ") on " + text_of(std::vector{rank}), {rank}, fault);
  program.use(*call, variable);
  make_call(
      program, Way::holds, call, program.functions<T>().read.on_rank(rank), [](const Read<T>&) {}, {},
      variable.argument(), fault);
  const auto kind = choices.number(0, 9);
  if (kind <= 4) return change_by_all(program, choices, variable);
  if (kind == 5) return assign(program, choices, variable);
  if (kind == 6) return copy_one(program, choices, variable);
  if (kind <= 8) return look(program, choices, variable);
  if (!have_one_width(variable)) return;
  const auto again = program.begin_call("read(" + variable.name + ") on all ranks", program.all_ranks());
  program.use(*again, variable);
  make_call(
      program, choose_way(choices), again, program.functions<T>().read.template only<&Read<T>::rows>(),
      [text = again->text, expected = joined(copies_of(variable))](const sr::Gather<T, 2>& got) {
        compare(numbers_of<T>(got.span(), got.rows(), got.shape()[1]), expected, text);
      },
      {}, variable.argument(), Fault{});
}

template <class T>
void transfer_of(Program& program, Choices& choices) {
  const auto variable = choose_variable<T>(program, choices);
  const auto all = program.all_ranks();
  const auto kind = choices.number(0, 9);
  if (!is_assigned(*variable, all) || kind <= 2) return assign(program, choices, *variable);
  if (kind == 3 && variable->is_certain()) return copy_one(program, choices, *variable);
  // These compute from the copies, so they must be known.
  program.make_certain(*variable);
  if (!is_assigned(*variable, all)) return;
  if (program.can_be_killed() && choices.chance(10)) return transfer_at_loss(program, choices, *variable);
  if (kind <= 6) return change_by_all(program, choices, *variable);
  if (kind == 7) return change_two(program, choices, *variable);
  look(program, choices, *variable);
}

}  // namespace

void refuse(Program& program, const std::shared_ptr<Call>& call, const std::function<void()>& statement) {
  try {
    statement();
  } catch (const sr::Error& error) {
    if (error.kind() == sr::ErrorKind::usage) return;
    program.attempt(*call, [] { throw; });
    return;
  }
  throw Difference("'" + call->text + "' was not refused");
}

std::string text_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const int rank : ranks) text += " " + std::to_string(rank);
  return text;
}

std::string text_of(const Numbers& numbers) {
  return std::to_string(numbers.rows) + " x " + std::to_string(numbers.columns);
}

std::int64_t choose_rows(Choices& choices) {
  const auto few = choices.number(1, 12);
  const auto many = choices.number(13, 300);
  const auto most = choices.number(1000, 1500);
  const auto chance = choices.number(0, 99);
  return chance < 65 ? few : chance < 93 ? many : most;
}

void transfer(Program& program, Choices& choices) {
  with_type(choices, [&]<class T> { transfer_of<T>(program, choices); });
}

}  // namespace random_test

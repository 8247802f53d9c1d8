// Calls of functions on rows of Data.

#include "tests/random/operations.hpp"

namespace random_test {
namespace {

/// The rows of a call: all rows of its data, or a batch.
struct Batch {
  Numbers rows;
  sr::CallOptions options;
  std::vector<std::int32_t> list;
  std::string text;
};

void choose_batch(Choices& choices, const Numbers& numbers, Batch& batch) {
  batch.rows = numbers;
  batch.text = "all rows";
  const auto kind = choices.number(0, 9);
  if (kind == 0) {
    const auto count = choices.number(1, numbers.rows);
    batch.options.batch = count;
    batch.rows = rows_of(numbers, 0, count);
    batch.text = text_of(count) + " rows";
  } else if (kind <= 2) {
    const auto begin = choices.number(0, numbers.rows - 1);
    const auto end = choices.number(begin + 1, numbers.rows);
    batch.options.batch = sr::Slice{begin, end};
    batch.rows = rows_of(numbers, begin, end);
    batch.text = "rows " + text_of(begin) + " to " + text_of(end);
  } else if (kind <= 4) {
    std::vector<std::int64_t> indices;
    for (std::int64_t i = choices.number(1, choices.chance(20) ? 200 : 9); i > 0; --i) {
      indices.push_back(choices.number(0, numbers.rows - 1));
    }
    batch.list.assign(indices.begin(), indices.end());
    batch.options.batch = batch.list;
    batch.rows = rows_of(numbers, indices);
    batch.text = "a list of " + text_of(batch.rows.rows);
  }
  if (choices.chance(40)) {
    batch.options.slices = choices.number(1, std::min<std::int64_t>(batch.rows.rows, choices.chance(15) ? 1000 : 6));
    batch.text += ", " + text_of(batch.options.slices) + " slices";
  }
}

std::vector<int> with_rows(const std::vector<int>& ranks, const std::vector<std::int64_t>& division) {
  std::vector<int> found;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (division[i] > 0) found.push_back(ranks[i]);
  }
  return found;
}

/// A set of ranks of which one has a weight.
std::vector<int> ranks_with_weight(Program& program, Choices& choices) {
  auto ranks = program.some_ranks(choices);
  const bool any = std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    return program.weights.empty() || program.weights[static_cast<std::size_t>(rank)] > 0;
  });
  return any ? ranks : program.all_ranks();
}

template <class T>
void fold_rows(Program& program, Choices& choices) {
  const auto x = choose_input<T>(program, choices);
  const auto table = choose_input<T>(program, choices);
  if (table->numbers.columns != x->numbers.columns || table->numbers.rows == 0 || x->numbers.rows == 0) return;
  const auto ranks = ranks_with_weight(program, choices);
  Batch batch;
  choose_batch(choices, x->numbers, batch);
  const Fault fault = program.choose_fault(choices, with_rows(ranks, program.division(ranks, batch.rows.rows)), true);
  const Way way = choose_way(choices);
  const auto call = program.begin_call(
      "fold(" + x->name + ", " + table->name + ", " + batch.text + ") on " + text_of(ranks), ranks, fault);
  const auto rounding = rounding_of<T>();
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < batch.rows.rows; ++i) positions.push_back(i % table->numbers.rows);
  const Numbers both = joined({batch.rows, rows_of(table->numbers, positions)});
  const Numbers max = reduced_columns(batch.rows, sr::Reduction::max, rounding);
  Numbers first = max;
  first.columns = 1;
  first.values.resize(1);
  make_call_on(
      ranks, choices, program, way, call, program.functions<T>().fold,
      [text = call->text, rows = batch.rows, sum = reduced_columns(both, sr::Reduction::sum, rounding), max, first,
       min = reduced_columns(batch.rows, sr::Reduction::min, rounding)](const Folded<T>& got) {
        compare(numbers_of<T>(got.rows.span(), got.rows.rows(), got.rows.shape()[1]), rows, text + ".rows");
        compare(numbers_of<T>(got.sum.span(), 1, got.sum.size()), sum, text + ".sum");
        compare(numbers_of<T>(got.max.span(), 1, got.max.size()), max, text + ".max");
        compare(numbers_of<T>(got.min.span(), 1, got.min.size()), min, text + ".min");
        const T number = got.first.value();
        compare(numbers_of<T>({&number, 1}, 1, 1), first, text + ".first");
        if (got.count.value() != rows.rows) throw Difference(text + ".count: got " + text_of(got.count.value()));
      },
      batch.options, x->handle, table->handle, fault);
}

template <class T>
void average_rows(Program& program, Choices& choices) {
  if constexpr (sr::FloatingElement<T>) {
    const auto x = choose_input<T>(program, choices);
    if (x->numbers.rows == 0) return;
    const auto ranks = ranks_with_weight(program, choices);
    Batch batch;
    choose_batch(choices, x->numbers, batch);
    const auto division = program.division(ranks, batch.rows.rows);
    const Fault fault = program.choose_fault(choices, with_rows(ranks, division), true);
    const Way way = choose_way(choices);
    const auto call =
        program.begin_call("average(" + x->name + ", " + batch.text + ") on " + text_of(ranks), ranks, fault);
    std::int64_t runs = 0;
    for (const std::int64_t count : division) runs += std::min(count, batch.options.slices);
    Numbers first = reduced_columns(batch.rows, sr::Reduction::avg, rounding_of<double>());
    first.values.resize(1);
    first.columns = 1;
    make_call_on(
        ranks, choices, program, way, call, program.functions<T>().averages.average,
        [text = call->text, mean = reduced_columns(batch.rows, sr::Reduction::avg, rounding_of<T>()), first, runs,
         rows = batch.rows.rows](const Means<T>& got) {
          compare(numbers_of<T>(got.mean.span(), 1, got.mean.size()), mean, text + ".mean");
          const double number = got.first.value();
          compare(numbers_of<double>({&number, 1}, 1, 1), first, text + ".first");
          std::int64_t sum = 0;
          for (const std::int64_t own : got.rows) sum += own;
          if (got.rows.rows() != runs || sum != rows)
            throw Difference(text + ".rows: the body ran " + text_of(got.rows.rows()) + " times on " + text_of(sum) +
                             " rows, expected " + text_of(runs) + " and " + text_of(rows));
        },
        batch.options, x->handle, fault);
  }
}

/// An Update.
template <class T>
void change_by(Program& program, Choices& choices) {
  const auto ranks = ranks_with_weight(program, choices);
  const auto x = choose_input<T>(program, choices);
  const auto v = choose_assigned<T>(program, choices, ranks);
  if (v == nullptr || x->numbers.rows == 0) return;
  Batch batch;
  choose_batch(choices, x->numbers, batch);
  const auto division = program.division(ranks, batch.rows.rows);
  if (!is_in(program, v) || !is_assigned(*v, ranks)) return;
  const Fault fault = program.choose_fault(choices, with_rows(ranks, division), true);
  const Way way = choose_way(choices);
  const int op = choices.index(sr::FloatingElement<T> ? 4 : 3);
  const char* const names[] = {"sum", "max", "min", "avg"};
  const auto call = program.begin_call(std::string("update by ") + names[op] + "(" + v->name + ", " + x->name + ", " +
                                           batch.text + ") on " + text_of(ranks),
                                       ranks, fault);
  program.use(*call, *v);
  const bool is_ambiguous = program.is_ambiguous(*v, ranks);
  const auto rounding = rounding_of<T>();
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Numbers own = rows_of(batch.rows, begin, begin + division[i]);
    begin += division[i];
    if (own.rows == 0) continue;
    const Numbers& original = v->copy(ranks[i]).newest();
    Numbers result = original;
    if (op == 0) {
      result = with_sums(original, own, rounding);
    } else {
      const sr::Reduction reductions[] = {sr::Reduction::sum, sr::Reduction::max, sr::Reduction::min,
                                          sr::Reduction::avg};
      const Numbers columns = reduced_columns(own, reductions[op], rounding);
      result.slack = 0;
      result = scaled(result, 0, &columns, 0, rounding);
    }
    program.update(call, *v, ranks[i], result);
  }
  for (const int rank : ranks) v->copy(rank).is_wild = v->copy(rank).is_wild || is_ambiguous;
  program.wrote(call, *v);
  const auto start = [&](const auto& f) {
    make_call_on(
        ranks, choices, program, way, call, f, [] {}, batch.options, x->handle, v->argument(), fault);
  };
  const auto& f = program.functions<T>();
  if (op == 0) return start(f.add_rows);
  if (op == 1) return start(f.max_rows);
  if (op == 2) return start(f.min_rows);
  if constexpr (sr::FloatingElement<T>) start(f.averages.by_rows);
}

template <class T>
void replay(Program& program, Choices& choices) {
  const auto ranks = ranks_with_weight(program, choices);
  const auto x = choose_input<T>(program, choices);
  const auto v = choose_assigned<T>(program, choices, ranks);
  if (v == nullptr || x->numbers.rows == 0) return;
  const Numbers& rows = x->numbers;
  const auto division = program.division(ranks, rows.rows);
  // Often enough that CUDA devices capture and replay it.
  const auto times = choices.chance(40) ? choices.number(4, 8) : 1;
  for (std::int64_t time = 0; time < times; ++time) {
    if (v->copy(ranks[0]).is_wild) program.make_certain(*v);
    program.settle_if_needed();
    if (!is_in(program, v) || !is_assigned(*v, ranks)) return;
    const auto shift = static_cast<double>(choices.number(-2, 3));
    const Way way = choose_way(choices);
    const auto call = program.begin_call("replayed(" + v->name + ", " + x->name + ", " +
                                             text_of(static_cast<std::int64_t>(shift)) + ") on " + text_of(ranks),
                                         ranks);
    program.use(*call, *v);
    const bool is_ambiguous = program.is_ambiguous(*v, ranks);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (division[i] != 0)
        program.write(call, *v, ranks[i],
                      {.numbers = scaled(v->copy(ranks[i]).newest(), 1, nullptr, shift, rounding_of<T>())});
    }
    for (const int rank : ranks) v->copy(rank).is_wild = v->copy(rank).is_wild || is_ambiguous;
    program.wrote(call, *v);
    make_call_on(
        ranks, choices, program, way, call, program.functions<T>().replayed,
        [text = call->text, sum = reduced_columns(rows, sr::Reduction::sum, rounding_of<T>())](
            const sr::Sum<T, 1>& got) { compare(numbers_of<T>(got.span(), 1, got.size()), sum, text); },
        {}, x->handle, v->argument(), shift);
  }
}

template <class T>
void average_together(Program& program, Choices& choices) {
  const auto ranks = ranks_with_weight(program, choices);
  const auto x = choose_input<T>(program, choices);
  if (x->numbers.rows == 0) return;
  Batch batch;
  choose_batch(choices, x->numbers, batch);
  batch.options.slices = 1;
  const Fault fault = program.choose_fault(choices, ranks, true);
  const Way way = choose_way(choices);
  const auto call =
      program.begin_call("average_in_comm(" + x->name + ", " + batch.text + ") on " + text_of(ranks), ranks, fault);
  Numbers mean = reduced_columns(batch.rows, sr::Reduction::avg, rounding_of<double>());
  mean.values.resize(1);
  mean.columns = 1;
  make_call_on(
      ranks, choices, program, way, call, program.functions<T>().average_in_comm,
      [text = call->text, mean](const Means2& got) {
        const double numbers[] = {got.min.value(), got.max.value()};
        compare(numbers_of<double>({numbers, 1}, 1, 1), mean, text + ".min");
        compare(numbers_of<double>({numbers + 1, 1}, 1, 1), mean, text + ".max");
        if (!is_close(numbers[0], numbers[1], 0)) throw Difference(text + ": the ranks have different bits");
      },
      batch.options, x->handle, fault);
}

/// A call that is wrong, before any worker does anything.
template <class T>
void call_wrongly(Program& program, Choices& choices) {
  const auto x = choose_input<T>(program, choices);
  const auto rows = x->numbers.rows;
  const auto& f = program.functions<T>().average_in_comm;
  const auto kind = choices.number(0, 3);
  const auto call = program.begin_call("a wrong call, " + text_of(kind), program.all_ranks());
  call->is_master = true;
  refuse(program, call, [&] {
    if (kind == 0) static_cast<void>(f(x->handle, Fault{}, {.batch = sr::Slice{rows / 2, rows / 2}}));
    else if (kind == 1) static_cast<void>(f(x->handle, Fault{}, {.batch = std::vector<std::int64_t>{0, rows}}));
    else if (kind == 2) static_cast<void>(f(x->handle, Fault{}, {.batch = std::vector<std::int64_t>{}}));
    else static_cast<void>(f(x->handle, Fault{}, {.slices = rows + 1}));
  });
}

template <class T>
void change_rows(Program& program, Choices& choices) {
  const auto x = choose_input<T>(program, choices);
  Numbers& numbers = x->numbers;
  const auto call = program.begin_transfer(x->name + " changes", {});
  program.attempt(*call, [&] {
    switch (choices.number(0, 3)) {
      case 0: {
        const auto rows = choose_rows(choices);
        const auto next = random_numbers<T>(choices, rows, choices.number(1, 3));
        x->handle.set(elements_of<T>(next), sr::Shape{next.rows, next.columns});
        numbers = next;
        return;
      }
      case 1: {
        const auto number = static_cast<double>(choices.number(-3, 3));
        x->handle.fill(element_of<T>(number));
        numbers.values.assign(numbers.size(), number);
        return;
      }
      case 2: {
        if (numbers.rows == 0) return;
        const auto row = choices.number(0, numbers.rows - 1);
        const auto next = random_numbers<T>(choices, 1, numbers.columns);
        x->handle.set_rows(row, elements_of<T>(next));
        std::copy(next.values.begin(), next.values.end(), numbers.values.begin() + row * numbers.columns);
        return;
      }
      default: {
        const auto rows = choose_rows(choices);
        x->handle.resize_rows(rows);
        numbers.values.resize(static_cast<std::size_t>(rows * numbers.columns), 0);
        numbers.rows = rows;
      }
    }
  });
}

}  // namespace

void call_on_rows(Program& program, Choices& choices) {
  const auto kind = choices.number(0, 12);
  with_type(choices, [&]<class T> {
    if (kind <= 2) fold_rows<T>(program, choices);
    else if (kind <= 4) average_rows<T>(program, choices);
    else if (kind <= 7) change_by<T>(program, choices);
    else if (kind <= 9) replay<T>(program, choices);
    else if (kind <= 11) average_together<T>(program, choices);
    else call_wrongly<T>(program, choices);
  });
}

void change_input(Program& program, Choices& choices) {
  with_type(choices, [&]<class T> { change_rows<T>(program, choices); });
}

}  // namespace random_test

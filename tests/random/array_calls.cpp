// Calls of functions that read and write shared variables and Values.

#include "tests/random/operations.hpp"

namespace random_test {
namespace {

/// A variable, or a Value if one rank runs the call or the call only reads.
template <class T>
std::shared_ptr<ArrayOf<T>> choose_array(Program& program, Choices& choices, const std::vector<int>& ranks,
                                         bool writes) {
  if (choices.chance(50) && (ranks.size() == 1 || !writes)) {
    auto value = choose_value<T>(program, choices, ranks[0]);
    if (value != nullptr && value->pinned_to >= 0 && ranks != std::vector{value->pinned_to}) return nullptr;
    if (value != nullptr && value->copies[0].is_wild) program.make_certain(*value);
    program.settle_if_needed();
    return is_in(program, value) ? value : nullptr;
  }
  return choose_assigned<T>(program, choices, ranks);
}

/// After the call: where copies of a Value are.
void moved(Program& program, Array& array, const std::vector<int>& ranks, bool is_written) {
  if (!array.is_value) return;
  if (program.may_lose() || !array.writers.empty()) array.is_used_since_kill = true;
  for (const int rank : ranks) array.begin_move(rank);
  if (is_written) {
    array.holders.clear();
    array.is_on_host = false;
  }
  array.holders.insert(ranks.begin(), ranks.end());
}

void make_wild(Array& array, const std::vector<int>& ranks) {
  for (const int rank : ranks) array.copy(rank).is_wild = true;
}

template <class T>
void change_array(Program& program, Choices& choices) {
  const auto ranks = program.some_ranks(choices);
  const auto array = choose_array<T>(program, choices, ranks, true);
  if (array == nullptr) return;
  const Fault fault = program.choose_fault(choices, ranks, true);
  const double scale =
      sr::FloatingElement<T> ? choices.one_of({1.0, -1.0, 0.5, 0.0}) : choices.one_of({1.0, -1.0, 0.0});
  std::vector<double> shifts;
  for (int rank = 0; rank < program.ranks(); ++rank) shifts.push_back(static_cast<double>(choices.number(-3, 5)));
  const Way way = choose_way(choices);
  const auto call = program.begin_call(
      "change(" + array->name + ", scale " + std::to_string(scale) + ") on " + text_of(ranks), ranks, fault);
  program.use(*call, *array);
  const bool is_ambiguous = program.is_ambiguous(*array, ranks);
  for (const int rank : ranks) {
    program.write(call, *array, rank,
                  {.numbers = scaled(array->copy(rank).newest(), scale, nullptr, shifts[static_cast<std::size_t>(rank)],
                                     rounding_of<T>())});
  }
  if (is_ambiguous) make_wild(*array, ranks);
  program.wrote(call, *array);
  moved(program, *array, ranks, true);
  make_call_on(
      ranks, choices, program, way, call, program.functions<T>().change, [] {}, {}, array->argument(), scale, shifts,
      fault);
}

template <class T>
void add_arrays(Program& program, Choices& choices) {
  const auto ranks = program.some_ranks(choices);
  const auto to = choose_array<T>(program, choices, ranks, true);
  const auto from = choose_array<T>(program, choices, ranks, false);
  if (to == nullptr || from == nullptr || to == from || !is_in(program, to) || !is_in(program, from)) return;
  for (const int rank : ranks) {
    if (from->copy(rank).newest().size() == 0) return;
  }
  const Fault fault = program.choose_fault(choices, ranks, true);
  const double scale = choices.one_of({1.0, -1.0, 0.0});
  const Way way = choose_way(choices);
  const auto call = program.begin_call(
      "add(" + to->name + ", " + from->name + ", scale " + std::to_string(scale) + ") on " + text_of(ranks), ranks,
      fault);
  program.use(*call, *to);
  program.use(*call, *from);
  const bool is_ambiguous = program.is_ambiguous(*to, ranks) || program.is_ambiguous(*from, ranks);
  for (const int rank : ranks) {
    program.write(call, *to, rank,
                  {.numbers = scaled(to->copy(rank).newest(), scale, &from->copy(rank).newest(), 0, rounding_of<T>())});
  }
  if (is_ambiguous) make_wild(*to, ranks);
  program.wrote(call, *to);
  moved(program, *to, ranks, true);
  moved(program, *from, ranks, false);
  make_call_on(
      ranks, choices, program, way, call, program.functions<T>().add, [] {}, {}, to->argument(), from->argument(),
      scale, fault);
}

template <class T>
void keep_sum(Program& program, Choices& choices) {
  const int rank = choices.index(static_cast<std::size_t>(program.ranks()));
  const std::vector<int> ranks{rank};
  const auto x = choose_array<T>(program, choices, ranks, false);
  const auto y = choose_array<T>(program, choices, ranks, false);
  if (x == nullptr || y == nullptr || !is_in(program, x) || !is_in(program, y)) return;
  if (y->copy(rank).newest().size() == 0 || x->copy(rank).newest().size() == 0) return;
  const Fault fault = program.choose_fault(choices, ranks, true);
  const auto call = program.begin_call("= keep(" + x->name + ", " + y->name + ") on " + text_of(ranks), ranks, fault);
  program.use(*call, *x);
  program.use(*call, *y);
  moved(program, *x, ranks, false);
  moved(program, *y, ranks, false);
  const Numbers sum = scaled(x->copy(rank).newest(), 1, &y->copy(rank).newest(), 0, rounding_of<T>());
  const bool is_ambiguous = program.is_ambiguous(*x, ranks) || program.is_ambiguous(*y, ranks);
  std::shared_ptr<OneValue<T>> made;
  const bool is_held = choices.chance(40);
  program.attempt(*call, [&] {
    const auto f = program.functions<T>().keep.on(program.session().device(rank));
    if (!is_held) {
      sr::Value<T, 2> value = f(x->argument(), y->argument(), fault);
      const std::string name = value.name();
      made = std::make_shared<OneValue<T>>(name, std::move(value));
    } else {
      auto future = f.async(x->argument(), y->argument(), fault);
      sr::Value<T, 2> value = future.kept();
      const std::string name = value.name();
      made = std::make_shared<OneValue<T>>(name, std::move(value));
      const auto check = [](const sr::Value<T, 2>&) {};
      program.results.push_back(
          std::make_unique<ResultOf<decltype(future), decltype(check)>>(call, std::move(future), check));
    }
  });
  if (made == nullptr) return;
  program.say("  makes '" + made->name + "'");
  made->made_by = call;
  made->copies[0].set(sum);
  made->copies[0].is_wild = is_ambiguous;
  made->holders = {rank};
  program.wrote(call, *made);
  made->is_used_since_kill = true;
  program.arrays.push_back(made);
}

template <class T>
void read_array(Program& program, Choices& choices) {
  const auto ranks = program.some_ranks(choices);
  const auto array = choose_array<T>(program, choices, ranks, false);
  if (array == nullptr) return;
  const Fault fault = program.choose_fault(choices, ranks, true);
  const Way way = choose_way(choices);
  std::vector<Numbers> copies;
  for (const int rank : ranks) copies.push_back(array->copy(rank).newest());
  const bool have_one_shape = std::all_of(copies.begin(), copies.end(), [&](const Numbers& copy) {
    return copy.rows == copies[0].rows && copy.columns == copies[0].columns;
  });
  const bool have_one_width =
      std::all_of(copies.begin(), copies.end(), [&](const Numbers& copy) { return copy.columns == copies[0].columns; });
  if (!have_one_width) return;
  const auto call = program.begin_call("read(" + array->name + ") on " + text_of(ranks), ranks, fault);
  program.use(*call, *array);
  moved(program, *array, ranks, false);
  const std::string text = call->text;
  const bool is_known = !program.is_ambiguous(*array, ranks);
  const auto& f = program.functions<T>().read;
  if (!have_one_shape || choices.chance(30)) {
    make_call_on(
        ranks, choices, program, way, call, f.template only<&Read<T>::rows>(),
        [text, is_known, expected = joined(copies)](const sr::Gather<T, 2>& got) {
          if (!is_known) return;
          compare(numbers_of<T>(got.span(), got.rows(), got.shape()[1]), expected, text);
        },
        {}, array->argument(), fault);
    return;
  }
  const auto rounding = rounding_of<T>();
  make_call_on(
      ranks, choices, program, way, call, f,
      [text, is_known, rows = joined(copies), sum = reduced(copies, sr::Reduction::sum, rounding),
       max = reduced(copies, sr::Reduction::max, rounding)](const Read<T>& got) {
        if (!is_known) return;
        compare(numbers_of<T>(got.rows.span(), got.rows.rows(), got.rows.shape()[1]), rows, text + ".rows");
        compare(numbers_of<T>(got.sum.span(), got.sum.rows(), got.sum.shape()[1]), sum, text + ".sum");
        compare(numbers_of<T>(got.max.span(), got.max.rows(), got.max.shape()[1]), max, text + ".max");
      },
      {}, array->argument(), fault);
}

/// Rows that batch_s and slices select.
template <class T>
void select_rows(Program& program, Choices& choices) {
  const auto ranks = program.some_ranks(choices);
  const auto array = choose_array<T>(program, choices, ranks, false);
  if (array == nullptr) return;
  std::int64_t fewest = array->copy(ranks[0]).newest().rows;
  const std::int64_t columns = array->copy(ranks[0]).newest().columns;
  for (const int rank : ranks) {
    fewest = std::min(fewest, array->copy(rank).newest().rows);
    if (array->copy(rank).newest().columns != columns) return;
  }
  if (fewest < 1) return;
  sr::CallOptions options;
  std::vector<std::int64_t> list;
  std::vector<std::vector<std::int64_t>> lists(static_cast<std::size_t>(program.ranks()));
  std::vector<Numbers> parts;
  std::string how;
  const auto kind = choices.number(0, 3);
  const std::int64_t begin = choices.number(0, fewest - 1);
  const std::int64_t end = choices.number(begin + 1, fewest);
  for (std::int64_t i = choices.number(1, 6); i > 0; --i) list.push_back(choices.number(0, fewest - 1));
  for (const int rank : ranks) {
    for (std::int64_t i = choices.number(0, 5); i > 0; --i)
      lists[static_cast<std::size_t>(rank)].push_back(choices.number(0, array->copy(rank).newest().rows - 1));
  }
  std::int64_t rows = 0;
  for (const int rank : ranks) {
    const Numbers& copy = array->copy(rank).newest();
    switch (kind) {
      case 0: parts.push_back(copy); break;
      case 1: parts.push_back(rows_of(copy, begin, end)); break;
      case 2: parts.push_back(rows_of(copy, list)); break;
      default: parts.push_back(rows_of(copy, lists[static_cast<std::size_t>(rank)]));
    }
    rows += parts.back().rows;
  }
  if (rows == 0) return;
  if (kind == 1) options.batch_s = sr::Slice{begin, end};
  if (kind == 2) options.batch_s = list;
  if (kind == 3) options.batch_s = lists;
  how = kind == 0   ? "all rows"
        : kind == 1 ? "rows " + text_of(begin) + " to " + text_of(end)
        : kind == 2 ? "a list"
                    : "lists by rank";
  if (choices.chance(50))
    options.slices = choices.number(1, std::min<std::int64_t>(rows, choices.chance(20) ? 200 : 5));
  std::vector<int> with_rows;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (parts[i].rows > 0) with_rows.push_back(ranks[i]);
  }
  const Fault fault = program.choose_fault(choices, with_rows, true);
  const Way way = choose_way(choices);
  const auto call = program.begin_call(
      "select(" + array->name + ", " + how + ", " + text_of(options.slices) + " slices) on " + text_of(ranks), ranks,
      fault);
  program.use(*call, *array);
  moved(program, *array, ranks, false);
  const auto rounding = rounding_of<T>();
  const Numbers all = joined(parts);
  make_call_on(
      ranks, choices, program, way, call, program.functions<T>().select,
      [text = call->text, is_known = !program.is_ambiguous(*array, ranks), all,
       sum = reduced_columns(all, sr::Reduction::sum, rounding),
       min = reduced_columns(all, sr::Reduction::min, rounding)](const Selected<T>& got) {
        if (!is_known) return;
        compare(numbers_of<T>(got.rows.span(), got.rows.rows(), got.rows.shape()[1]), all, text + ".rows");
        compare(numbers_of<T>(got.sum.span(), 1, got.sum.size()), sum, text + ".sum");
        compare(numbers_of<T>(got.min.span(), 1, got.min.size()), min, text + ".min");
      },
      options, array->argument(), fault);
}

/// A collective in a body.
template <class T>
void collect_copies(Program& program, Choices& choices) {
  const auto ranks = program.some_ranks(choices);
  const auto v = choose_assigned<T>(program, choices, ranks);
  const auto room = choose_assigned<T>(program, choices, ranks);
  if (v == nullptr || room == nullptr || v == room || !is_in(program, v) || !is_in(program, room)) return;
  const Numbers shape = v->copy(ranks[0]).newest();
  const auto fits = [&] {
    return is_in(program, v) && is_in(program, room) && is_assigned(*v, ranks) && is_assigned(*room, ranks) &&
           std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
             const Numbers& copy = v->copy(rank).newest();
             return copy.rows == shape.rows && copy.columns == shape.columns &&
                    room->copy(rank).newest().size() == copy.size();
           });
  };
  if (!fits()) {
    broadcast_values(program, choices, *v, shape.rows, shape.columns);
    broadcast_values(program, choices, *room, shape.rows, shape.columns);
    program.settle_if_needed();
    if (!fits()) return;
  }
  std::vector<Numbers> copies;
  for (const int rank : ranks) copies.push_back(v->copy(rank).newest());
  if (copies[0].size() == 0) return;
  Operation operation = static_cast<Operation>(choices.number(0, 7));
  if (operation == Operation::avg && !sr::FloatingElement<T>) operation = Operation::min;
  const int root = choices.index(ranks.size());
  const Fault fault = program.choose_fault(choices, ranks, true);
  const Way way = choose_way(choices);
  const auto rounding = rounding_of<T>();
  const char* const names[] = {"sum",
                               "max",
                               "min",
                               "avg",
                               "broadcast",
                               "reduce and broadcast",
                               "reduce_scatter and all_gather",
                               "gather and scatter"};
  const auto call =
      program.begin_call("collect(" + v->name + ", " + room->name + ", " + names[static_cast<int>(operation)] +
                             ", root " + text_of(root) + ") on " + text_of(ranks),
                         ranks, fault);
  program.use(*call, *v);
  program.use(*call, *room);
  const bool is_ambiguous = program.is_ambiguous(*v, ranks) || program.is_ambiguous(*room, ranks);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Numbers result;
    Numbers in_room = room->copy(ranks[i]).newest();
    switch (operation) {
      case Operation::max: result = reduced(copies, sr::Reduction::max, rounding); break;
      case Operation::min: result = reduced(copies, sr::Reduction::min, rounding); break;
      case Operation::avg: result = reduced(copies, sr::Reduction::avg, rounding); break;
      case Operation::broadcast: result = copies[static_cast<std::size_t>(root)]; break;
      case Operation::gather_scatter: result = copies[i]; break;
      default: result = reduced(copies, sr::Reduction::sum, rounding);
    }
    if (operation == Operation::gather_scatter && static_cast<int>(i) == root) {
      const auto parts = static_cast<std::int64_t>(ranks.size());
      const auto size = static_cast<std::int64_t>(copies[0].size());
      std::int64_t at = 0;
      for (std::int64_t part = 0; part < parts; ++part) {
        for (const std::int64_t end = at + size / parts + (part < size % parts ? 1 : 0); at < end; ++at) {
          in_room.values[static_cast<std::size_t>(at)] =
              copies[static_cast<std::size_t>(part)].values[static_cast<std::size_t>(at)];
        }
      }
      in_room.slack = std::max(in_room.slack, copies[i].slack);
    }
    // The pages do not say what a collective that fails leaves.
    program.write(call, *v, ranks[i], {.numbers = result, .is_wild = true});
    program.write(call, *room, ranks[i], {.numbers = in_room, .is_wild = true});
  }
  if (is_ambiguous) {
    make_wild(*v, ranks);
    make_wild(*room, ranks);
  }
  program.wrote(call, *v);
  program.wrote(call, *room);
  make_call_on(
      ranks, choices, program, way, call, program.functions<T>().collect,
      [text = call->text, size = static_cast<int>(ranks.size())](const sr::Min<int>& got) {
        if (got.value() != size) throw Difference(text + ": Comm says another number of ranks");
      },
      {}, v->argument(), room->argument(), operation, root, fault);
}

}  // namespace

void call_on_arrays(Program& program, Choices& choices) {
  const auto kind = choices.number(0, 9);
  with_type(choices, [&]<class T> {
    if (kind <= 2) change_array<T>(program, choices);
    else if (kind <= 3) add_arrays<T>(program, choices);
    else if (kind <= 5) keep_sum<T>(program, choices);
    else if (kind <= 6) read_array<T>(program, choices);
    else if (kind <= 7) select_rows<T>(program, choices);
    else collect_copies<T>(program, choices);
  });
}

}  // namespace random_test

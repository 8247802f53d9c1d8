#pragma once

// The functions of the random programs. They are templates of the kind of device, so they exist once for CPU devices, the
// fake GPU and CUDA devices. A kind D has these members:
//
//   D::Worker                   the worker that the body gets
//   D::run(worker, n, f)        runs f(0) to f(n - 1)
//   D::load(p, i), D::store(p, i, number)   an element as a double, in the memory of the device
//   D::spin(worker, us)         keeps the device busy
//   D::number<Out>(worker, p)   the result that is one number, which the device has written to p
//   D::replayed(body)           the body as it is, or as a replayable body
//
// All arithmetic is in double, and is rounded once, when an element is stored. The oracle does the same.

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <syncrun/syncrun.hpp>
#include <type_traits>

namespace random_test {

namespace sr = syncrun;

/// Rounds a number to an element.
template <class T>
T element_of(double number) {
  if constexpr (std::is_integral_v<T> || std::is_same_v<T, double>) return static_cast<T>(number);
  else return T(static_cast<float>(number));
}

/// A place in a body.
enum class Stage : std::uint8_t { before, half, after };
enum class How : std::uint8_t { throws, dies };

/// What goes wrong in a call, and how long the call takes.
struct Fault {
  static constexpr int kNobody = -1;
  static constexpr int kAll = -2;

  int number = 0;  // is in the text of the exception
  int rank = kNobody;
  Stage stage = Stage::before;
  How how = How::throws;
  int spin_us = 0;
  int spin_rank = kAll;

  void reach(const sr::AnyWorker& worker, Stage here) const {
    if (here != stage || (rank != worker.rank() && rank != kAll) || worker.slice() != 0) return;
    if (how == How::throws) throw std::runtime_error("fault #" + std::to_string(number) + ".");
    ::kill(::getpid(), SIGKILL);
    ::pause();
  }
};

template <class D>
void spin(typename D::Worker& worker, const Fault& fault) {
  if (fault.spin_us != 0 && (fault.spin_rank == Fault::kAll || fault.spin_rank == worker.rank())) {
    D::spin(worker, fault.spin_us);
  }
}

// ---- what runs on the device ------------------------------------------------------------------------------------
// constexpr makes these functions usable in kernels.

/// to[first + i] = a * from[(first + i) % length] + b * to[first + i] + c.
template <class D, class T>
struct Scale {
  const T* from;
  std::int64_t length;
  T* to;
  std::int64_t first;
  double a, b, c;
  constexpr void operator()(std::int64_t i) const {
    const std::int64_t at = first + i;
    const double own = b == 0 ? 0 : b * D::load(to, at);
    const double other = a == 0 ? 0 : a * D::load(from, at % length);
    D::store(to, at, other + own + c);
  }
};

/// to[i] = number.
template <class D, class T>
struct Fill {
  T* to;
  double number;
  constexpr void operator()(std::int64_t i) const { D::store(to, i, number); }
};

/// to[i] += *number.
template <class D, class T>
struct AddNumber {
  const double* number;
  T* to;
  constexpr void operator()(std::int64_t i) const { D::store(to, i, D::load(to, i) + D::load(number, 0)); }
};

/// Of column i: sum, largest and smallest element; the sum is divided by `divisor`. A null pointer is not written.
template <class D, class T, class S>
struct Columns {
  const T* x;
  std::int64_t rows, columns;
  S* sum;
  S* max;
  S* min;
  double divisor;
  constexpr void operator()(std::int64_t column) const {
    double total = 0;
    double most = -std::numeric_limits<double>::infinity();
    double least = std::numeric_limits<double>::infinity();
    for (std::int64_t row = 0; row < rows; ++row) {
      const double element = D::load(x, row * columns + column);
      total += element;
      if (element > most || element != element) most = most != most ? most : element;
      if (element < least || element != element) least = least != least ? least : element;
    }
    if (sum != nullptr) D::store(sum, column, total / divisor);
    if (max != nullptr) D::store(max, column, most);
    if (min != nullptr) D::store(min, column, least);
  }
};

/// sum[column] += the elements of the table, which is repeated along the rows of the call.
template <class D, class T>
struct AddTable {
  const T* table;
  std::int64_t table_rows, columns, first_row, rows;
  T* sum;
  constexpr void operator()(std::int64_t column) const {
    double total = D::load(sum, column);
    for (std::int64_t row = 0; row < rows; ++row) {
      total += D::load(table, (first_row + row) % table_rows * columns + column);
    }
    D::store(sum, column, total);
  }
};

// ---- calls on rows ----------------------------------------------------------------------------------------------

template <class T>
struct Folded {
  sr::Sum<T, 1> sum;  // of each column, and of the rows of the table
  sr::Max<T, 1> max;
  sr::Min<T, 1> min;
  sr::Gather<T, 2> rows;
  sr::Sum<std::int64_t> count;
  sr::Max<T> first{};  // of the first column
};

template <class D, class T>
Folded<T> fold(typename D::Worker& worker, sr::Scattered<const T, 2> x, sr::Broadcast<const T, 2> table, Fault fault) {
  fault.reach(worker, Stage::before);
  spin<D>(worker, fault);
  const std::int64_t columns = x.shape(1);
  Folded<T> own{.sum = {worker, {columns}},
                .max = {worker, {columns}},
                .min = {worker, {columns}},
                .rows = {worker, {x.rows(), columns}},
                .count = x.rows()};
  T* const number = worker.template scratch<T>(1).data();
  D::run(worker, columns,
         Columns<D, T, T>{x.data(), x.rows(), columns, own.sum.data(), own.max.data(), own.min.data(), 1});
  D::run(worker, columns,
         AddTable<D, T>{table.data(), table.rows(), columns, worker.first_row(), x.rows(), own.sum.data()});
  fault.reach(worker, Stage::half);
  D::run(worker, x.size(), Scale<D, T>{x.data(), x.size(), own.rows.data(), 0, 1, 0, 0});
  D::run(worker, 1, Scale<D, T>{own.max.data(), 1, number, 0, 1, 0, 0});
  own.first = D::template number<sr::Max<T>>(worker, number);
  fault.reach(worker, Stage::after);
  return own;
}

template <class T>
struct Means {
  sr::Avg<T, 1> mean;
  sr::Avg<double> first{};
  sr::Stack<std::int64_t> rows;
};

template <class D, class T>
Means<T> average(typename D::Worker& worker, sr::Scattered<const T, 2> x, Fault fault) {
  fault.reach(worker, Stage::before);
  spin<D>(worker, fault);
  const std::int64_t columns = x.shape(1);
  const auto rows = static_cast<double>(x.rows());
  Means<T> own{.mean = {worker, {columns}}, .rows = {worker, sr::Shape<0>()}};
  D::run(worker, 1, Fill<D, std::int64_t>{own.rows.data(), rows});
  double* const number = worker.template scratch<double>(1).data();
  D::run(worker, columns, Columns<D, T, T>{x.data(), x.rows(), columns, own.mean.data(), nullptr, nullptr, rows});
  fault.reach(worker, Stage::half);
  D::run(worker, 1, Columns<D, T, double>{x.data(), x.rows(), columns, number, nullptr, nullptr, rows});
  own.first = D::template number<sr::Avg<double>>(worker, number);
  fault.reach(worker, Stage::after);
  return own;
}

/// With sum: the original, plus the sums of the columns. Else the reduction of the columns.
template <class D, class T, class Op>
void change_by_rows(typename D::Worker& worker, sr::Scattered<const T, 2> x, sr::Update<Op, T, 2> v, Fault fault) {
  fault.reach(worker, Stage::before);
  spin<D>(worker, fault);
  const std::int64_t columns = x.shape(1);
  T* const sums = worker.template scratch<T>(columns).data();
  constexpr bool kAdds = std::is_same_v<Op, sr::op::sum>;
  constexpr bool kAverages = std::is_same_v<Op, sr::op::avg>;
  constexpr bool kMax = std::is_same_v<Op, sr::op::max>;
  D::run(
      worker, columns,
      Columns<D, T, T>{x.data(), x.rows(), columns, kAdds || kAverages ? sums : nullptr, kMax ? sums : nullptr,
                       !kAdds && !kAverages && !kMax ? sums : nullptr, kAverages ? static_cast<double>(x.rows()) : 1});
  fault.reach(worker, Stage::half);
  const std::int64_t size = v.value().size();
  D::run(worker, size, Scale<D, T>{sums, columns, v.value().data(), 0, 1, 0, 0});
  if (kAdds && worker.slice() == 0) {
    D::run(worker, size, Scale<D, T>{v.original().data(), size, v.value().data(), 0, 1, 1, 0});
  }
  fault.reach(worker, Stage::after);
}

/// The rank of each row.
template <class D>
sr::Gather<std::int64_t> ranks_of_rows(typename D::Worker& worker) {
  const std::vector<std::int64_t> own(static_cast<std::size_t>(worker.rows()), worker.rank());
  return {own, {worker.rows()}};
}

// ---- variables and values ---------------------------------------------------------------------------------------

/// v = scale * v + shift, in two halves.
template <class D, class T>
void change(typename D::Worker& worker, sr::Local<T, 2> v, double scale, sr::PerWorker<double> shift, Fault fault) {
  fault.reach(worker, Stage::before);
  spin<D>(worker, fault);
  const std::int64_t half = v.size() / 2;
  D::run(worker, half, Scale<D, T>{v.data(), v.size(), v.data(), 0, 0, scale, shift});
  fault.reach(worker, Stage::half);
  D::run(worker, v.size() - half, Scale<D, T>{v.data(), v.size(), v.data(), half, 0, scale, shift});
  fault.reach(worker, Stage::after);
}

/// to = scale * to + from. The elements of `from` are repeated.
template <class D, class T>
void add(typename D::Worker& worker, sr::Local<T, 2> to, sr::Local<const T, 2> from, double scale, Fault fault) {
  fault.reach(worker, Stage::before);
  spin<D>(worker, fault);
  const std::int64_t half = to.size() / 2;
  D::run(worker, half, Scale<D, T>{from.data(), from.size(), to.data(), 0, 1, scale, 0});
  fault.reach(worker, Stage::half);
  D::run(worker, to.size() - half, Scale<D, T>{from.data(), from.size(), to.data(), half, 1, scale, 0});
  fault.reach(worker, Stage::after);
}

/// x + y. The elements of `y` are repeated.
template <class D, class T>
sr::Keep<T, 2> keep(typename D::Worker& worker, sr::Local<const T, 2> x, sr::Local<const T, 2> y, Fault fault) {
  fault.reach(worker, Stage::before);
  spin<D>(worker, fault);
  sr::Keep<T, 2> sum(worker, x.shape());
  D::run(worker, x.size(), Scale<D, T>{x.data(), x.size(), sum.data(), 0, 1, 0, 0});
  fault.reach(worker, Stage::half);
  D::run(worker, x.size(), Scale<D, T>{y.data(), y.size(), sum.data(), 0, 1, 1, 0});
  fault.reach(worker, Stage::after);
  return sum;
}

template <class T>
struct Read {
  sr::Gather<T, 2> rows;
  sr::Sum<T, 2> sum{};
  sr::Max<T, 2> max{};
};

template <class D, class T>
Read<T> read(typename D::Worker& worker, sr::Local<const T, 2> v, Fault fault) {
  fault.reach(worker, Stage::before);
  spin<D>(worker, fault);
  Read<T> own{.rows = {worker, v.shape()}};
  D::run(worker, v.size(), Scale<D, T>{v.data(), v.size(), own.rows.data(), 0, 1, 0, 0});
  fault.reach(worker, Stage::half);
  if (worker.template wants<&Read<T>::sum>()) {
    own.sum = {worker, v.shape()};
    own.max = {worker, v.shape()};
    D::run(worker, v.size(), Scale<D, T>{v.data(), v.size(), own.sum.data(), 0, 1, 0, 0});
    D::run(worker, v.size(), Scale<D, T>{v.data(), v.size(), own.max.data(), 0, 1, 0, 0});
  }
  fault.reach(worker, Stage::after);
  return own;
}

template <class T>
struct Selected {
  sr::Gather<T, 2> rows;
  sr::Sum<T, 1> sum;
  sr::Min<T, 1> min;
};

template <class D, class T>
Selected<T> select(typename D::Worker& worker, sr::Sliced<const T, 2> v, Fault fault) {
  fault.reach(worker, Stage::before);
  spin<D>(worker, fault);
  const std::int64_t columns = v.shape(1);
  Selected<T> own{.rows = {worker, v.shape()}, .sum = {worker, {columns}}, .min = {worker, {columns}}};
  D::run(worker, v.size(), Scale<D, T>{v.data(), v.size(), own.rows.data(), 0, 1, 0, 0});
  fault.reach(worker, Stage::half);
  D::run(worker, columns, Columns<D, T, T>{v.data(), v.rows(), columns, own.sum.data(), nullptr, own.min.data(), 1});
  fault.reach(worker, Stage::after);
  return own;
}

/// v = v + shift, and the sums of the columns. Replayed on CUDA devices.
template <class D, class T>
sr::Sum<T, 1> replayed(typename D::Worker& worker, sr::Scattered<const T, 2> x, sr::Local<T, 2> v,
                       sr::DeviceScalar<double> shift) {
  const std::int64_t columns = x.shape(1);
  sr::Sum<T, 1> sum(worker, {columns});
  D::run(worker, columns, Columns<D, T, T>{x.data(), x.rows(), columns, sum.data(), nullptr, nullptr, 1});
  D::run(worker, v.size(), AddNumber<D, T>{shift.data(), v.data()});
  return sum;
}

// ---- collectives in bodies --------------------------------------------------------------------------------------

enum class Operation : std::uint8_t {
  sum,
  max,
  min,
  avg,
  broadcast,
  reduce,
  reduce_scatter_all_gather,
  gather_scatter
};

/// A collective on v, in place.
template <class D, class T>
sr::Min<int> collect(typename D::Worker& worker, sr::Comm& comm, sr::Local<T, 2> v, sr::Local<T, 2> room,
                     Operation operation, int root, Fault fault) {
  fault.reach(worker, Stage::before);
  spin<D>(worker, fault);
  const sr::Share share = comm.share(v.size());
  const auto own = v.span().subspan(static_cast<std::size_t>(share.begin), static_cast<std::size_t>(share.count));
  switch (operation) {
    case Operation::sum: comm.all_reduce(v, sr::Reduction::sum); break;
    case Operation::max: comm.all_reduce(v, sr::Reduction::max); break;
    case Operation::min: comm.all_reduce(v, sr::Reduction::min); break;
    case Operation::avg:
      if constexpr (sr::FloatingElement<T>) comm.avg(v);
      break;
    case Operation::broadcast: comm.broadcast(v, root); break;
    case Operation::reduce:
      comm.reduce(v, sr::Reduction::sum, root);
      comm.broadcast(v, root);
      break;
    case Operation::reduce_scatter_all_gather:
      comm.reduce_scatter(v, own, sr::Reduction::sum);
      comm.all_gather(own, v);
      break;
    case Operation::gather_scatter:  // no element changes
      comm.gather(own, room, root);
      comm.scatter(room, own, root);
      break;
  }
  fault.reach(worker, Stage::half);
  const int least = comm.all_reduce(comm.rank(), sr::Reduction::min);
  fault.reach(worker, Stage::after);
  return least + comm.world_size();
}

struct Means2 {
  sr::Min<double> min;
  sr::Max<double> max;
};

/// The mean of the first column over all rows, by Comm::avg.
template <class D, class T>
Means2 average_in_comm(typename D::Worker& worker, sr::Comm& comm, sr::Scattered<const T, 2> x, Fault fault) {
  fault.reach(worker, Stage::before);
  spin<D>(worker, fault);
  const auto numbers = worker.template scratch<double>(1);
  D::run(worker, 1,
         Columns<D, T, double>{x.data(), x.rows(), x.shape(1), numbers.data(), nullptr, nullptr,
                               x.rows() == 0 ? 1 : static_cast<double>(x.rows())});
  fault.reach(worker, Stage::half);
  comm.avg(numbers);
  fault.reach(worker, Stage::after);
  return {.min = D::template number<sr::Min<double>>(worker, numbers.data()),
          .max = D::template number<sr::Max<double>>(worker, numbers.data())};
}

}  // namespace random_test

#include "tests/random/numbers.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace random_test {
namespace {

/// The terms of a sum, as far as its error depends on them.
struct Terms {
  double magnitude = 0;
  bool are_whole = true;
  double count = 0;

  void add(double term) {
    ++count;
    if (!std::isfinite(term)) return;
    magnitude += std::abs(term);
    are_whole = are_whole && term == std::floor(term);
  }
  /// How far the sum may be away. It is 0 if every partial sum is exact.
  double slack(const Rounding& rounding) const {
    if (rounding.unit == 0 || (are_whole && magnitude <= rounding.exact)) return 0;
    return magnitude * (3 * rounding.unit + count * rounding.steps);
  }
};

/// Reduces terms, and adds to `slack` what the roundings may change.
double reduce(const std::vector<double>& terms, sr::Reduction reduction, const Rounding& rounding, double& slack) {
  const auto has_nan = std::any_of(terms.begin(), terms.end(), [](double term) { return std::isnan(term); });
  if (has_nan) return std::numeric_limits<double>::quiet_NaN();
  double result = reduction == sr::Reduction::prod ? 1 : 0;
  Terms all;
  for (const double term : terms) all.add(term);
  switch (reduction) {
    case sr::Reduction::max: return *std::max_element(terms.begin(), terms.end());
    case sr::Reduction::min: return *std::min_element(terms.begin(), terms.end());
    case sr::Reduction::prod:
      for (const double term : terms) result *= term;
      break;
    case sr::Reduction::sum:
      for (const double term : terms) result += term;
      slack = std::max(slack, all.slack(rounding));
      break;
    case sr::Reduction::avg:
      for (const double term : terms) result += term;
      slack = std::max(slack, all.magnitude / all.count * (4 * rounding.unit + 2 * all.count * rounding.steps));
      result /= all.count;
      break;
    case sr::Reduction::gather: throw std::logic_error("gather reduces nothing");
  }
  return rounding.round(result);
}

}  // namespace

double Numbers::magnitude() const {
  double most = 0;
  for (const double value : values) {
    if (std::isfinite(value)) most = std::max(most, std::abs(value));
  }
  return most;
}

Numbers scaled(const Numbers& x, double scale, const Numbers* y, double shift, const Rounding& rounding) {
  Numbers result = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double own = scale == 0 ? 0 : scale * x.values[i];
    const double other = y == nullptr ? 0 : y->values[i % y->size()];
    result.values[i] = rounding.round(other + own + shift);
  }
  result.slack = std::abs(scale) * x.slack + (y == nullptr ? 0 : y->slack);
  if (result.slack != 0) result.slack += 2 * rounding.unit * result.magnitude();
  return result;
}

Numbers reduced_columns(const Numbers& rows, sr::Reduction reduction, const Rounding& rounding) {
  Numbers result{.rows = 1, .columns = rows.columns, .values = {}, .slack = 0};
  std::vector<double> terms(static_cast<std::size_t>(rows.rows));
  for (std::int64_t column = 0; column < rows.columns; ++column) {
    for (std::size_t row = 0; row < terms.size(); ++row) {
      terms[row] = rows.values[row * static_cast<std::size_t>(rows.columns) + static_cast<std::size_t>(column)];
    }
    result.values.push_back(reduce(terms, reduction, rounding, result.slack));
  }
  result.slack += rows.slack * (reduction == sr::Reduction::sum ? static_cast<double>(rows.rows) : 1);
  return result;
}

Numbers with_sums(const Numbers& original, const Numbers& rows, const Rounding& rounding) {
  const auto columns = static_cast<std::size_t>(rows.columns);
  std::vector<double> sums(columns, 0);
  std::vector<Terms> terms(columns);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    sums[i % columns] += rows.values[i];
    terms[i % columns].add(rows.values[i]);
  }
  Numbers result = original;
  double slack = 0;
  for (std::size_t i = 0; i < original.size(); ++i) {
    Terms all = terms[i % columns];
    all.add(original.values[i]);
    slack = std::max(slack, all.slack(rounding));
    result.values[i] = rounding.round(original.values[i] + sums[i % columns]);
  }
  result.slack += slack;
  return result;
}

Numbers reduced(const std::vector<Numbers>& arrays, sr::Reduction reduction, const Rounding& rounding) {
  Numbers result = arrays.front();
  double slack = 0;
  double most = 0;
  for (const Numbers& array : arrays) {
    slack += array.slack;
    most = std::max(most, array.slack);
  }
  result.slack = 0;
  std::vector<double> terms(arrays.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (std::size_t a = 0; a < arrays.size(); ++a) terms[a] = arrays[a].values[i];
    result.values[i] = reduce(terms, reduction, rounding, result.slack);
  }
  const bool adds = reduction == sr::Reduction::sum || reduction == sr::Reduction::prod;
  result.slack += adds ? slack : most;
  if (slack != 0) result.slack += 2 * rounding.unit * result.magnitude();
  return result;
}

Numbers joined(const std::vector<Numbers>& arrays) {
  Numbers all{.rows = 0, .columns = arrays.front().columns, .values = {}, .slack = 0};
  for (const Numbers& array : arrays) {
    all.rows += array.rows;
    all.slack = std::max(all.slack, array.slack);
    all.values.insert(all.values.end(), array.values.begin(), array.values.end());
  }
  return all;
}

Numbers rows_of(const Numbers& numbers, std::int64_t begin, std::int64_t end) {
  Numbers part{.rows = end - begin, .columns = numbers.columns, .values = {}, .slack = numbers.slack};
  part.values.assign(numbers.values.begin() + begin * numbers.columns, numbers.values.begin() + end * numbers.columns);
  return part;
}

Numbers rows_of(const Numbers& numbers, const std::vector<std::int64_t>& indices) {
  Numbers part{.rows = 0, .columns = numbers.columns, .values = {}, .slack = numbers.slack};
  for (const std::int64_t index : indices) {
    const auto at = numbers.values.begin() + index * numbers.columns;
    part.values.insert(part.values.end(), at, at + numbers.columns);
    ++part.rows;
  }
  return part;
}

bool is_close(double got, double expected, double slack) {
  if (std::isnan(expected)) return std::isnan(got);
  if (got == expected) return true;
  return std::isfinite(got) && std::isfinite(expected) && std::abs(got - expected) <= slack;
}

void compare(const Numbers& got, const Numbers& expected, const std::string& what) {
  if (got.rows != expected.rows || got.columns != expected.columns || got.size() != expected.size()) {
    throw Difference(what + ": got " + std::to_string(got.rows) + " x " + std::to_string(got.columns) +
                     " elements, expected " + std::to_string(expected.rows) + " x " + std::to_string(expected.columns));
  }
  std::size_t wrong = 0;
  std::size_t first = 0;
  for (std::size_t i = got.size(); i-- > 0;) {
    if (is_close(got.values[i], expected.values[i], expected.slack)) continue;
    ++wrong;
    first = i;
  }
  if (wrong == 0) return;
  throw Difference(what + ": " + std::to_string(wrong) + " of " + std::to_string(got.size()) +
                   " elements are wrong; element " + std::to_string(first) + " is " +
                   std::to_string(got.values[first]) + ", expected " + std::to_string(expected.values[first]) +
                   (expected.slack == 0 ? "" : " within " + std::to_string(expected.slack)));
}

}  // namespace random_test

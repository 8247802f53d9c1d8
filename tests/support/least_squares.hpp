#pragma once

// Least squares with Adam, computed serially in double. Tests compare train steps on any number of devices with it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace least_squares {

/// The factors of an element.
inline syncrun::ParameterGroup factors_of(const std::vector<syncrun::ParameterGroup>& groups, std::size_t element) {
  const auto i = static_cast<std::int64_t>(element);
  for (const auto& group : groups) {
    if (group.begin <= i && i < group.end) return group;
  }
  return {};
}

/// The loss is the mean over the rows of (x p - y)^2. Each step changes p by one step of Adam.
struct Serial {
  std::vector<double> x, y, params, m, v;
  std::int64_t columns;
  int step = 0;
  double norm = 0;  ///< Of the gradient of the last step, before it was clipped, without frozen elements.

  double take(const std::vector<std::int64_t>& rows, const syncrun::Adam& adam,
              const std::vector<syncrun::ParameterGroup>& groups = {}, double clip_norm = 0) {
    std::vector<double> gradient(params.size());
    double loss = 0;
    for (const auto row : rows) {
      double error = -y[static_cast<std::size_t>(row)];
      const double* const at = &x[static_cast<std::size_t>(row * columns)];
      for (std::size_t i = 0; i < params.size(); ++i) error += at[i] * params[i];
      for (std::size_t i = 0; i < params.size(); ++i)
        gradient[i] += 2 * error * at[i] / static_cast<double>(rows.size());
      loss += error * error / static_cast<double>(rows.size());
    }
    norm = 0;
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (factors_of(groups, i).learning_rate != 0) norm += gradient[i] * gradient[i];
    }
    norm = std::sqrt(norm);
    const double factor = clip_norm == 0 ? 1 : std::min(1.0, clip_norm / (norm + 1e-6));
    ++step;
    for (std::size_t i = 0; i < params.size(); ++i) {
      const auto group = factors_of(groups, i);
      if (group.learning_rate == 0) continue;
      const double rate = adam.learning_rate * group.learning_rate;
      const double g = gradient[i] * factor;
      params[i] *= 1 - rate * adam.decoupled_weight_decay * group.weight_decay;
      m[i] = adam.beta1 * m[i] + (1 - adam.beta1) * g;
      v[i] = adam.beta2 * v[i] + (1 - adam.beta2) * g * g;
      const double corrected = std::sqrt(v[i] / (1 - std::pow(adam.beta2, step))) + adam.epsilon;
      params[i] -= rate * m[i] / (1 - std::pow(adam.beta1, step)) / corrected;
    }
    return loss;
  }
};

inline Serial problem(std::int64_t rows, std::int64_t columns, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  Serial serial;
  serial.columns = columns;
  const auto draw = [&](std::int64_t count) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (auto& value : values) value = std::round(uniform(random) * 64) / 64;  // a float can hold it exactly
    return values;
  };
  serial.x = draw(rows * columns);
  serial.y = draw(rows);
  serial.params = draw(columns);
  serial.m.resize(serial.params.size());
  serial.v.resize(serial.params.size());
  return serial;
}

/// The mean over the rows of (x p - y)^2, and its gradient. For train steps on CPU devices.
template <class T>
syncrun::Avg<double> loss_and_gradient(syncrun::Scattered<const T, 2> x, syncrun::Scattered<const T, 1> y,
                                       syncrun::Local<T, 1> params, syncrun::Local<T, 1> gradient) {
  std::fill(gradient.begin(), gradient.end(), T{0});
  double loss = 0;
  const auto rows = static_cast<T>(x.rows());
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    T error = -y[row];
    for (std::int64_t i = 0; i < params.size(); ++i) error += x(row, i) * params[i];
    for (std::int64_t i = 0; i < params.size(); ++i) gradient[i] += 2 * error * x(row, i) / rows;
    loss += static_cast<double>(error) * static_cast<double>(error);
  }
  return loss / static_cast<double>(x.rows());
}

template <class T>
std::vector<T> as(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

}  // namespace least_squares

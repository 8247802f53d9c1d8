#include <numeric>

#include "tests/mixed/mixed_bodies.hpp"

namespace mixed_test {

Statistics statistics_on_cpu(sr::CpuWorker& worker, sr::Scattered<const double, 1> x) {
  const double sum = std::accumulate(x.begin(), x.end(), 0.0);
  Statistics s{.mean = sum / static_cast<double>(x.rows()), .sum = sum, .rows = {worker, {x.rows()}}};
  for (std::int64_t i = 0; i < x.rows(); ++i) s.rows[i] = 2 * x[i];
  return s;
}

Arrays arrays_on_cpu(sr::CpuWorker& worker, sr::Scattered<const float, 1> x, std::int64_t size) {
  Arrays a{.mean = {worker, {size}}, .most = {worker, {size}}};
  const float mean = std::accumulate(x.begin(), x.end(), 0.0F) / static_cast<float>(x.rows());
  for (std::int64_t i = 0; i < size; ++i) {
    a.mean[i] = mean + static_cast<float>(i % 5);
    a.most[i] = static_cast<std::int16_t>(worker.rank());
  }
  return a;
}

void add_sum_on_cpu(sr::CpuWorker&, sr::Scattered<const float, 1> x, sr::Update<sr::op::sum, float, 1> values) {
  const float sum = std::accumulate(x.begin(), x.end(), 0.0F);
  for (std::int64_t i = 0; i < values.value().size(); ++i) values.value()[i] = values.original()[i] + sum;
}

sr::Sum<double> late_sum_on_cpu(sr::CpuWorker&, sr::Scattered<const float, 1> x, sr::Broadcast<const float, 1> y,
                                sr::DeviceScalar<double> factor) {
  return std::accumulate(y.begin(), y.end(), std::accumulate(x.begin(), x.end(), 0.0)) * factor.value();
}

sr::Avg<double> loss_and_gradient_on_cpu(sr::CpuWorker&, sr::Scattered<const float, 2> x,
                                         sr::Scattered<const float, 1> y, sr::Local<float, 1> params,
                                         sr::Local<float, 1> gradient) {
  const auto rows = static_cast<float>(x.rows());
  double loss = 0;
  for (float& element : gradient) element = 0;
  for (std::int64_t row = 0; row < x.rows(); ++row) {
    float error = -y[row];
    for (std::int64_t i = 0; i < x.shape(1); ++i) error += x(row, i) * params[i];
    for (std::int64_t i = 0; i < x.shape(1); ++i) gradient[i] += 2 * error * x(row, i) / rows;
    loss += static_cast<double>(error) * static_cast<double>(error) / rows;
  }
  return loss;
}

sr::Avg<double> summed_on_cpu(sr::CpuWorker& worker, sr::detail::GradientCount& count, sr::Scattered<const float, 2> x,
                              sr::Scattered<const float, 1> y, sr::Local<float, 1> params,
                              sr::Local<float, 1> gradient) {
  const auto loss = loss_and_gradient_on_cpu(worker, x, y, params, gradient);
  for (float& element : gradient) element *= static_cast<float>(x.rows());
  count.set(static_cast<double>(x.rows()));
  return loss;
}

void lose_context_on_cpu(sr::CpuWorker&) {}

}  // namespace mixed_test

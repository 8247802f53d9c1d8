#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>

#include "tests/mixed/fake_gpu.hpp"
#include "tests/mixed/mixed_bodies.hpp"

namespace mixed_test {

using syncrun::test::compute_for;
using syncrun::test::enqueue;
using syncrun::test::host_view;

int gpus() { return 2; }

Statistics statistics_on_gpu(sr::CudaWorker& worker, sr::Scattered<const double, 1> x) {
  double* const numbers = worker.scratch<double>(2).data();
  Statistics s{.mean = sr::Avg<double>::in_device_memory(numbers),
               .sum = sr::Sum<double>::in_device_memory(numbers + 1),
               .rows = {worker, {x.rows()}}};
  enqueue(worker, [=, from = x.data(), rows = x.rows(), to = s.rows.data()] {
    const double sum = std::accumulate(host_view(from), host_view(from) + rows, 0.0);
    host_view(numbers)[0] = sum / static_cast<double>(rows);
    host_view(numbers)[1] = sum;
    std::transform(host_view(from), host_view(from) + rows, host_view(to), [](double value) { return 2 * value; });
  });
  return s;
}

Arrays arrays_on_gpu(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, std::int64_t size) {
  Arrays a{.mean = {worker, {size}}, .most = {worker, {size}}};
  enqueue(worker, [from = x.data(), rows = x.rows(), mean = a.mean.data(), most = a.most.data(), size,
                   rank = worker.rank()] {
    const float of_rows = std::accumulate(host_view(from), host_view(from) + rows, 0.0F) / static_cast<float>(rows);
    for (std::int64_t i = 0; i < size; ++i) {
      host_view(mean)[i] = of_rows + static_cast<float>(i % 5);
      host_view(most)[i] = static_cast<std::int16_t>(rank);
    }
  });
  return a;
}

void add_sum_on_gpu(sr::CudaWorker& worker, sr::Scattered<const float, 1> x, sr::Update<sr::op::sum, float, 1> values) {
  enqueue(worker, [from = x.data(), rows = x.rows(), old = values.original().data(), to = values.value().data(),
                   size = values.value().size()] {
    const float sum = std::accumulate(host_view(from), host_view(from) + rows, 0.0F);
    std::transform(host_view(old), host_view(old) + size, host_view(to), [sum](float value) { return value + sum; });
  });
}

sr::Sum<double> late_sum_on_gpu(sr::CudaWorker& worker, sr::Scattered<const float, 1> x,
                                sr::Broadcast<const float, 1> y, sr::DeviceScalar<double> factor) {
  double* const sum = worker.scratch<double>(1).data();
  compute_for(worker, std::chrono::milliseconds(3));
  enqueue(worker, [=, x = x.span(), y = y.span(), factor = static_cast<const double*>(factor.data())] {
    const auto add = [](double before, std::span<const float> of) {
      return std::accumulate(host_view(of.data()), host_view(of.data()) + of.size(), before);
    };
    *host_view(sum) = add(add(0, x), y) * *host_view(factor);
  });
  return sr::Sum<double>::in_device_memory(sum);
}

sr::Avg<double> loss_and_gradient_on_gpu(sr::CudaWorker& worker, sr::Scattered<const float, 2> x,
                                         sr::Scattered<const float, 1> y, sr::Local<float, 1> params,
                                         sr::Local<float, 1> gradient) {
  double* const loss = worker.scratch<double>(1).data();
  enqueue(worker, [=, x = x.data(), y = y.data(), params = params.data(), gradient = gradient.data(), rows = x.rows(),
                   columns = x.shape(1)] {
    double sum = 0;
    std::fill_n(host_view(gradient), columns, 0.0F);
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* const at = host_view(x) + row * columns;
      const float error = std::inner_product(at, at + columns, host_view(params), -host_view(y)[row]);
      for (std::int64_t i = 0; i < columns; ++i) host_view(gradient)[i] += 2 * error * at[i] / static_cast<float>(rows);
      sum += static_cast<double>(error) * static_cast<double>(error) / static_cast<double>(rows);
    }
    *host_view(loss) = sum;
  });
  return sr::Avg<double>::in_device_memory(loss);
}

sr::Avg<double> summed_on_gpu(sr::CudaWorker& worker, sr::detail::GradientCount& count, sr::Scattered<const float, 2> x,
                              sr::Scattered<const float, 1> y, sr::Local<float, 1> params,
                              sr::Local<float, 1> gradient) {
  double* const rows = worker.scratch<double>(2).data() + 1;  // the loss comes before it
  const auto loss = loss_and_gradient_on_gpu(worker, x, y, params, gradient);
  enqueue(worker, [=, gradient = gradient.data(), columns = x.shape(1), number = x.rows()] {
    for (std::int64_t i = 0; i < columns; ++i) host_view(gradient)[i] *= static_cast<float>(number);
    *host_view(rows) = static_cast<double>(number);
  });
  count.set_in_device_memory(rows);
  return loss;
}

void lose_context_on_gpu(sr::CudaWorker& worker) { syncrun::test::queue_of(worker).lose_context(); }

}  // namespace mixed_test

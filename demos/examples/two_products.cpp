// Theano's example for several GPUs: one function computes two dot products on two named devices at the same time, and
// one of the results is transferred explicitly.

#include <cstdio>
#include <syncrun/syncrun.hpp>
#include <utility>
#include <vector>

namespace {

namespace sr = syncrun;

// [functions]
/// The matrix product of a and b.
sr::Keep<double, 2> dot(sr::CpuWorker& worker, sr::Local<const double, 2> a, sr::Local<const double, 2> b) {
  sr::Keep<double, 2> c(worker, {a.rows(), b.shape(1)});
  for (std::int64_t i = 0; i < c.rows(); ++i) {
    for (std::int64_t k = 0; k < b.rows(); ++k) {
      for (std::int64_t j = 0; j < c.shape()[1]; ++j) c(i, j) += a(i, k) * b(k, j);
    }
  }
  return c;
}

using Matrix = sr::Value<double, 2>;

/// One function of the program, with two results on two devices. It returns before they are computed.
std::pair<Matrix, Matrix> two_products(sr::Session& session, const Matrix& a, const Matrix& b) {
  const auto product = session.function(dot);
  return {product.on(session.device("dev0"))(a, a), product.on(session.device("dev1"))(b, b)};
}
// [/functions]

int program(sr::Session& session) {
  // [calls]
  const auto dev0 = session.device("dev0");
  const auto dev1 = session.device("dev1");
  const std::vector<double> ones(4096, 1.0);
  const auto a = session.value(ones, sr::Shape{64, 64}, dev0);
  const auto b = session.value(ones, sr::Shape{64, 64}, dev1);

  const auto [first, second] = two_products(session, a, b);  // both run at the same time
  first.to(dev1);                                            // Theano: .transfer('dev1')
  const auto both = session.function(dot).on(dev1)(first, second);
  std::printf("%g %g %g\n", first.get()(0, 0), second.get()(0, 0), both.get()(0, 0));
  // [/calls]
  return both.get()(0, 0) == 64.0 * 64 * 64 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return syncrun::run(argc, argv, program, {.devices = "dev0=cpu0,dev1=cpu1"}); }

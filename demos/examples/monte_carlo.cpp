// A Monte Carlo simulation, which needs no data. It estimates the price of an Asian call option. The option pays the
// amount by which the average price of a stock over a year exceeds a strike price. Every worker simulates its part of
// the paths with random numbers of its own, and returns sums. For the geometric average, the price has a closed form.
// The program checks the simulation against it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <syncrun/syncrun.hpp>

namespace {

namespace sr = syncrun;

struct AsianCall {
  double spot = 100;
  double strike = 100;
  double rate = 0.05;  // per year, continuously compounded
  double volatility = 0.2;
  int days = 252;  // in the year; the average is over the prices at the end of each day
};

struct Payoffs {
  sr::Sum<double> arithmetic;
  sr::Sum<double> geometric;
  sr::Sum<double> arithmetic_squared;
  sr::Sum<double> geometric_squared;
};

/// Sums over paths of geometric Brownian motion. Each row of the call is one path.
Payoffs simulate(sr::CpuWorker& worker, AsianCall option) {
  const double step = 1.0 / option.days;
  const double drift = (option.rate - option.volatility * option.volatility / 2) * step;
  std::normal_distribution<double> shock(drift, option.volatility * std::sqrt(step));
  double sums[2] = {}, squares[2] = {};
  for (std::int64_t path = 0; path < worker.rows(); ++path) {
    double log_return = 0, price_sum = 0, log_sum = 0;
    for (int day = 0; day < option.days; ++day) {
      log_return += shock(worker.rng());
      price_sum += std::exp(log_return);
      log_sum += log_return;
    }
    const double averages[2] = {price_sum / option.days, std::exp(log_sum / option.days)};
    for (int i = 0; i < 2; ++i) {
      const double payoff = std::max(0.0, option.spot * averages[i] - option.strike);
      sums[i] += payoff;
      squares[i] += payoff * payoff;
    }
  }
  return {sums[0], sums[1], squares[0], squares[1]};
}

struct Estimate {
  double price;
  double standard_error;
};

Estimate discounted(const AsianCall& option, double sum, double sum_of_squares, double paths) {
  const double mean = sum / paths;
  const double variance = (sum_of_squares / paths - mean * mean) * paths / (paths - 1);
  const double discount = std::exp(-option.rate);
  return {discount * mean, discount * std::sqrt(variance / paths)};
}

/// The price of the call on the geometric average. It has a closed form, because the logarithm of that average is
/// normally distributed. Source: A. Kemna, A. Vorst, "A pricing method for options based on average asset values",
/// Journal of Banking and Finance 14, 1990, here for daily averages.
double geometric_price(const AsianCall& option) {
  const double n = option.days;
  const double mean = (option.rate - option.volatility * option.volatility / 2) * (n + 1) / (2 * n);
  const double variance = option.volatility * option.volatility * (n + 1) * (2 * n + 1) / (6 * n * n);
  const auto normal_cdf = [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; };
  const double d2 = (std::log(option.spot / option.strike) + mean) / std::sqrt(variance);
  const double d1 = d2 + std::sqrt(variance);
  const double forward = option.spot * std::exp(mean + variance / 2);
  return std::exp(-option.rate) * (forward * normal_cdf(d1) - option.strike * normal_cdf(d2));
}

int program(sr::Session& session) {
  const AsianCall option;
  const std::int64_t paths = 50'000;
  const auto f = session.function(simulate);
  const Payoffs sums = f(option, {.rows = paths});

  const Estimate arithmetic = discounted(option, sums.arithmetic, sums.arithmetic_squared, paths);
  const Estimate geometric = discounted(option, sums.geometric, sums.geometric_squared, paths);
  const double exact = geometric_price(option);
  std::printf("%lld paths on %d workers\n", static_cast<long long>(paths), session.world_size());
  std::printf("arithmetic average: %.4f +- %.4f\n", arithmetic.price, arithmetic.standard_error);
  std::printf("geometric average:  %.4f +- %.4f, in closed form %.4f\n", geometric.price, geometric.standard_error,
              exact);
  const bool right = std::abs(geometric.price - exact) < 5 * geometric.standard_error;
  std::printf("%s\n", right ? "within five standard errors" : "NOT WITHIN FIVE STANDARD ERRORS");
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return syncrun::run(argc, argv, program, {.seed = 1}); }

#pragma once

// Asynchronous training around a center, computed serially in double. Tests compare sr::easgd and sr::downpour on any
// devices with it, with the same order of arrivals.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace serial_rounds {

/// What is left of the rounds.
struct Result {
  std::vector<double> center;
  std::vector<std::int64_t> rounds;  // by lane
};

/// All lanes begin at `center`. `train(params, lane, round)` is one round of a lane, which changes its parameters. After
/// each round, the lane exchanges values with the center, in the order of `arrivals`: `exchange(params, center, lane)`.
template <class Train, class Exchange>
Result run(std::vector<double> center, std::size_t lanes, std::span<const std::size_t> arrivals, Train&& train,
           Exchange&& exchange) {
  std::vector<std::vector<double>> params(lanes, center);
  std::vector<std::int64_t> rounds(lanes);
  for (const std::size_t lane : arrivals) {
    train(std::span<double>(params[lane]), static_cast<std::int64_t>(lane), rounds[lane]++);
    exchange(params[lane], center, lane);
  }
  return {center, rounds};
}

template <class Train>
Result easgd(const std::vector<double>& center, std::size_t lanes, std::span<const std::size_t> arrivals,
             double moving_rate, Train&& train) {
  return run(center, lanes, arrivals, train, [&](std::vector<double>& x, std::vector<double>& c, std::size_t) {
    for (std::size_t i = 0; i < c.size(); ++i) {
      const double difference = x[i] - c[i];
      x[i] -= moving_rate * difference;
      c[i] += moving_rate * difference;
    }
  });
}

template <class Train>
Result downpour(const std::vector<double>& center, std::size_t lanes, std::span<const std::size_t> arrivals,
                Train&& train) {
  std::vector<std::vector<double>> seen(lanes, center);
  return run(center, lanes, arrivals, train, [&](std::vector<double>& x, std::vector<double>& c, std::size_t lane) {
    for (std::size_t i = 0; i < c.size(); ++i) c[i] += x[i] - seen[lane][i];
    x = seen[lane] = c;
  });
}

}  // namespace serial_rounds

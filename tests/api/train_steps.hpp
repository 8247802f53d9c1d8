#pragma once

// Train steps of least squares on devices, which are compared with the same steps computed serially over all rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "tests/support/least_squares.hpp"

template <class T>
syncrun::Shared<T, 1> weights_of(syncrun::Session& session, const least_squares::Serial& serial,
                                 const char* name = "") {
  auto weights = session.shared<T, 1>(name);
  weights.broadcast(least_squares::as<T>(serial.params));
  return weights;
}

template <class T>
void expect_equal_on_all_ranks(const syncrun::Session& session, const syncrun::Shared<T, 1>& weights,
                               const std::vector<double>& values, double tolerance) {
  const auto first = weights.get(0).to_vector();
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(first[i], values[i], tolerance) << "parameter " << i;
  for (int rank = 1; rank < session.world_size(); ++rank) EXPECT_EQ(weights.get(rank).to_vector(), first);
}

/// Takes ten steps on random batches, in one slice and in several in turn. Some batches have fewer rows than ranks. Calls
/// `before(step, i)` before step i.
template <class T, class Body, class Before>
void follow_serial_steps(syncrun::Session& session, Body body, const syncrun::TrainStepOptions& options,
                         std::int64_t columns, double tolerance, Before&& before) {
  constexpr std::int64_t kRows = 40;
  std::mt19937 random(7);
  auto serial = least_squares::problem(kRows, columns, 3);
  const auto x = session.data(least_squares::as<T>(serial.x), syncrun::Shape{kRows, columns});
  const auto y = session.data(least_squares::as<T>(serial.y));
  const auto weights = weights_of<T>(session, serial);
  auto step = syncrun::train_step<syncrun::Adam>(session, body, weights, options);
  for (int i = 0; i < 10; ++i) {
    before(step, i);
    std::vector<std::int64_t> batch(1 + (i % 4 == 0 ? i / 4 : random() % kRows));
    for (auto& row : batch) row = static_cast<std::int64_t>(random() % kRows);
    const auto most_slices = std::min<std::size_t>(batch.size(), i % 2 == 0 ? 1 : 6);
    const auto slices = static_cast<std::int64_t>(1 + random() % most_slices);
    const syncrun::Adam adam{.learning_rate = 0.02 / (1 + i), .decoupled_weight_decay = 0.1};
    const double loss = step(x, y, adam, {.batch = batch, .slices = slices});
    EXPECT_NEAR(loss, serial.take(batch, adam, options.groups, options.clip_norm), tolerance * 100);
    if (options.clip_norm != 0) {
      EXPECT_NEAR(step.gradient_norm(), serial.norm, 100 * tolerance * serial.norm);
    }
  }
  EXPECT_EQ(step.steps(), 10);
  expect_equal_on_all_ranks(session, weights, serial.params, tolerance);
}
template <class T, class Body>
void follow_serial_steps(syncrun::Session& session, Body body, const syncrun::TrainStepOptions& options,
                         std::int64_t columns, double tolerance) {
  follow_serial_steps<T>(session, body, options, columns, tolerance, [](const auto&, int) {});
}

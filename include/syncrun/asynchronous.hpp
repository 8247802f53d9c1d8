#pragma once

// Asynchronous training: each device trains at its own pace, around a shared center. easgd() and downpour() run rounds
// on several devices. After each of its rounds, a device exchanges values with the center, and begins the next round.
// It does not wait for the other devices.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "syncrun/arguments.hpp"
#include "syncrun/cuda_worker.hpp"
#include "syncrun/detail/handle_access.hpp"
#include "syncrun/detail/master_interface.hpp"
#include "syncrun/detail/worker_interface.hpp"
#include "syncrun/device.hpp"
#include "syncrun/error.hpp"
#include "syncrun/function.hpp"
#include "syncrun/session.hpp"
#include "syncrun/value.hpp"
#include "syncrun/worker.hpp"

namespace syncrun {

template <class T>
struct Round;
struct RoundsReport;
struct EasgdOptions;
struct DownpourOptions;

/// Elastic averaging SGD. Each device trains its own parameters x. After each round, these and the center c move
/// towards each other:  x -= alpha (x - c),  c += alpha (x - c). Source: S. Zhang, A. Choromanska, Y. LeCun, "Deep
/// learning with Elastic Averaging SGD", arXiv 1412.6651, algorithm 1 (asynchronous EASGD). A round is what the article
/// calls a communication period.
///
///   const auto start = [&](const Round<float>& round) { return steps.on(round.device).async(round.params, batch()); };
///   const auto after = [&](const Round<float>& round, double loss) { return ++count < 1000; };
///   const RoundsReport report = easgd(session, center, devices, start, after, {.moving_rate = 0.3});
///
/// `start(round)` starts one round and returns its Future: some steps of training on round.device that change
/// round.params. `after(round, result)` is called when a round is over, or `after(round)` if its function returns
/// nothing. If it returns false, no more rounds start. Rounds that are running still end. Both run in the master, on
/// the thread that calls easgd().
///
/// The center is a Value, which moves to the device that exchanges. Afterwards, center.get() returns the result. The
/// order of the exchanges depends on how fast the devices are, so two runs differ (see RoundsReport::arrivals). Throws
/// Error (usage) for bad options, and the errors of the rounds.
///
/// If a worker is lost and the session replaces it (OnWorkerLost::respawn), easgd() throws the loss, and the center
/// stays. It is as after the last exchange. If its last copy was lost with the worker, it is as after an earlier exchange:
/// after the last one whose result has reached the host. For this, each exchange sends the center to the host while the
/// devices go on. The program may call easgd() again with the same center. Sessions that end with a loss send nothing.
template <class T, class Start, class After>
  requires std::same_as<T, float> || std::same_as<T, double>
RoundsReport easgd(Session& session, const Value<T, 1>& center, std::span<const Device> devices, Start&& start,
                   After&& after, const EasgdOptions& options);

/// Downpour SGD. Each device trains its own parameters x. After each round, it adds to the center c by how much x has
/// changed since it last saw the center, and goes on from the center:  c += x - y,  y = c,  x = c. Source: J. Dean et
/// al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1. The center is the parameter server, and a
/// round is the time between two pushes and fetches (n_push = n_fetch). The update of the center is the sum of the
/// device's own updates, as in algorithm 1 of the article's supplement with SGD on the device.
///
/// `start` and `after` are as for easgd().
template <class T, class Start, class After>
  requires std::same_as<T, float> || std::same_as<T, double>
RoundsReport downpour(Session& session, const Value<T, 1>& center, std::span<const Device> devices, Start&& start,
                      After&& after, const DownpourOptions& options);

/// One round of one device.
template <class T>
struct Round {
  Device device;
  Value<T, 1> params;   ///< The device's own parameters. The round changes them.
  std::size_t lane;     ///< The position of the device in the list of devices.
  std::int64_t number;  ///< How many rounds this device has finished before.
};

/// The rounds that have run.
struct RoundsReport {
  std::vector<std::int64_t> rounds;   ///< By position in the list of devices: how many rounds it has finished.
  std::vector<std::size_t> arrivals;  ///< The positions of the devices, in the order of their exchanges.
};

/// Options of easgd.
struct EasgdOptions {
  /// The moving rate, alpha in the article: how far the parameters and the center move towards each other in an
  /// exchange. Above 0 and at most 1. The article recommends 0.9 / (the number of devices) in its experiments.
  double moving_rate = 0.1;
  /// How many rounds all devices together run. 0: no limit, so `after` must end the training.
  std::int64_t rounds = 0;
};
/// Options of downpour.
struct DownpourOptions {
  std::int64_t rounds = 0;  ///< As EasgdOptions::rounds.
};

namespace detail {

/// into = weights[0] into + weights[1] value.
template <class T, class Worker>
void combine(Worker& worker, ArrayView<T, 1> into, ArrayView<const T, 1> value, std::array<double, 2> weights) {
  combine_values(HandleAccess::command_loop(worker), dtype_of<T>, into.data(), value.data(), weights,
                 static_cast<std::size_t>(into.size()));
}

/// x = x - rate (x - c),  c = c + rate (x - c), both from the values before.
template <class T, class Worker>
void elastic_exchange(Worker& worker, Local<T, 1> own, Local<T, 1> center, double rate) {
  const ArrayView<T, 1> before(worker.template scratch<T>(own.size()).data(), own.shape());
  copy_values(HandleAccess::command_loop(worker), before.data(), own.data(), before.span().size_bytes());
  combine<T>(worker, own, {center.data(), center.shape()}, {1 - rate, rate});
  combine<T>(worker, center, {before.data(), before.shape()}, {1 - rate, rate});
}

/// c = c + (x - y),  y = c,  x = c. Here y is the center as the device has seen it last.
template <class T, class Worker>
void downpour_exchange(Worker& worker, Local<T, 1> own, Local<T, 1> fetched, Local<T, 1> center) {
  combine<T>(worker, center, {own.data(), own.shape()}, {1, 1});
  combine<T>(worker, center, {fetched.data(), fetched.shape()}, {1, -1});
  copy_values(HandleAccess::command_loop(worker), fetched.data(), center.data(), center.span().size_bytes());
  copy_values(HandleAccess::command_loop(worker), own.data(), center.data(), center.span().size_bytes());
}

/// Keeps the values of the center in case that its only copy is lost with a worker. Does nothing unless the session
/// replaces lost workers.
template <class T>
class CenterKeeper {
 public:
  CenterKeeper(Session& session, const Value<T, 1>& center) : center_(center) {
    if (replaces_lost_workers(*HandleAccess::core(session))) values_ = center.get();
  }
  /// An exchange has started. Starts to fetch the values after it, which the device sends before it begins another round.
  /// Throws the failure of the exchange before it.
  void note_exchange() {
    if (!values_) return;
    finish();
    fetched_ = center_.get_async();
  }
  /// Waits until the last exchange is over, so that its device can no longer take the center with it. Throws its failure.
  void finish() {
    if (fetched_) values_ = fetched_->get();
    fetched_.reset();
  }
  /// After a loss.
  void restore() noexcept {
    if (!values_) return;
    take_fetched();
    restore_value(HandleAccess::record(center_), values_->data());
  }

 private:
  /// If a device was lost before it had sent the center, the older values stay.
  void take_fetched() noexcept try { finish(); } catch (const std::exception&) {
    fetched_.reset();
  }

  const Value<T, 1>& center_;
  std::optional<Array<T, 1>> values_;
  std::optional<Future<Array<T, 1>>> fetched_;
};

/// Runs rounds on all devices until `after` returns false or the limit is reached. `exchange(lane)` starts an
/// exchange of the device with the center.
template <class T, class Start, class After, class Exchange>
RoundsReport run_rounds(Session& session, std::span<const Device> devices, std::vector<Value<T, 1>>& params,
                        Start& start, After& after, Exchange&& exchange, std::int64_t limit) {
  const std::size_t lanes = devices.size();
  RoundsReport report{std::vector<std::int64_t>(lanes), {}};
  std::int64_t started = 0;
  bool goes_on = true;
  const auto may_start = [&] { return goes_on && (limit == 0 || started < limit); };
  const auto round_of = [&](std::size_t lane) {
    return Round<T>{devices[lane], params[lane], lane, report.rounds[lane]};
  };
  using FutureOfRound = decltype(start(round_of(0)));
  std::vector<FutureOfRound> futures;
  for (std::size_t lane = 0; lane < lanes && may_start(); ++lane, ++started) futures.push_back(start(round_of(lane)));
  std::size_t next = 0;  // each device comes first in turn, so that fast devices do not push aside slow ones
  for (std::size_t running = futures.size(); running != 0;) {
    const auto turned = std::views::iota(std::size_t{0}, futures.size()) |
                        std::views::transform([&](std::size_t i) -> const FutureOfRound& {
                          return futures[(next + i) % futures.size()];
                        });
    const std::size_t lane = (next + session.wait_any(turned)) % futures.size();
    next = lane + 1;
    const Round<T> round = round_of(lane);
    if constexpr (std::is_void_v<decltype(futures[lane].get())>) {
      futures[lane].get();
      exchange(lane);
      goes_on = after(round) && goes_on;
    } else {
      auto result = futures[lane].get();
      exchange(lane);
      goes_on = after(round, std::move(result)) && goes_on;
    }
    ++report.rounds[lane];
    report.arrivals.push_back(lane);
    if (may_start()) {
      futures[lane] = start(round_of(lane));
      ++started;
    } else {
      --running;
    }
  }
  return report;
}

/// Returns `run(keeper)`. If it throws because of a loss, the center stays.
template <class T, class Run>
RoundsReport keep_center(Session& session, const Value<T, 1>& center, Run&& run) {
  CenterKeeper<T> keeper(session, center);
  try {
    RoundsReport report = run(keeper);
    keeper.finish();
    return report;
  } catch (...) {
    keeper.restore();
    throw;
  }
}

/// The parameters of each device, which begin at the center.
template <class T>
std::vector<Value<T, 1>> params_around(Session& session, const Value<T, 1>& center, std::span<const Device> devices,
                                       const std::string& what) {
  const Array<T, 1> values = center.get();
  std::vector<Value<T, 1>> params;
  for (const Device& device : devices) {
    params.push_back(session.value(values.span(), values.shape(), device, what + " on " + device.name()));
    params.back().pin(device);
  }
  return params;
}

}  // namespace detail

template <class T, class Start, class After>
  requires std::same_as<T, float> || std::same_as<T, double>
RoundsReport easgd(Session& session, const Value<T, 1>& center, std::span<const Device> devices, Start&& start,
                   After&& after, const EasgdOptions& options) {
  detail::check_rounds("easgd", devices, options.rounds);
  detail::check_moving_rate(options.moving_rate);
  detail::expect_moves(detail::held(detail::HandleAccess::record(center), "Value"));
  return detail::keep_center(session, center, [&](detail::CenterKeeper<T>& keeper) {
    auto params = detail::params_around(session, center, devices, "easgd");
    const auto function = session.function(&detail::elastic_exchange<T, CpuWorker>,
                                           &detail::elastic_exchange<T, CudaWorker>, "easgd exchange");
    const auto exchange = [&](std::size_t lane) {
      function.on(devices[lane])(params[lane], center, options.moving_rate);
      keeper.note_exchange();
    };
    return detail::run_rounds<T>(session, devices, params, start, after, exchange, options.rounds);
  });
}

template <class T, class Start, class After>
  requires std::same_as<T, float> || std::same_as<T, double>
RoundsReport downpour(Session& session, const Value<T, 1>& center, std::span<const Device> devices, Start&& start,
                      After&& after, const DownpourOptions& options) {
  detail::check_rounds("downpour", devices, options.rounds);
  detail::expect_moves(detail::held(detail::HandleAccess::record(center), "Value"));
  return detail::keep_center(session, center, [&](detail::CenterKeeper<T>& keeper) {
    auto params = detail::params_around(session, center, devices, "downpour");
    auto fetched = detail::params_around(session, center, devices, "downpour's fetched center");
    const auto function = session.function(&detail::downpour_exchange<T, CpuWorker>,
                                           &detail::downpour_exchange<T, CudaWorker>, "downpour exchange");
    const auto exchange = [&](std::size_t lane) {
      function.on(devices[lane])(params[lane], fetched[lane], center);
      keeper.note_exchange();
    };
    return detail::run_rounds<T>(session, devices, params, start, after, exchange, options.rounds);
  });
}

}  // namespace syncrun

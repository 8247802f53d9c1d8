#pragma once

// Offers metrics outside the program: writes them to a file every second, or answers requests over HTTP. A thread of the
// master does this, so calls do not wait for it.

#include <functional>
#include <memory>
#include <string>

#include "master/settings/metrics_target.hpp"

namespace syncrun::detail::master::metrics {

class Exporter {
 public:
  /// Makes the text of the metrics. Called by the exporter's thread until close().
  using Text = std::function<std::string()>;

  Exporter() = default;
  /// Ends like close(), and ignores errors.
  virtual ~Exporter() = default;
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  /// Ends the thread. A file then has the last metrics. Throws Error (system) if it could not be written.
  virtual void close() = 0;
};

/// Opens the file, socket or port, and starts the thread. Throws Error (usage, system) with the name of the option if it
/// cannot be opened or is in use. A file that is no regular file, such as /dev/stderr, gets the last metrics only.
std::unique_ptr<Exporter> open_exporter(const settings::MetricsTarget& target, Exporter::Text text);

}  // namespace syncrun::detail::master::metrics

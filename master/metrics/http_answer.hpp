#pragma once

// The answer to a request for metrics over HTTP. Boost.Beast reads the request. Only this part of it is used, because
// its servers cannot open descriptors that programs do not inherit.

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace syncrun::detail::master::metrics {

/// A longer request is refused.
inline constexpr std::size_t kLongestRequest = 8192;

/// The whole answer to a request, after which the connection ends. Empty if the request is not complete yet. `metrics`
/// makes the text of the metrics, if the request asks for it.
std::optional<std::string> answer_to(std::string_view request, const std::function<std::string()>& metrics);

}  // namespace syncrun::detail::master::metrics

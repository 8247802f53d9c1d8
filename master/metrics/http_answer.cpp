#include "master/metrics/http_answer.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

namespace syncrun::detail::master::metrics {

namespace {

namespace http = boost::beast::http;

constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
constexpr const char* kPlainType = "text/plain; charset=utf-8";

std::string answer(const std::string& status, const char* type, const std::string& body, http::verb method) {
  std::string text = "HTTP/1.1 " + status + "\r\nContent-Type: " + type +
                     "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n";
  return method == http::verb::head ? text : text + body;
}

}  // namespace

std::optional<std::string> answer_to(std::string_view request, const std::function<std::string()>& metrics) {
  http::request_parser<http::empty_body> parser;
  parser.header_limit(kLongestRequest);
  boost::beast::error_code error;
  parser.put(boost::asio::buffer(request.data(), request.size()), error);
  if (error == http::error::need_more && request.size() < kLongestRequest) return std::nullopt;
  if (error || !parser.is_header_done())
    return answer("400 Bad Request", kPlainType, "expected a request of HTTP\n", http::verb::get);
  const http::verb method = parser.get().method();
  if (method != http::verb::get && method != http::verb::head)
    return answer("405 Method Not Allowed\r\nAllow: GET, HEAD", kPlainType, "expected GET\n", method);
  const std::string target(parser.get().target());
  if (const std::string path = target.substr(0, target.find('?')); path != "/metrics" && path != "/")
    return answer("404 Not Found", kPlainType, "the metrics are at /metrics\n", method);
  return answer("200 OK", kMetricsType, metrics(), method);
}

}  // namespace syncrun::detail::master::metrics

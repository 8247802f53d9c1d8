#include "libtorch/weights_index.hpp"

#include <nlohmann/json.hpp>

#include "syncrun/error.hpp"

namespace syncrun::libtorch::detail {

namespace {

/// Text of a file in a message.
std::string shown_name(const std::string& text) {
  constexpr std::size_t kLongest = 120;
  return "'" + text.substr(0, kLongest) + (text.size() > kLongest ? "...'" : "'");
}

}  // namespace

std::map<std::string, std::string> parse_weights_index(std::string_view text, std::string_view name) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorKind::usage, std::string(name) + " is not an index of weights, or is damaged: " + what);
  };
  constexpr const char* kFiles = "weight_map";
  const auto no_exceptions = false;
  const auto json = nlohmann::json::parse(text.begin(), text.end(), nullptr, no_exceptions);
  if (json.is_discarded()) refuse("expected JSON");
  if (!json.is_object() || !json.contains(kFiles) || !json.at(kFiles).is_object())
    refuse(std::string("expected an object with '") + kFiles + "', the file of each tensor");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : json.at(kFiles).items()) {
    if (!file.is_string())
      refuse("expected the name of a file for " + shown_name(tensor) + ", found an element of type " +
             file.type_name());
    files[tensor] = file.get<std::string>();
    if (files[tensor].empty() || files[tensor].find('/') != std::string::npos || files[tensor] == "..")
      refuse("expected a file beside the index for " + shown_name(tensor) + ", found " + shown_name(files[tensor]));
  }
  return files;
}

}  // namespace syncrun::libtorch::detail

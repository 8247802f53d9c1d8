#include "master/process/output_settings.hpp"

#include <array>
#include <charconv>
#include <string>
#include <utility>

#include "common/os/environment.hpp"
#include "common/text/errors.hpp"
#include "common/text/log.hpp"

namespace syncrun::detail::master::process {

namespace {

text::RankList ranks_in(const char* variable, const text::RankList& otherwise) {
  const char* const value = environment::get(variable);
  if (value == nullptr || *value == '\0') return otherwise;
  if (const auto ranks = text::RankList::parse(value)) return *ranks;
  environment::throw_bad_value(variable, value, text::kRankListForm);
}

template <class Number>
bool read_all(std::string_view text, Number& number) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

constexpr int kMostOldFiles = 1000;
constexpr std::uint64_t kLargestLog = std::uint64_t{1} << 50U;

/// The number of bytes of a unit. 0 if the letter is no unit.
std::uint64_t unit_of(char letter) noexcept {
  switch (letter) {
    case 'K': return std::uint64_t{1} << 10U;
    case 'M': return std::uint64_t{1} << 20U;
    case 'G': return std::uint64_t{1} << 30U;
    default: return 0;
  }
}

}  // namespace

std::optional<LogLimit> parse_log_limit(std::string_view text) noexcept {
  LogLimit limit;
  const std::size_t colon = text.find(':');
  std::string_view size = text.substr(0, colon);
  std::uint64_t unit = 1;
  if (!size.empty() && unit_of(size.back()) != 0) {
    unit = unit_of(size.back());
    size.remove_suffix(1);
  }
  if (!read_all(size, limit.bytes) || limit.bytes == 0 || limit.bytes > kLargestLog / unit) return std::nullopt;
  limit.bytes *= unit;
  if (colon == std::string_view::npos) return limit;
  if (!read_all(text.substr(colon + 1), limit.old_files)) return std::nullopt;
  return limit.old_files >= 0 && limit.old_files <= kMostOldFiles ? std::optional(limit) : std::nullopt;
}

OutputSettings output_from_environment() {
  OutputSettings settings;
  settings.has_tags = environment::switch_in(environment::kTag).value_or(true);
  settings.has_times = environment::switch_in(environment::kTimestamps).value_or(false);
  settings.is_json_log = environment::switch_in(text::kJsonLogVariable).value_or(false);
  settings.shown = ranks_in(environment::kOnlyRank, settings.shown);
  settings.logged = ranks_in(environment::kTee, settings.logged);
  settings.only_logged = ranks_in(environment::kRedirect, settings.only_logged);
  if (const char* const value = environment::get(environment::kLogSize); value != nullptr && *value != '\0') {
    const auto limit = parse_log_limit(value);
    if (!limit) environment::throw_bad_value(environment::kLogSize, value, kLogLimitForm);
    settings.log_limit = *limit;
  }
  return settings;
}

void check_output(const OutputSettings& settings, int world_size, bool has_log_folder) {
  struct List {
    const char* option;
    const text::RankList& ranks;
  };
  for (const auto& [option, ranks] : {List{"--only-rank", settings.shown}, List{"--tee", settings.logged},
                                      List{"--redirect", settings.only_logged}}) {
    const auto highest = ranks.highest();
    if (!highest || *highest < world_size) continue;
    text::throw_usage(std::string(option) + ": expected ranks from 0 to " + std::to_string(world_size - 1) +
                      ", as this session has, got " + ranks.text());
  }
  if (has_log_folder) return;
  for (const auto& [option, is_chosen] : {std::pair("--tee", settings.logged != text::RankList::all()),
                                          {"--redirect", settings.only_logged != text::RankList()},
                                          {"--log-size", settings.log_limit.bytes != 0}}) {
    if (is_chosen)
      text::throw_usage(std::string(option) + ": expected a folder for files, got none; add --log-dir DIR");
  }
}

}  // namespace syncrun::detail::master::process

#include "common/text/rank_list.hpp"

#include <algorithm>
#include <charconv>

namespace syncrun::detail::text {

namespace {

std::optional<int> rank_in(std::string_view text, int highest) noexcept {
  int rank = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  return is_number && rank >= 0 && rank < highest ? std::optional(rank) : std::nullopt;
}

}  // namespace

std::optional<RankList> RankList::parse(std::string_view text) {
  if (text == "all") return all();
  Ranges ranges;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, comma - begin);
    const std::size_t dash = part.find('-');
    const auto first = rank_in(part.substr(0, dash), kHighest);
    const auto last = dash == std::string_view::npos ? first : rank_in(part.substr(dash + 1), kHighest);
    if (!first || !last || *last < *first) return std::nullopt;
    ranges.emplace_back(*first, *last);
    begin = comma + 1;
  }
  return RankList(std::move(ranges));
}

bool RankList::has(int rank) const noexcept {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [rank](const auto& range) { return range.first <= rank && rank <= range.second; });
}

std::optional<int> RankList::highest() const noexcept {
  if (ranges_.empty() || is_all()) return std::nullopt;
  return std::max_element(ranges_.begin(), ranges_.end(),
                          [](const auto& one, const auto& other) { return one.second < other.second; })
      ->second;
}

std::string RankList::text() const {
  if (is_all()) return "all";
  std::string text;
  for (const auto& [first, last] : ranges_) {
    if (!text.empty()) text += ',';
    text += std::to_string(first);
    if (last != first) text += '-' + std::to_string(last);
  }
  return text;
}

}  // namespace syncrun::detail::text

#pragma once

// A list of ranks as users write it on the command line: "0,2-5", or "all".

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace syncrun::detail::text {

class RankList {
 public:
  /// No rank.
  RankList() = default;
  static RankList all() { return RankList({{0, kHighest}}); }
  /// Empty if the text is not a list.
  static std::optional<RankList> parse(std::string_view text);

  bool has(int rank) const noexcept;
  bool operator==(const RankList&) const = default;
  /// The highest rank that the list names. Empty for "all" and for no rank.
  std::optional<int> highest() const noexcept;
  /// The list as parse() reads it. Empty for no rank.
  std::string text() const;

 private:
  using Ranges = std::vector<std::pair<int, int>>;  // each with its last rank
  static constexpr int kHighest = 1'000'000;
  explicit RankList(Ranges ranges) : ranges_(std::move(ranges)) {}
  bool is_all() const noexcept { return *this == all(); }

  Ranges ranges_;
};

/// What a list of ranks looks like, for messages.
inline constexpr const char* kRankListForm = "ranks such as 0,2-5, or all";

}  // namespace syncrun::detail::text

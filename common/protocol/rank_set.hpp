#pragma once

// A set of ranks, in ascending order: those that run a command. It is plain memory, so that a command can hold it.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

namespace syncrun::detail::protocol {

inline constexpr int kMaxWorldSize = 1024;

class RankSet {
 public:
  /// The empty set.
  RankSet() = default;
  /// Ranks 0 to `world_size` - 1.
  static RankSet all(int world_size) noexcept {
    RankSet set;
    for (int rank = 0; rank < world_size; ++rank) set.add(rank);
    return set;
  }
  static RankSet only(int rank) noexcept {
    RankSet set;
    set.add(rank);
    return set;
  }

  void add(int rank) noexcept {
    if (has(rank)) return;
    words_[word_of(rank)] |= bit_of(rank);
    ++count_;
    if (words_used_ <= word_of(rank)) words_used_ = static_cast<std::uint32_t>(word_of(rank)) + 1;
  }
  bool has(int rank) const noexcept { return (words_[word_of(rank)] & bit_of(rank)) != 0; }
  int count() const noexcept { return static_cast<int>(count_); }
  bool is_empty() const noexcept { return count_ == 0; }
  /// True if the set has exactly one rank, which then has no peers.
  bool is_single() const noexcept { return count_ == 1; }
  /// The lowest rank. The set must not be empty.
  int first() const noexcept { return *begin(); }
  /// How many ranks of the set are lower than `rank`. For a rank of the set, this is its position in the set.
  int position_of(int rank) const noexcept {
    int lower = std::popcount(words_[word_of(rank)] & (bit_of(rank) - 1));
    for (std::size_t word = 0; word < word_of(rank); ++word) lower += std::popcount(words_[word]);
    return lower;
  }

  /// True if the two sets have a rank in common.
  bool meets(const RankSet& other) const noexcept {
    const std::size_t words = std::min(words_used_, other.words_used_);
    for (std::size_t word = 0; word < words; ++word) {
      if ((words_[word] & other.words_[word]) != 0) return true;
    }
    return false;
  }
  /// True if every rank of the other set is in this one.
  bool includes(const RankSet& other) const noexcept {
    for (std::size_t word = 0; word < other.words_used_; ++word) {
      if ((other.words_[word] & ~words_[word]) != 0) return false;
    }
    return true;
  }

  /// The set as numbers with one bit per rank, up to the number that contains the highest rank.
  std::span<const std::uint64_t> words() const noexcept { return {words_.data(), words_used_}; }

  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = int;
    using difference_type = std::ptrdiff_t;
    using pointer = const int*;
    using reference = int;

    Iterator(const RankSet& set, int rank) noexcept : set_(&set), rank_(set.at_or_after(rank)) {}
    int operator*() const noexcept { return rank_; }
    Iterator& operator++() noexcept {
      rank_ = set_->at_or_after(rank_ + 1);
      return *this;
    }
    Iterator operator++(int) noexcept {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator& other) const noexcept { return rank_ == other.rank_; }

   private:
    const RankSet* set_;
    int rank_;
  };
  Iterator begin() const noexcept { return {*this, 0}; }
  Iterator end() const noexcept { return {*this, kMaxWorldSize}; }
  struct Part {
    Iterator first;
    Iterator last;
    Iterator begin() const noexcept { return first; }
    Iterator end() const noexcept { return last; }
  };
  /// The ranks of the set from `first_rank` on and before `end_rank`.
  Part between(int first_rank, int end_rank) const noexcept { return {{*this, first_rank}, {*this, end_rank}}; }

  friend bool operator==(const RankSet& a, const RankSet& b) noexcept {
    return a.count_ == b.count_ && a.words_used_ == b.words_used_ &&
           std::equal(a.words_.begin(), a.words_.begin() + a.words_used_, b.words_.begin());
  }

 private:
  static constexpr std::size_t kBits = 64;
  static std::size_t word_of(int rank) noexcept { return static_cast<std::size_t>(rank) / kBits; }
  static std::uint64_t bit_of(int rank) noexcept {
    return std::uint64_t{1} << (static_cast<std::size_t>(rank) % kBits);
  }
  /// The lowest rank from `rank` on, or kMaxWorldSize.
  int at_or_after(int rank) const noexcept {
    if (rank >= kMaxWorldSize) return kMaxWorldSize;
    std::size_t word = word_of(rank);
    std::uint64_t bits = words_[word] & ~(bit_of(rank) - 1);
    while (bits == 0) {
      if (++word >= words_used_) return kMaxWorldSize;
      bits = words_[word];
    }
    return static_cast<int>(word * kBits) + std::countr_zero(bits);
  }

  // With up to 64 ranks, readers read only the first 16 bytes. These share a cache line with other fields.
  std::uint32_t count_ = 0;
  std::uint32_t words_used_ = 0;
  std::array<std::uint64_t, kMaxWorldSize / kBits> words_{};
};

}  // namespace syncrun::detail::protocol

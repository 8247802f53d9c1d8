#pragma once

// The states that the explorer has found, in little memory. Each state is cut into parts. Many states have parts in
// common, so each part is stored once, and a state is stored as the numbers of its parts.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace model {

struct Found {
  std::uint32_t number;
  bool is_new;
};

/// Numbers different values, from 0 on.
template <class Value>
class Numbering {
 public:
  std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(values_.size()); }
  const Value& operator[](std::uint32_t number) const noexcept { return values_[number]; }

  Found add(const Value& value) { return add(value, hash_of(value)); }
  Found add(const Value& value, std::uint32_t hash) {
    if (values_.size() * 2 >= table_.size()) grow();
    std::size_t at = hash & (table_.size() - 1);
    for (; table_[at].number != kFree; at = (at + 1) & (table_.size() - 1)) {
      if (table_[at].hash == hash && values_[table_[at].number] == value) return {table_[at].number, false};
    }
    table_[at] = {hash, size()};
    values_.push_back(value);
    return {table_[at].number, true};
  }

  // Before values are added, a caller may ask for the memory that this reads, first of the table and then of the values. So
  // the processor brings it for many values at the same time.
  void prefetch_place(std::uint32_t hash) const noexcept {
    if (!table_.empty()) __builtin_prefetch(&table_[hash & (table_.size() - 1)]);
  }
  void prefetch_value(std::uint32_t hash) const noexcept {
    if (table_.empty()) return;
    const Place& place = table_[hash & (table_.size() - 1)];
    if (place.hash == hash && place.number != kFree) __builtin_prefetch(&values_[place.number]);
  }

  static std::uint32_t hash_of(const Value& value) noexcept {
    static_assert(sizeof(Value) % sizeof(std::uint32_t) == 0);
    std::array<std::uint32_t, sizeof(Value) / sizeof(std::uint32_t)> words;
    std::memcpy(words.data(), &value, sizeof(Value));
    std::uint64_t hash = 0x9e3779b97f4a7c15U;
    for (const std::uint32_t word : words) {
      hash = (hash ^ word) * 0xff51afd7ed558ccdU;
      hash ^= hash >> 32U;
    }
    return static_cast<std::uint32_t>(hash ^ hash >> 29U);
  }

 private:
  static constexpr std::uint32_t kFree = ~std::uint32_t{0};
  /// The hash is stored too, so that most values that differ need not be read. They are rarely in the cache.
  struct Place {
    std::uint32_t hash;
    std::uint32_t number;
  };

  void grow() {
    const std::vector<Place> old = std::exchange(table_, {});
    table_.assign(std::max<std::size_t>(old.size() * 2, 1024), Place{0, kFree});
    for (const Place& place : old) {
      if (place.number == kFree) continue;
      std::size_t at = place.hash & (table_.size() - 1);
      while (table_[at].number != kFree) at = (at + 1) & (table_.size() - 1);
      table_[at] = place;
    }
  }

  std::vector<Value> values_;
  std::vector<Place> table_;  // open addressing, at most half full
};

template <class State, std::size_t kPartBytes>
class StateStore {
 public:
  std::uint32_t size() const noexcept { return states_.size(); }

  State operator[](std::uint32_t number) const noexcept {
    Parts parts;
    for (std::size_t i = 0; i < kParts; ++i) parts[i] = parts_[i][states_[number][i]];
    State state;
    std::memcpy(static_cast<void*>(&state), parts.data(), sizeof(State));
    return state;
  }

  Found add(const State& state) {
    const Parts parts = cut(state);
    Numbers numbers;
    for (std::size_t i = 0; i < kParts; ++i) numbers[i] = parts_[i].add(parts[i]).number;
    return states_.add(numbers);
  }

 private:
  static constexpr std::size_t kParts = (sizeof(State) + kPartBytes - 1) / kPartBytes;
  using Part = std::array<std::uint8_t, kPartBytes>;
  using Parts = std::array<Part, kParts>;
  using Numbers = std::array<std::uint32_t, kParts>;

 public:
  /// A state that has been cut, before it is added.
  struct Prepared {
    Numbers numbers;
    std::uint32_t hash;
  };
  /// Fast if the state has most parts in common with the state that has the number `origin`.
  Prepared prepare(const State& state, std::uint32_t origin) {
    const Parts parts = cut(state);
    Numbers numbers = states_[origin];
    for (std::size_t i = 0; i < kParts; ++i) {
      if (parts_[i][numbers[i]] != parts[i]) numbers[i] = parts_[i].add(parts[i]).number;
    }
    const std::uint32_t hash = states_.hash_of(numbers);
    states_.prefetch_place(hash);
    return {numbers, hash};
  }
  void prefetch(const Prepared& state) const noexcept { states_.prefetch_value(state.hash); }
  Found add(const Prepared& state) { return states_.add(state.numbers, state.hash); }

 private:
  static Parts cut(const State& state) noexcept {
    Parts parts{};
    std::memcpy(parts.data(), &state, sizeof(State));
    return parts;
  }

  std::array<Numbering<Part>, kParts> parts_;
  Numbering<Numbers> states_;
};

}  // namespace model

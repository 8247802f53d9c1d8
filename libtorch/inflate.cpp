#include "libtorch/inflate.hpp"

#include <array>
#include <vector>

namespace syncrun::libtorch::detail {

namespace {

/// Ends the decompression of a damaged record. It never leaves inflate().
struct Damaged {};

constexpr unsigned kLongestCode = 15;
constexpr std::size_t kEndOfBlock = 256;
constexpr std::size_t kFirstLength = 257;
constexpr std::size_t kMostLiterals = 286;
constexpr std::size_t kMostDistances = 30;

/// Reads bits, the lowest bit of each byte first.
class Bits {
 public:
  explicit Bits(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  unsigned take(unsigned count) {
    unsigned value = 0;
    for (unsigned i = 0; i < count; ++i) value |= bit() << i;
    return value;
  }
  unsigned bit() {
    if (at_ >= bytes_.size()) throw Damaged();
    const unsigned value = (std::to_integer<unsigned>(bytes_[at_]) >> used_) & 1U;
    used_ = (used_ + 1) % 8;
    if (used_ == 0) ++at_;
    return value;
  }
  /// The next whole bytes.
  std::span<const std::byte> bytes(std::size_t count) {
    if (used_ != 0) ++at_;
    used_ = 0;
    if (count > bytes_.size() - at_) throw Damaged();
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  unsigned used_ = 0;  // bits of the byte there
};

/// A canonical Huffman code: the symbols in the order of their codes, and how many have each length.
class Code {
 public:
  explicit Code(std::span<const std::uint8_t> lengths) {
    for (const std::uint8_t length : lengths) ++counts_[length];
    counts_[0] = 0;
    int left = 1;  // codes of the present length that are not in use
    std::array<std::size_t, kLongestCode + 2> places{};
    for (unsigned length = 1; length <= kLongestCode; ++length) {
      left = 2 * left - counts_[length];
      if (left < 0) throw Damaged();
      places[length + 1] = places[length] + static_cast<std::size_t>(counts_[length]);
    }
    symbols_.resize(places[kLongestCode + 1]);
    for (std::size_t symbol = 0; symbol < lengths.size(); ++symbol) {
      if (lengths[symbol] != 0) symbols_[places[lengths[symbol]]++] = static_cast<std::uint16_t>(symbol);
    }
  }

  std::size_t next(Bits& bits) const {
    int code = 0;
    int first = 0;  // the first code of this length, and the place of its symbol
    int place = 0;
    for (unsigned length = 1; length <= kLongestCode; ++length) {
      code |= static_cast<int>(bits.bit());
      const int count = counts_[length];
      if (code - first < count) return symbols_[static_cast<std::size_t>(place + code - first)];
      place += count;
      first = (first + count) * 2;
      code *= 2;
    }
    throw Damaged();
  }

 private:
  std::array<int, kLongestCode + 1> counts_{};
  std::vector<std::uint16_t> symbols_;
};

struct Codes {
  Code literals;
  Code distances;
};

Codes fixed_codes() {
  std::array<std::uint8_t, 288> literals{};
  for (std::size_t i = 0; i < literals.size(); ++i)
    literals[i] = static_cast<std::uint8_t>(i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8);
  std::array<std::uint8_t, kMostDistances> distances{};
  distances.fill(5);
  return {Code(literals), Code(distances)};
}

Codes read_codes(Bits& bits) {
  constexpr std::array<std::uint8_t, 19> kOrder{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
  const std::size_t literals = bits.take(5) + 257;
  const std::size_t distances = bits.take(5) + 1;
  const std::size_t given = bits.take(4) + 4;
  if (literals > kMostLiterals || distances > kMostDistances) throw Damaged();
  std::array<std::uint8_t, kOrder.size()> of_lengths{};
  for (std::size_t i = 0; i < given; ++i) of_lengths[kOrder[i]] = static_cast<std::uint8_t>(bits.take(3));
  const Code code(of_lengths);

  std::vector<std::uint8_t> lengths;
  while (lengths.size() < literals + distances) {
    const std::size_t symbol = code.next(bits);
    if (symbol < 16) {
      lengths.push_back(static_cast<std::uint8_t>(symbol));
      continue;
    }
    if (symbol == 16 && lengths.empty()) throw Damaged();
    const std::uint8_t repeated = symbol == 16 ? lengths.back() : std::uint8_t{0};
    const std::size_t times = symbol == 16 ? bits.take(2) + 3 : symbol == 17 ? bits.take(3) + 3 : bits.take(7) + 11;
    lengths.insert(lengths.end(), times, repeated);
  }
  if (lengths.size() > literals + distances || lengths[kEndOfBlock] == 0) throw Damaged();
  const std::span all(lengths);
  return {Code(all.first(literals)), Code(all.subspan(literals))};
}

/// The contents so far.
class Contents {
 public:
  explicit Contents(std::uint64_t size) : size_(size) {}
  void add(char byte) {
    if (text_.size() >= size_) throw Damaged();
    text_.push_back(byte);
  }
  void repeat(std::size_t distance, std::size_t length) {
    if (distance > text_.size()) throw Damaged();
    for (std::size_t i = 0; i < length; ++i) add(text_[text_.size() - distance]);
  }
  std::string take() {
    if (text_.size() != size_) throw Damaged();
    return std::move(text_);
  }

 private:
  std::uint64_t size_;
  std::string text_;
};

void copy_stored(Bits& bits, Contents& contents) {
  const auto header = bits.bytes(4);
  const auto byte = [&](std::size_t i) { return std::to_integer<unsigned>(header[i]); };
  const unsigned length = byte(0) | byte(1) << 8U;
  if ((length ^ 0xffffU) != (byte(2) | byte(3) << 8U)) throw Damaged();
  for (const std::byte each : bits.bytes(length)) contents.add(static_cast<char>(each));
}

void copy_coded(Bits& bits, const Codes& codes, Contents& contents) {
  constexpr std::array<std::uint16_t, 29> kLengths{3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                                   31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
  constexpr std::array<std::uint8_t, 29> kLengthBits{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                     2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
  constexpr std::array<std::uint16_t, kMostDistances> kDistances{
      1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
      193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
  for (;;) {
    const std::size_t symbol = codes.literals.next(bits);
    if (symbol == kEndOfBlock) return;
    if (symbol < kEndOfBlock) {
      contents.add(static_cast<char>(symbol));
      continue;
    }
    const std::size_t which = symbol - kFirstLength;
    if (which >= kLengths.size()) throw Damaged();
    const std::size_t length = kLengths[which] + bits.take(kLengthBits[which]);
    const std::size_t far = codes.distances.next(bits);
    if (far >= kMostDistances) throw Damaged();
    const unsigned more = far < 2 ? 0 : static_cast<unsigned>(far / 2 - 1);
    contents.repeat(kDistances[far] + bits.take(more), length);
  }
}

}  // namespace

std::optional<std::string> inflate(std::span<const std::byte> compressed, std::uint64_t size) {
  try {
    Bits bits(compressed);
    Contents contents(size);
    bool is_last = false;
    while (!is_last) {
      is_last = bits.bit() != 0;
      switch (bits.take(2)) {
        case 0: copy_stored(bits, contents); break;
        case 1: copy_coded(bits, fixed_codes(), contents); break;
        case 2: copy_coded(bits, read_codes(bits), contents); break;
        default: throw Damaged();
      }
    }
    return contents.take();
  } catch (const Damaged&) {
    return std::nullopt;
  }
}

}  // namespace syncrun::libtorch::detail

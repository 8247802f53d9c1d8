#include "master/nodes/bundle.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "syncrun/error.hpp"

namespace syncrun::detail::master::nodes {

namespace {

constexpr Bundle::Piece kNoPiece = std::numeric_limits<Bundle::Piece>::max();

[[noreturn]] void throw_unreadable(const char* why) {
  throw Error(ErrorKind::system, std::string("a relayed message cannot be read: ") + why);
}

}  // namespace

Bundle::Bundle(MessageReader& message) : command_(message.get<std::uint64_t>()), of_each_(message.get<std::uint8_t>()) {
  if (of_each_ == 0 || of_each_ > kMostOfEach) throw_unreadable("the rows of pieces are too long");
  const auto sizes = message.get_list<std::uint64_t>();
  receivers_ = message.get_list<int>();
  rows_.resize(receivers_.size() * of_each_);
  message.get_all(std::span(rows_));
  for (const std::uint64_t size : sizes) pieces_.push_back(message.get_bytes(size));
  const auto is_unknown = [this](Piece piece) { return piece >= pieces_.size(); };
  if (std::ranges::any_of(rows_, is_unknown)) throw_unreadable("it refers to pieces that it does not have");
}

Bundle::Piece Bundle::add_piece(std::vector<std::byte> bytes) {
  if (pieces_.size() >= kNoPiece) throw_unreadable("it has too many pieces");
  pieces_.emplace_back(owned_.emplace_back(std::move(bytes)));
  return static_cast<Piece>(pieces_.size() - 1);
}

Bundle::Piece Bundle::add_piece_unless(std::optional<Piece> like, std::span<const std::byte> bytes) {
  if (like && std::equal(bytes.begin(), bytes.end(), pieces_[*like].begin(), pieces_[*like].end())) return *like;
  return add_piece({bytes.begin(), bytes.end()});
}

void Bundle::add(int node, std::span<const Piece> pieces) {
  receivers_.push_back(node);
  rows_.insert(rows_.end(), pieces.begin(), pieces.end());
}

std::optional<std::vector<std::byte>> Bundle::message_of(int node) const {
  const auto found = std::ranges::lower_bound(receivers_, node);
  if (found == receivers_.end() || *found != node) return std::nullopt;
  std::vector<std::byte> message;
  for (const Piece piece : pieces_of(static_cast<std::size_t>(found - receivers_.begin())))
    message.insert(message.end(), pieces_[piece].begin(), pieces_[piece].end());
  return message;
}

std::optional<std::vector<std::byte>> Bundle::part_of(const NodeTree::Branch& branch) const {
  const auto begin = std::ranges::lower_bound(receivers_, branch.child);
  const auto end = std::lower_bound(begin, receivers_.end(), branch.end);
  if (begin == end) return std::nullopt;
  std::vector<Piece> numbers(pieces_.size(), kNoPiece);  // by piece: its number in the message
  std::vector<std::uint64_t> sizes;
  std::vector<std::span<const std::byte>> used;
  std::vector<Piece> rows;
  std::size_t bytes = 0;
  for (auto node = begin; node != end; ++node) {
    for (const Piece piece : pieces_of(static_cast<std::size_t>(node - receivers_.begin()))) {
      if (numbers[piece] == kNoPiece) {
        numbers[piece] = static_cast<Piece>(used.size());
        used.push_back(pieces_[piece]);
        sizes.push_back(pieces_[piece].size());
        bytes += pieces_[piece].size();
      }
      rows.push_back(numbers[piece]);
    }
  }
  MessageWriter message(MessageKind::bundle);
  message.reserve(bytes + sizes.size() * sizeof(std::uint64_t) + rows.size() * (sizeof(Piece) + sizeof(int)) + 64);
  message.put(command_, static_cast<std::uint8_t>(of_each_));
  message.put_list(std::span<const std::uint64_t>(sizes));
  message.put_list(
      std::span<const int>(receivers_)
          .subspan(static_cast<std::size_t>(begin - receivers_.begin()), static_cast<std::size_t>(end - begin)));
  message.put_all(std::span<const Piece>(rows));
  for (const auto piece : used) message.put_bytes(piece);
  return message.take();
}

}  // namespace syncrun::detail::master::nodes

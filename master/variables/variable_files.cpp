#include "master/variables/variable_files.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/arrays/extents.hpp"
#include "common/arrays/npy.hpp"
#include "common/protocol/variable_entry.hpp"
#include "common/text/errors.hpp"
#include "master/records/variables.hpp"
#include "master/variables/transfers.hpp"

namespace syncrun::detail::master::variables {

std::vector<RowsPiece> pieces_of(const arrays::RowRange& rows, std::span<const RowsFile> files, std::size_t row_bytes) {
  std::vector<RowsPiece> pieces;
  std::int64_t first = 0;  // the first row of the file
  for (std::size_t file = 0; file < files.size(); ++file) {
    const std::int64_t begin = std::max(rows.begin, first);
    const std::int64_t end = std::min(rows.end, first + files[file].rows);
    const auto bytes_in = [row_bytes](std::int64_t count) { return static_cast<std::uint64_t>(count) * row_bytes; };
    if (begin < end && row_bytes != 0)
      pieces.push_back({file, bytes_in(begin - first), bytes_in(begin - rows.begin), bytes_in(end - begin)});
    first += files[file].rows;
  }
  return pieces;
}

std::vector<RowsPiece> cut(std::span<const RowsPiece> pieces, std::uint64_t begin, std::uint64_t end) {
  std::vector<RowsPiece> parts;
  for (const RowsPiece& piece : pieces) {
    const std::uint64_t from = std::max(begin, piece.copy_at);
    const std::uint64_t to = std::min(end, piece.copy_at + piece.bytes);
    if (from < to) parts.push_back({piece.file, piece.at + (from - piece.copy_at), from, to - from});
  }
  return parts;
}

namespace {

/// What one command lets the ranks do.
struct Order {
  protocol::FilesAction action{};
  const char* what = "";  // for messages
  const RowsOnDisk& rows;
  std::uint64_t reading = 0;
  std::span<const Extents> extents{};                // of the copies, by rank
  std::span<const std::vector<RowsPiece>> pieces{};  // by rank; empty: the ranks need none
  std::span<const std::string> fronts{};             // by file, to write
  std::uint64_t hashes = 0;                          // see FilesPayload
};

/// Collects what a command needs in the heap: structures, and the texts that they refer to. Everything is in one extent.
class OrderBlock {
 public:
  explicit OrderBlock(const Order& order) : order_(order) {
    for (const auto& pieces : order.pieces) count_ += pieces.size();
    texts_at_ = sizeof(protocol::FilesSlot) * order.extents.size() + sizeof(protocol::FilePiece) * count_;
  }
  std::size_t bytes() const noexcept {
    std::size_t bytes = texts_at_ + order_.rows.folder.path.native().size() + order_.rows.folder.id.size();
    for (const RowsFile& file : order_.rows.files) bytes += file.name.size();
    for (const std::string& front : order_.fronts) bytes += front.size();
    return bytes;
  }

  /// Writes the block to memory of bytes() at this offset, and completes the payload.
  void put(const os::Segment& segment, std::uint64_t offset, protocol::FilesPayload& payload) {
    next_text_ = offset + texts_at_;
    payload.folder = put_text(segment, order_.rows.folder.path.native());
    payload.id = put_text(segment, order_.rows.folder.id);
    std::vector<protocol::TextPlace> names, fronts;
    for (const RowsFile& file : order_.rows.files) names.push_back(put_text(segment, file.name));
    for (const std::string& front : order_.fronts) fronts.push_back(put_text(segment, front));
    payload.slots = offset;
    auto* slot = segment.at<protocol::FilesSlot>(offset);
    std::uint64_t piece_at = offset + sizeof(protocol::FilesSlot) * order_.extents.size();
    for (std::size_t rank = 0; rank < order_.extents.size(); ++rank) {
      const auto pieces = order_.pieces.empty() ? std::span<const RowsPiece>() : std::span(order_.pieces[rank]);
      *slot++ = {piece_at, pieces.size(), order_.extents[rank]};
      for (const RowsPiece& piece : pieces) {
        const protocol::TextPlace front = fronts.empty() ? protocol::TextPlace() : fronts[piece.file];
        *segment.at<protocol::FilePiece>(piece_at) = {names[piece.file], front, piece.at, piece.copy_at, piece.bytes};
        piece_at += sizeof(protocol::FilePiece);
      }
    }
  }

 private:
  protocol::TextPlace put_text(const os::Segment& segment, std::string_view text) {
    const protocol::TextPlace place{next_text_, text.size()};
    if (!text.empty()) std::memcpy(segment.at(place.offset), text.data(), text.size());
    next_text_ += text.size();
    return place;
  }

  const Order& order_;
  std::size_t count_ = 0;
  std::uint64_t texts_at_ = 0;  // after the beginning of the block
  std::uint64_t next_text_ = 0;
};

/// A part of a save is of the same copies as the parts before.
void check_same_copies(const Order& order, const records::Settled& settled) {
  const records::VariableRecord& variable = *order.rows.variable;
  records::check_not_lost(variable, settled, protocol::RankSet::all(static_cast<int>(order.extents.size())),
                          order.what);
  if (std::ranges::equal(variable.copies(settled).extents, order.extents)) return;
  text::throw_usage(
      std::string(order.what) + " of '" + variable.name +
      "': the shapes of its copies have changed while they were written, because a call failed or a worker was "
      "replaced: save again");
}

/// Completes a payload with what it refers to.
void put_block(calls::SystemCommands& commands, const Order& order, protocol::FilesPayload& payload,
               calls::InFlight& in_flight) {
  OrderBlock block(order);
  const std::uint64_t offset = commands.memory().allocate(block.bytes(), "a command with files", in_flight.temporaries);
  block.put(commands.segment(), offset, payload);
}

void run_files(calls::SystemCommands& commands, const records::Room& room, const Order& order) {
  records::VariableRecord& variable = *order.rows.variable;
  commands.run_system(room, order.what, variable.name, [&](protocol::CommandHead& command, calls::InFlight& in_flight) {
    auto& payload = command.begin<protocol::FilesPayload>();
    payload.action = order.action;
    payload.variable = variable.entry;
    payload.reading = order.reading;
    payload.hashes = order.hashes;
    if (order.action == protocol::FilesAction::drop) return;  // it needs no memory, which may be short
    commands.follow(variable.writes);
    if (order.action == protocol::FilesAction::take) in_flight.writes.push_back(variable.name);
    put_block(commands, order, payload, in_flight);
  });
}

/// Whether the ranks have written what rank 0 has.
bool hashes_agree(const calls::SystemCommands& commands, const Order& order) {
  const auto* const written = commands.segment().at<const std::uint64_t>(order.hashes);
  for (std::size_t rank = 0; rank < order.pieces.size(); ++rank) {
    if (!order.pieces[rank].empty() && written[rank] != written[order.pieces.size() + rank]) return false;
  }
  return true;
}

/// Runs the order in as many commands as it takes if each moves at most `most_bytes` on each rank. Returns false, and runs
/// no more, if the hashes of a command do not agree.
bool run_in_parts(calls::SystemCommands& commands, Order order, std::span<const std::vector<RowsPiece>> all,
                  std::size_t most_bytes) {
  const auto first_of = [](const auto& pieces) { return pieces.empty() ? 0 : pieces.front().copy_at; };
  std::uint64_t most = 0;
  for (const auto& pieces : all) {
    if (!pieces.empty()) most = std::max(most, pieces.back().copy_at + pieces.back().bytes - first_of(pieces));
  }
  std::uint64_t count = order.hashes == 0 ? most_bytes : std::min(most_bytes, kFirstComparedBytes);
  for (std::uint64_t done = 0; done < most; done += std::exchange(count, most_bytes)) {
    std::vector<std::vector<RowsPiece>> parts;
    protocol::RankSet ranks;
    if (order.hashes != 0) ranks.add(0);
    for (const auto& pieces : all) {
      const std::uint64_t begin = first_of(pieces) + done;
      parts.push_back(cut(pieces, begin, begin + count));
      if (!parts.back().empty()) ranks.add(static_cast<int>(parts.size()) - 1);
    }
    order.pieces = parts;
    const records::Room room = commands.settle(ranks);
    if (order.action == protocol::FilesAction::write) check_same_copies(order, room);
    run_files(commands, room, order);
    if (order.hashes != 0 && !hashes_agree(commands, order)) return false;
  }
  return true;
}

/// What comes before the elements of each file. `extents` are those of the whole array.
std::vector<std::string> fronts_of(const RowsOnDisk& rows, Extents extents) {
  std::vector<std::string> fronts;
  for (const RowsFile& file : rows.files) {
    extents[0] = file.rows;
    fronts.push_back(arrays::npy_header(rows.variable->dtype, {extents.data(), rows.variable->dimensions}));
  }
  return fronts;
}

/// Returns the places of each rank's rows in the files. `begins` has the first row of each rank.
std::vector<std::vector<RowsPiece>> pieces_by_rank(const RowsOnDisk& rows, std::span<const Extents> extents,
                                                   std::span<const std::int64_t> begins) {
  std::vector<std::vector<RowsPiece>> pieces;
  for (std::size_t rank = 0; rank < extents.size(); ++rank) {
    const Extents& own = extents[rank];
    const std::size_t row_bytes = arrays::row_bytes_of(rows.variable->dtype, {own.data(), rows.variable->dimensions});
    pieces.push_back(pieces_of({begins[rank], begins[rank] + own[0]}, rows.files, row_bytes));
  }
  return pieces;
}

}  // namespace

void write_rows(calls::SystemCommands& commands, const RowsOnDisk& rows, std::size_t most_bytes) {
  const records::VariableRecord& variable = *rows.variable;
  const std::vector<Extents> copies = variable.copies(commands.settled()).extents;  // each part checks them again
  const Extents extents = records::extents_together(variable, commands.settled(), "save");
  std::int64_t in_files = 0;
  for (const RowsFile& file : rows.files) in_files += file.rows;
  if (in_files != extents[0]) {
    text::throw_usage("save of '" + variable.name + "': its copies have " + std::to_string(extents[0]) +
                      " rows, and had " + std::to_string(in_files) +
                      " when the save began, because a call failed or a worker was replaced: save again");
  }
  const std::vector<std::string> fronts = fronts_of(rows, extents);
  const Order order{
      .action = protocol::FilesAction::write, .what = "save", .rows = rows, .extents = copies, .fronts = fronts};
  std::vector<std::int64_t> begins{0};
  for (const Extents& own : copies) begins.push_back(begins.back() + own[0]);
  run_in_parts(commands, order, pieces_by_rank(rows, copies, begins), most_bytes);
}

bool write_shares(calls::SystemCommands& commands, const RowsOnDisk& rows, std::size_t most_bytes) {
  const records::VariableRecord& variable = *rows.variable;
  const std::vector<Extents> copies = variable.copies(commands.settled()).extents;  // each part checks them again
  const Extents extents = records::equal_extents(variable, commands.settled(), "save");
  const std::size_t row_bytes = arrays::row_bytes_of(variable.dtype, {extents.data(), variable.dimensions});
  std::vector<std::vector<RowsPiece>> pieces;
  for (int rank = 0; rank < commands.world_size(); ++rank) {
    const arrays::RowRange share = arrays::share_of(extents[0], commands.world_size(), rank);
    pieces.push_back(pieces_of(share, rows.files, row_bytes));
    for (RowsPiece& piece : pieces.back()) piece.copy_at += static_cast<std::uint64_t>(share.begin) * row_bytes;
  }
  const calls::HeapLoan hashes(commands, 2 * copies.size() * sizeof(std::uint64_t), "hashes of what is saved");
  const std::vector<std::string> fronts = fronts_of(rows, extents);
  const Order order{.action = protocol::FilesAction::write,
                    .what = "save",
                    .rows = rows,
                    .extents = copies,
                    .fronts = fronts,
                    .hashes = hashes.offset()};
  return run_in_parts(commands, order, pieces, most_bytes);
}

bool is_seen_by_all(calls::SystemCommands& commands, const arrays::SharedFolder& folder,
                    std::span<const protocol::NodePlace> nodes) try {
  protocol::RankSet ranks;
  for (const protocol::NodePlace& node : nodes.subspan(1)) ranks.add(node.first_rank);
  const RowsOnDisk nothing{nullptr, folder, {}};
  const Order order{.action = protocol::FilesAction::see, .what = "save", .rows = nothing};
  commands.run_system(commands.settle(ranks), order.what, folder.path.string(),
                      [&](protocol::CommandHead& command, calls::InFlight& in_flight) {
                        auto& payload = command.begin<protocol::FilesPayload>();
                        payload.action = order.action;
                        put_block(commands, order, payload, in_flight);
                      });
  return true;
} catch (const Error& error) {
  if (error.kind() != ErrorKind::usage) throw;
  return false;
}

RowsRead::RowsRead(calls::SystemCommands& commands, RowsOnDisk rows, const Division& division, std::uint64_t reading,
                   std::size_t most_bytes)
    : commands_(commands),
      rows_(std::move(rows)),
      placement_(division.placement),
      reading_(reading),
      replacements_(commands.replacements()) {
  const auto ranks = static_cast<std::size_t>(commands.world_size());
  extents_.assign(ranks, division.extents);
  std::vector<std::int64_t> begins(ranks + 1);
  if (placement_ == Placement::scattered) {
    division.weights.divide(division.extents[0], commands.all_ranks(), begins);
    for (std::size_t rank = 0; rank < ranks; ++rank) extents_[rank][0] = begins[rank + 1] - begins[rank];
  }
  try {
    const Order order{
        .action = protocol::FilesAction::read, .what = "load", .rows = rows_, .reading = reading_, .extents = extents_};
    run_in_parts(commands_, order, pieces_by_rank(rows_, extents_, begins), most_bytes);
  } catch (...) {
    drop();
    throw;
  }
}

RowsRead::~RowsRead() {
  if (!is_over_) drop();
}

/// If the session is over, nobody has the rows any more.
void RowsRead::drop() noexcept try {
  is_over_ = true;
  if (!commands_.is_open()) return;
  run_files(
      commands_, commands_.settle(commands_.all_ranks()),
      {.action = protocol::FilesAction::drop, .what = "load", .rows = rows_, .reading = reading_, .extents = extents_});
} catch (const std::exception&) {
  // The session ends, and with it the workers and the rows.
}

void RowsRead::take() {
  records::VariableRecord& variable = *rows_.variable;
  std::vector<TransferPart> parts;
  for (const Extents& own : extents_) parts.push_back({.extents = own});
  const std::vector<Transfer> transfers{{&variable, std::move(parts)}};
  const void* const record = &variable;
  const Order order{
      .action = protocol::FilesAction::take, .what = "load", .rows = rows_, .reading = reading_, .extents = extents_};
  const Leaves leaves = placement_ == Placement::replicated ? Leaves::equal_copies : Leaves::other_copies;
  commands_.when_settled(commands_.all_ranks(), {&record, 1}, [&](const records::Room& room) {
    // A new worker has none of the rows, or only those of the parts that were read since.
    if (commands_.replacements() != replacements_) {
      throw Error(ErrorKind::system, "load of '" + variable.name +
                                         "': a worker was lost and replaced after it had read its rows: load the "
                                         "checkpoint again");
    }
    change_copies(commands_, room, transfers, leaves, [&] { run_files(commands_, room, order); });
  });
  is_over_ = true;
}

}  // namespace syncrun::detail::master::variables

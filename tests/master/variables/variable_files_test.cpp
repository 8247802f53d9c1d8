// Rows of variables in files: which bytes of which file are those of a rank, and what the ranks are told.

#include "master/variables/variable_files.hpp"

#include <gmock/gmock.h>

#include <optional>
#include <span>

#include "tests/master/calls/played_commands.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::variables;
using testing::ElementsAre;
using testing::IsEmpty;

std::vector<RowsFile> files_of(const std::vector<std::int64_t>& rows) {
  std::vector<RowsFile> files;
  for (const std::int64_t count : rows) files.push_back({"x@" + std::to_string(files.size()), count});
  return files;
}

TEST(RowsInFiles, AreEachReadOnceWhateverTheNumberOfRanks) {
  const auto files = files_of({7, 1, 12, 3});
  for (std::int64_t ranks = 1; ranks < 30; ++ranks) {
    std::vector<int> reads(23 * 4);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const arrays::RowRange share = arrays::share_of(23, ranks, rank);
      std::uint64_t next = 0;
      for (const RowsPiece& piece : pieces_of(share, files, 4)) {
        EXPECT_EQ(piece.copy_at, next);
        next += piece.bytes;
        std::uint64_t first = 0;
        for (std::size_t file = 0; file < piece.file; ++file) first += 4 * static_cast<std::uint64_t>(files[file].rows);
        EXPECT_EQ(first + piece.at, 4 * static_cast<std::uint64_t>(share.begin) + piece.copy_at);
        EXPECT_LE(piece.at + piece.bytes, 4 * static_cast<std::uint64_t>(files[piece.file].rows));
        for (std::uint64_t byte = 0; byte < piece.bytes; ++byte) ++reads[first + piece.at + byte];
      }
      EXPECT_EQ(next, 4 * static_cast<std::uint64_t>(share.count()));
    }
    EXPECT_THAT(reads, testing::Each(1)) << ranks << " ranks";
  }
  EXPECT_THAT(pieces_of({0, 23}, files, 0), IsEmpty()) << "rows without elements";
}

TEST(RowsInFiles, AreCutIntoPartsOfACommand) {
  const auto pieces = pieces_of({4, 10}, files_of({5, 3, 4}), 8);
  EXPECT_THAT(cut(pieces, 0, 20), ElementsAre(RowsPiece{0, 32, 0, 8}, RowsPiece{1, 0, 8, 12}));
  EXPECT_THAT(cut(pieces, 20, 40), ElementsAre(RowsPiece{1, 12, 20, 12}, RowsPiece{2, 0, 32, 8}));
  EXPECT_THAT(cut(pieces, 40, 60), ElementsAre(RowsPiece{2, 8, 40, 8}));
  EXPECT_THAT(cut(pieces, 60, 80), IsEmpty());
}

/// Three ranks with copies of 2, 0 and 3 rows of two floats.
class RowsOfRanks : public testing::Test {
 protected:
  RowsOfRanks() {
    variable->copies.change().extents = {Extents{2, 2}, Extents{0, 2}, Extents{3, 2}};
    session.commands.on_command = [this](const protocol::Command& command) { record(command); };
  }

  /// "rank 0: 16 bytes at 4 of x@0 from 8 of its copy".
  void record(const protocol::Command& command) {
    const auto& payload = command.as<protocol::FilesPayload>();
    actions.push_back(payload.action);
    if (payload.action == fails_at) throw Error(ErrorKind::system, "the disk is full");
    if (payload.action == protocol::FilesAction::drop) return;  // it needs only the number of what was read
    EXPECT_EQ(text(payload.folder), "/shared/run");
    EXPECT_EQ(text(payload.id), "0f8e");
    const os::Segment& segment = session.pool.segment();
    for (const int rank : command.ranks) {
      const protocol::FilesSlot& slot = segment.at<const protocol::FilesSlot>(payload.slots)[rank];
      for (const protocol::FilePiece& piece :
           std::span(segment.at<const protocol::FilePiece>(slot.pieces), slot.pieces_count)) {
        pieces.push_back("rank " + std::to_string(rank) + ": " + std::to_string(piece.bytes) + " bytes at " +
                         std::to_string(piece.at) + " of " + text(piece.name) + " from " +
                         std::to_string(piece.copy_at));
      }
    }
  }
  std::string text(const protocol::TextPlace& place) {
    return {session.pool.segment().at<const char>(place.offset), place.bytes};
  }
  RowsOnDisk on_disk(const std::vector<std::int64_t>& rows) {
    return {variable, {"/shared/run", "0f8e"}, files_of(rows)};
  }

  static RowsRead::Division scattered(std::int64_t rows) { return {Extents{rows, 2}, Placement::scattered, {}}; }

  PlayedSession session{{{}, {}, {}}};
  std::shared_ptr<master::records::VariableRecord> variable = session.variable("rows", 2);
  std::optional<protocol::FilesAction> fails_at;
  std::vector<protocol::FilesAction> actions;
  std::vector<std::string> pieces;
};

TEST_F(RowsOfRanks, AreWrittenInParts) {
  write_rows(session.commands, on_disk({2, 3}), 10);
  EXPECT_THAT(pieces, ElementsAre("rank 0: 10 bytes at 0 of x@0 from 0", "rank 2: 10 bytes at 0 of x@1 from 0",
                                  "rank 0: 6 bytes at 10 of x@0 from 10", "rank 2: 10 bytes at 10 of x@1 from 10",
                                  "rank 2: 4 bytes at 20 of x@1 from 20"));
  EXPECT_EQ(actions.size(), 3U);
}

TEST_F(RowsOfRanks, AreSharesOfEqualCopiesUntilOneDiffers) {
  variable->copies.change().extents = {Extents{7, 2}, Extents{7, 2}, Extents{7, 2}};
  std::optional<int> wrong_rank;
  session.commands.on_command = [&](const protocol::Command& command) {
    record(command);
    EXPECT_TRUE(command.ranks.has(0)) << "it compares";
    auto* const hashes = session.pool.segment().at<std::uint64_t>(command.as<protocol::FilesPayload>().hashes);
    for (int rank = 0; rank < 3; ++rank) hashes[rank] = hashes[3 + rank] = 5;
    if (wrong_rank) hashes[*wrong_rank] = 6;
  };
  EXPECT_TRUE(write_shares(session.commands, on_disk({3, 4}), 20));
  EXPECT_THAT(pieces, ElementsAre("rank 0: 20 bytes at 0 of x@0 from 0", "rank 1: 16 bytes at 0 of x@1 from 24",
                                  "rank 2: 16 bytes at 16 of x@1 from 40", "rank 0: 4 bytes at 20 of x@0 from 20"));
  actions.clear();
  wrong_rank = 2;
  EXPECT_FALSE(write_shares(session.commands, on_disk({3, 4}), 20));
  EXPECT_EQ(actions.size(), 1U);

  constexpr std::int64_t kRows = 5 << 19;  // 20 MiB
  variable->copies.change().extents = {Extents{3 * kRows, 2}, Extents{3 * kRows, 2}, Extents{3 * kRows, 2}};
  pieces.clear();
  EXPECT_FALSE(write_shares(session.commands, on_disk({kRows, 2 * kRows})));
  EXPECT_THAT(pieces, ElementsAre("rank 0: 16777216 bytes at 0 of x@0 from 0",
                                  "rank 1: 16777216 bytes at 0 of x@1 from 20971520",
                                  "rank 2: 16777216 bytes at 20971520 of x@1 from 41943040"))
      << "little is written in vain";
}

TEST_F(RowsOfRanks, AreDividedByTheWeightsOfTheRanks) {
  const std::vector<double> weights{1, 0, 4};
  const RowsRead read(session.commands, on_disk({1, 4}),
                      {Extents{5, 2}, Placement::scattered, master::calls::RowWeights(weights, 3)}, 7);
  EXPECT_THAT(pieces, ElementsAre("rank 0: 8 bytes at 0 of x@0 from 0", "rank 2: 32 bytes at 0 of x@1 from 0"));
}

TEST_F(RowsOfRanks, AreForgottenIfTheyAreNotTaken) {
  { const RowsRead read(session.commands, on_disk({1, 4}), scattered(5), 7); }
  EXPECT_THAT(actions, ElementsAre(protocol::FilesAction::read, protocol::FilesAction::drop));
  actions.clear();
  fails_at = protocol::FilesAction::read;
  EXPECT_THROW(RowsRead(session.commands, on_disk({1, 4}), scattered(5), 8), Error);
  EXPECT_THAT(actions, ElementsAre(protocol::FilesAction::read, protocol::FilesAction::drop));
  actions.clear();
  fails_at = protocol::FilesAction::take;
  EXPECT_THROW(RowsRead(session.commands, on_disk({1, 4}), scattered(5), 9).take(), Error);
  EXPECT_THAT(actions,
              ElementsAre(protocol::FilesAction::read, protocol::FilesAction::take, protocol::FilesAction::drop));
  actions.clear();
  session.commands.is_session_open = false;
  fails_at = protocol::FilesAction::read;
  EXPECT_THROW(RowsRead(session.commands, on_disk({1, 4}), scattered(5), 10), Error);
  EXPECT_THAT(actions, ElementsAre(protocol::FilesAction::read)) << "nobody is left to forget them";
}

}  // namespace
}  // namespace syncrun::test

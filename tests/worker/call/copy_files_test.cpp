// Rows of variables that the ranks write to files and read from there. Ranks 0 and 2 have a device whose memory is not host
// memory.

#include "worker/call/copy_files.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "common/arrays/npy.hpp"
#include "common/arrays/shared_folder.hpp"
#include "common/protocol/variable_entry.hpp"
#include "syncrun/error.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/worker/comm/mixed_ranks.hpp"

namespace syncrun::detail {
namespace {

using Values = std::vector<float>;

constexpr std::uint64_t kCopiedEntryAt = std::uint64_t{2} << 20U;
constexpr std::uint64_t kSlotsAt = kCopiedEntryAt + 64 * 1024;
constexpr std::uint64_t kPiecesAt = kSlotsAt + 64 * 1024;
constexpr std::uint64_t kTextsAt = kPiecesAt + 64 * 1024;

/// Three ranks that hold the parts of one array. Ranks 0 and 1 write to the file "a", and rank 2 writes to "b".
class CopiesInFiles : public MixedRanks {
 protected:
  CopiesInFiles() {
    entry_ = segment_.at<VariableEntry>(kCopiedEntryAt);
    entry_->dtype = DType::float32;
    entry_->dimensions = 1;
    for (MixedRank& rank : mixed_) {
      copies_.emplace_back(rank.attachment(), rank.device(), rank.comms(), [] {});
      files_.emplace_back(rank.attachment(), rank.device(), rank.arena(), copies_.back());
    }
    payload_.variable = kCopiedEntryAt;
    payload_.slots = kSlotsAt;
    payload_.folder = text(folder_.path().native());
    payload_.id = text("0f8e");
    write_folder_id(open_folder(folder_.path()), "0f8e");
  }
  ~CopiesInFiles() override {
    for (VariableCopies& copies : copies_) copies.free({.first = kCopiedEntryAt});
  }

  TextPlace text(std::string_view text) {
    const TextPlace place{next_text_, text.size()};
    std::memcpy(segment_.at(place.offset), text.data(), text.size());
    next_text_ += text.size();
    return place;
  }
  static Values counted(std::size_t count, float first) {
    Values values(count);
    std::iota(values.begin(), values.end(), first);
    return values;
  }
  void set_copies(const std::vector<Values>& values) {
    for (MixedRank& rank : mixed_) {
      const Values& own = values[static_cast<std::size_t>(rank.rank())];
      entry_->copies()[rank.rank()] = {.place = rank.device().place_of(rank.put(own)),
                                       .exported = 0,
                                       .capacity_bytes = own.size() * sizeof(float),
                                       .extents = {static_cast<std::int64_t>(own.size())},
                                       .spare = 0};
    }
  }
  /// The rank moves all its elements from or to these elements of the file.
  void order(int rank, std::string_view file, std::size_t at, std::size_t count, std::int64_t in_file = 0) {
    const std::string front = npy_header(DType::float32, std::vector<std::int64_t>{in_file});
    const std::uint64_t piece = kPiecesAt + sizeof(FilePiece) * static_cast<std::uint64_t>(rank);
    *segment_.at<FilePiece>(piece) = {text(file), text(front), at * sizeof(float), 0, count * sizeof(float)};
    segment_.at<FilesSlot>(kSlotsAt)[rank] = {piece, count == 0 ? 0U : 1U, {static_cast<std::int64_t>(count)}};
  }
  /// What each rank throws.
  std::vector<std::string> run(FilesAction action) {
    payload_.action = action;
    return on_all([&](MixedRank& rank) { files_[static_cast<std::size_t>(rank.rank())].run(payload_); });
  }
  std::vector<std::string> run_on(int rank, FilesAction action) {
    payload_.action = action;
    return on_all([&](MixedRank& one) {
      if (one.rank() == rank) files_[static_cast<std::size_t>(rank)].run(payload_);
    });
  }
  Values copy_of(int rank) {
    const VariableCopy& copy = entry_->copies()[rank];
    return at(rank).get(static_cast<const float*>(at(rank).device().at(copy.place)),
                        static_cast<std::size_t>(copy.extents[0]));
  }
  Values in_file(const std::string& name) {
    const ArrayFile file(open_folder(folder_.path()), name);
    Values values(file.bytes() / sizeof(float));
    file.read(values.data());
    return values;
  }

  TemporaryFolder folder_;
  VariableEntry* entry_ = nullptr;
  std::deque<VariableCopies> copies_;
  std::deque<CopyFiles> files_;
  FilesPayload payload_;

 private:
  std::uint64_t next_text_ = kTextsAt;
};

/// More than what goes through host memory at once.
constexpr std::size_t kManyElements = (std::size_t{9} << 20U) / sizeof(float);

TEST_F(CopiesInFiles, AreWrittenByEachRankAndReadByAnother) {
  set_copies({counted(kManyElements, 0), counted(1000, 7), counted(30, 5)});
  order(0, "a", 0, kManyElements, kManyElements + 1000);
  order(1, "a", kManyElements, 1000, kManyElements + 1000);
  order(2, "b", 0, 30, 30);
  EXPECT_EQ(run(FilesAction::write), all(""));
  Values in_a = counted(kManyElements, 0);
  const Values after = counted(1000, 7);
  in_a.insert(in_a.end(), after.begin(), after.end());
  EXPECT_EQ(in_file("a"), in_a);
  EXPECT_EQ(in_file("b"), counted(30, 5));

  order(0, "b", 10, 20);
  order(1, "a", 5, 2000);
  order(2, "a", 0, kManyElements);
  EXPECT_EQ(run(FilesAction::read), all(""));
  EXPECT_EQ(copy_of(1), counted(1000, 7)) << "nothing changes before the rows are taken";
  EXPECT_EQ(run(FilesAction::take), all(""));
  EXPECT_EQ(copy_of(0), counted(20, 15));
  EXPECT_EQ(copy_of(1), counted(2000, 5));
  EXPECT_EQ(copy_of(2), counted(kManyElements, 0));
}

TEST_F(CopiesInFiles, StayAsTheyAreIfTheRowsAreDropped) {
  set_copies({counted(3, 0), counted(4, 0), counted(5, 0)});
  order(0, "a", 0, 3, 7);
  order(1, "a", 3, 4, 7);
  order(2, "b", 0, 5, 5);
  EXPECT_EQ(run(FilesAction::write), all(""));
  for (int rank = 0; rank < kWorldSize; ++rank) order(rank, "b", 0, 5);
  EXPECT_EQ(run(FilesAction::read), all(""));
  EXPECT_EQ(run(FilesAction::drop), all(""));
  const auto not_read = [](int rank) {
    return "rank " + std::to_string(rank) +
           " has read 0 of the 20 bytes of its copy, perhaps because its worker was replaced: load the checkpoint "
           "again";
  };
  EXPECT_EQ(run(FilesAction::take), (std::vector<std::string>{not_read(0), not_read(1), not_read(2)}));
  EXPECT_EQ(copy_of(1), counted(4, 0));
}

TEST_F(CopiesInFiles, GetNoElementsIfThereAreNoRowsForThem) {
  set_copies({counted(3, 0), counted(4, 0), counted(5, 0)});
  for (int rank = 0; rank < kWorldSize; ++rank) order(rank, "a", 0, 0);
  EXPECT_EQ(run(FilesAction::take), all(""));
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(copy_of(rank), Values());
}

TEST_F(CopiesInFiles, AreRefusedIfTheFolderIsAnotherOneOrAFileIsTooShort) {
  set_copies({counted(3, 0), counted(4, 0), counted(5, 0)});
  order(1, "b", 0, 4, 4);
  EXPECT_EQ(run_on(1, FilesAction::write)[1], "");
  order(1, "b", 0, 5);
  EXPECT_NE(run_on(1, FilesAction::read)[1].find("b: expected 20 bytes of elements or more, found 16"),
            std::string::npos);
  EXPECT_EQ(run_on(1, FilesAction::drop)[1], "");
  order(1, "c", 0, 4);
  EXPECT_NE(run_on(1, FilesAction::read)[1].find("c: No such file"), std::string::npos);
  payload_.id = text("0f8f");
  for (const FilesAction action : {FilesAction::write, FilesAction::read}) {
    EXPECT_NE(run_on(1, action)[1].find("this node cannot see"), std::string::npos);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "c"));
}

}  // namespace
}  // namespace syncrun::detail

#pragma once

// A Value on three ranks, without workers: the test plays them.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "launcher/values/value_copies.hpp"
#include "tests/launcher/calls/played_commands.hpp"

namespace syncrun::test {

class CopiesOfAValue : public testing::Test {
 protected:
  explicit CopiesOfAValue(const std::vector<detail::DeviceId>& devices = {{}, {}, {}}) : session(devices) {
    session.commands.leaves_in_flight = true;
    x->name = "x";
    x->dtype = DType::float32;
    x->dimensions = 1;
    x->copies.change() = detail::CopyFacts(3);
    x->value = std::make_unique<detail::ValueState>(3);
    x->value->extents = detail::Extents{4};
    x->entry = session.heap.allocate(detail::VariableEntry::bytes(3), detail::SharedHeap::Contents::zero, "a value");
    auto& entry = *session.pool.segment().at<detail::VariableEntry>(x->entry);
    entry.dtype = DType::float32;
    entry.dimensions = 1;
  }

  /// A call on one rank that uses its copy, which must be there.
  std::uint64_t call(int rank, detail::Access access) {
    session.calls.next(detail::RankSet::only(rank), Milliseconds(0));
    detail::depend_on_copy(session.commands, *x, rank, access);
    const std::uint64_t id = session.calls.publish();
    detail::note_use(session.commands, *x, rank, access, id);
    detail::mark_spare_copies(session.commands, *x);
    return id;
  }
  std::uint64_t bring(int rank) {
    EXPECT_FALSE(detail::claim_copy(session.commands, *x, rank));
    warning = detail::bring_copy(session.commands, x, rank);
    return session.calls.last_published();
  }
  /// What a command waits for, in words.
  std::vector<std::string> awaited(std::uint64_t id) {
    std::vector<std::string> words;
    for (const detail::EarlierCommand& earlier : session.calls.in_flight(id).dependencies) {
      std::string text = std::to_string(earlier.id);
      if (earlier.rank >= 0) text += " on " + std::to_string(earlier.rank);
      words.push_back(text + (earlier.must_succeed() ? "" : ", a reader"));
    }
    return words;
  }
  std::vector<int> valid() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      if (x->value->copies[static_cast<std::size_t>(rank)].is_valid) ranks.push_back(rank);
    }
    return ranks;
  }
  detail::VariableEntry& entry() { return *session.pool.segment().at<detail::VariableEntry>(x->entry); }
  detail::VariableCopy& copy(int rank) { return entry().copies()[rank]; }
  /// What the worker of the rank does when it runs out of memory in a later command.
  bool drop(int rank) { return detail::drop_copy(entry(), 3, rank, session.calls.last_published() + 1); }
  /// The value is on rank 0, and nothing is in flight.
  void make_on_rank_0() {
    const std::uint64_t id = call(0, detail::Access::writes);
    session.commands.finish(id);
  }

  PlayedSession session;
  std::shared_ptr<detail::VariableRecord> x = std::make_shared<detail::VariableRecord>();
  std::string warning;
};

/// Rank 0 has a GPU, and the others have CPU devices.
class CopiesOnBothKinds : public CopiesOfAValue {
 protected:
  CopiesOnBothKinds()
      : CopiesOfAValue({{detail::DeviceKind::cuda, 0}, {detail::DeviceKind::cpu, 0}, {detail::DeviceKind::cpu, 1}}) {}
};

}  // namespace syncrun::test

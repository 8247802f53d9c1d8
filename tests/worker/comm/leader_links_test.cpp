// The frames between the leaders of nodes, on a pair of sockets, and what ends a wait for them.

#include "worker/comm/leader_links.hpp"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <string>
#include <vector>

#include "tests/worker/comm/ranks_on_nodes.hpp"

namespace syncrun::detail {
namespace {

using worker::comm::FrameHeader;
using worker::comm::LeaderLink;
using Bytes = std::vector<std::byte>;

/// Two leaders, ranks 0 and 1, that are connected.
class LeaderLinkPair : public testing::Test {
 protected:
  LeaderLinkPair() {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) throw std::runtime_error("no sockets");
    links.emplace_back(1, "rank 1 (b)", os::FileDescriptor(ends[0]));
    links.emplace_back(0, "rank 0 (a)", os::FileDescriptor(ends[1]));
  }
  static Bytes bytes_of(std::size_t count, int first) {
    Bytes bytes(count);
    for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(first));
    return bytes;
  }
  /// Both exchange blocks. The other end sends those in `sent` and gets those in `got`.
  void begin(std::size_t end, std::uint64_t command, std::uint64_t step, const Bytes& sent, Bytes& got) {
    links[end].begin({command, step, sent.size()}, sent.data(), got.data(), got.size());
  }
  void move_both() {
    while (links[0].move() || links[1].move()) {
    }
  }

  std::vector<LeaderLink> links;
};

TEST_F(LeaderLinkPair, ExchangesBlocksOfAnySize) {
  std::uint64_t step = 0;
  for (const std::size_t size : {0U, 1U, 8U, 4071U, 4072U, 4073U, 100'000U, 3'000'000U}) {
    const Bytes a = bytes_of(size, 1);
    const Bytes b = bytes_of(size / 2, 2);
    Bytes at_a(b.size() + 5);
    Bytes at_b(a.size() + 5);
    begin(0, 9, step, a, at_a);
    begin(1, 9, step++, b, at_b);
    move_both();
    ASSERT_TRUE(links[0].is_done() && links[1].is_done()) << size;
    at_a.resize(b.size());
    at_b.resize(a.size());
    EXPECT_TRUE(at_a == b && at_b == a) << size;
  }
}

/// One end is ahead by one exchange: it has what it waited for.
TEST_F(LeaderLinkPair, LeavesTheNextFrameUntilItIsAwaited) {
  const Bytes first = bytes_of(10, 1);
  const Bytes second = bytes_of(20, 2);
  Bytes room(20);
  begin(1, 9, 0, first, room);
  links[1].move();
  Bytes got(20);
  begin(0, 9, 0, first, got);
  move_both();
  ASSERT_TRUE(links[1].is_done());
  begin(1, 9, 1, second, room);
  links[1].move();
  links[0].move();
  EXPECT_TRUE(std::equal(first.begin(), first.end(), got.begin()));
  begin(0, 9, 1, second, got);
  move_both();
  EXPECT_EQ(got, second);
}

TEST_F(LeaderLinkPair, DropsWhatIsOfAnAbandonedCommand) {
  const Bytes large = bytes_of(5'000'000, 1);  // more than the sockets hold
  const Bytes small = bytes_of(30, 2);
  Bytes lost(large.size(), std::byte{0});
  Bytes got(30);
  Bytes at_a(30);
  begin(0, 9, 0, large, at_a);
  links[0].move();
  begin(1, 9, 0, small, lost);
  links[1].move();  // gets a part of the large block
  ASSERT_FALSE(links[0].has_sent());
  const Bytes before = lost;
  begin(0, 12, 0, small, at_a);
  begin(1, 12, 0, small, got);
  move_both();
  EXPECT_TRUE(links[0].is_done() && links[1].is_done());
  EXPECT_TRUE(got == small && at_a == small);
  EXPECT_TRUE(lost == before) << "nothing is written to the memory of the abandoned exchange any more";
}

TEST_F(LeaderLinkPair, KnowsThatTheOtherEndIsInALaterCommand) {
  const Bytes block = bytes_of(8, 1);
  Bytes room(8);
  begin(0, 12, 0, block, room);
  links[0].move();
  begin(1, 9, 3, block, room);
  links[1].move();
  EXPECT_TRUE(links[1].is_ahead() && !links[1].has_received());
  begin(1, 12, 0, block, room);
  move_both();
  EXPECT_TRUE(links[1].is_done() && links[0].is_done());
}

TEST_F(LeaderLinkPair, RefusesABlockThatIsTooLarge) {
  const Bytes block = bytes_of(9, 1);
  Bytes room(8);
  begin(0, 9, 0, block, room);
  links[0].move();
  begin(1, 9, 0, block, room);
  EXPECT_THROW(links[1].move(), Error);
}

TEST_F(LeaderLinkPair, NotesTheEndOfTheConnection) {
  const Bytes block = bytes_of(9, 1);
  Bytes room(9);
  begin(1, 9, 0, block, room);
  links.erase(links.begin());
  links[0].move();
  EXPECT_NE(links[0].broken(), "");
  EXPECT_FALSE(links[0].move());
}

// ---- all links ------------------------------------------------------------------------------------------------------

TEST_F(LeaderLinkPair, SaysThatTheProgramHasClosedADescriptorAndLeavesItsFilesAlone) {
  const int fd = links[0].fd();
  std::vector<LeaderLink> own;
  own.push_back(std::move(links[0]));
  worker::comm::LeaderLinks all("rank 0 (a)", std::move(own), std::chrono::hours(1));
  all.begin(protocol::RankSet::all(2), 0);
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const os::FileDescriptor other(ends[1]);
  ::dup2(ends[0], fd);  // closes the connection, as close(2) in the program, and then gives its number to another file
  ::close(ends[0]);
  Bytes room(64);
  const std::array<protocol::NodeBlock, 2> blocks{{{}, {0, 8, 32, 8}}};
  try {
    all.begin_exchange(9, 0, blocks, room.data());
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("the program has closed file descriptors that Syncrun uses (the "
                                                 "connection between rank 0 (a) and rank 1 (b))"));
  }
  EXPECT_EQ(::recv(other.get(), room.data(), room.size(), MSG_DONTWAIT), -1) << "nothing was sent to the other file";
  ::close(fd);
}

// ---- with the carriers of messages ----------------------------------------------------------------------------------

TEST(LeaderLinks, HaveTheFailureOfAnotherNodeEndAWait) {
  RanksOnNodes nodes({1, 1, 1});
  nodes.link();
  const auto thrown = nodes.run([](RankOnNode& rank) {
    std::int64_t value = 1;
    rank.comm.all_reduce_value(&value, DType::int64, Reduction::sum, {});
    if (rank.attachment.rank == 2) throw std::runtime_error("rank 2 fails");
    rank.comm.all_reduce_value(&value, DType::int64, Reduction::sum, {});
  });
  const std::string abandoned = worker::process::Abandoned().what();
  EXPECT_EQ(thrown, (std::vector<std::string>{abandoned, abandoned, "rank 2 fails"}));
  EXPECT_EQ(nodes.run([](RankOnNode& rank) { rank.comm.barrier(); }), nodes.nothing_thrown()) << "later commands work";
}

TEST(LeaderLinks, SayThatARankOfAnotherNodeHasLeft) {
  RanksOnNodes nodes({1, 1});
  nodes.link();
  const auto thrown = nodes.run([](RankOnNode& rank) {
    rank.comm.barrier();
    if (rank.attachment.rank == 0) rank.comm.barrier();
  });
  EXPECT_EQ(thrown, (std::vector<std::string>{
                        "ranks disagree in a collective: rank 1 has left the call, and rank 0 is still in one", ""}));
  EXPECT_EQ(nodes.run([](RankOnNode& rank) { rank.comm.barrier(); }), nodes.nothing_thrown());
}

/// Rank 0 asks its carrier to watch both others. Then the block of rank 1 comes, which the carrier does not hear of, and rank 1
/// leaves after this exchange, because its body catches the error. Or rank 1 only comes once rank 0 has its error.
TEST(LeaderLinks, SayThatOneOfTwoMissingRanksHasLeft) {
  RanksOnNodes nodes({1, 1, 1});
  nodes.link();
  const auto& asked = nodes.control_of(0).worker(0).exchange.asked;
  const std::string words = "ranks disagree in a collective: rank 2 has left the call, and rank ";
  for (const bool comes_after_the_error : {false, true}) {
    const std::uint64_t before = asked.load();
    std::atomic<int> errors = 0;
    std::vector<std::string> caught(3);
    EXPECT_EQ(nodes.run([&](RankOnNode& rank) {
      const int number = rank.attachment.rank;
      while (number == 1 && (comes_after_the_error ? errors.load() == 0 : asked.load() == before))
        std::this_thread::yield();
      try {
        if (number != 2) rank.comm.barrier();
      } catch (const Error& error) {
        caught[static_cast<std::size_t>(number)] = error.what();
        ++errors;
      }
    }),
              nodes.nothing_thrown());
    EXPECT_EQ(caught, (std::vector<std::string>{words + "0 is still in one", words + "1 is still in one", ""}));
    EXPECT_EQ(nodes.run([](RankOnNode& rank) { rank.comm.barrier(); }), nodes.nothing_thrown());
  }
}

/// The silence of RanksOnNodes::link is 2 s. Nothing else says that rank 1 does not come.
TEST(LeaderLinks, NameBothEndsOfABrokenConnection) {
  RanksOnNodes nodes({1, 1});
  nodes.link();
  const std::uint64_t id = 100;
  nodes.begin(id, nodes.all());
  nodes.at(1).comm.drop_links();
  const auto thrown = nodes.run(id, protocol::RankSet::only(0), [](RankOnNode& rank) { rank.comm.barrier(); });
  EXPECT_THAT(thrown.front(),
              testing::MatchesRegex("the connection between rank 0 \\(.*\\) and rank 1 \\(.*\\) is broken: .*"));
  nodes.finish(id, 1);
}

}  // namespace
}  // namespace syncrun::detail

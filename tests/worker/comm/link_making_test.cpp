// How the leaders of nodes connect, over the loopback interface: whom they take, and whom they refuse.

#include "worker/comm/link_making.hpp"

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/comm/ranks_as_threads.hpp"

namespace syncrun::detail {
namespace {

using worker::comm::LinkMaker;
using worker::comm::LinkOffer;
constexpr std::chrono::milliseconds kLong{20'000};
constexpr std::chrono::milliseconds kShort{50};

/// Each maker connects in a thread of its own. Returns what each of them says.
std::vector<std::string> connect(std::vector<LinkMaker>& makers, std::vector<std::vector<LinkOffer>> offers,
                                 std::chrono::milliseconds limit) {
  std::vector<std::string> problems(makers.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < makers.size(); ++i)
    threads.emplace_back([&, i] { problems[i] = makers[i].connect(offers[i], limit, kNothing); });
  threads.clear();
  return problems;
}

std::vector<LinkMaker> makers_for(const std::vector<int>& ranks) {
  std::vector<LinkMaker> makers;
  for (const int rank : ranks) makers.emplace_back(rank, "lo");
  return makers;
}

std::vector<LinkOffer> offers_of(const std::vector<LinkMaker>& makers) {
  std::vector<LinkOffer> offers;
  for (const LinkMaker& maker : makers) offers.push_back(maker.offer());
  return offers;
}

/// Somebody who calls a leader and says these bytes. Returns the first bytes of the answer: none if the leader has closed the
/// connection.
std::string call_as_stranger(const LinkOffer& offer, const std::string& words) {
  const os::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  place.sin_port = offer.port;
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&place), sizeof(place)) != 0) return "cannot connect";
  static_cast<void>(::send(socket.get(), words.data(), words.size(), MSG_NOSIGNAL));
  std::array<char, 64> answer{};
  const auto count = ::recv(socket.get(), answer.data(), answer.size(), 0);
  return count <= 0 ? "" : std::string(answer.data(), static_cast<std::size_t>(count));
}

TEST(LinkMaker, ConnectsEachLeaderToAllOthers) {
  auto makers = makers_for({0, 2, 5});
  const auto offers = offers_of(makers);
  EXPECT_THAT(connect(makers, {offers, offers, offers}, kLong), testing::Each(""));
  for (LinkMaker& maker : makers) {
    std::vector<int> ranks{maker.offer().rank};
    for (const auto& link : maker.take_links()) {
      ranks.push_back(link.rank());
      EXPECT_EQ(::fcntl(link.fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    }
    EXPECT_THAT(ranks, testing::UnorderedElementsAre(0, 2, 5));
  }
}

TEST(LinkMaker, RefusesACallerWithoutTheToken) {
  auto makers = makers_for({0, 1});
  const auto offers = offers_of(makers);
  std::string answer = "none yet";
  std::jthread stranger([&] { answer = call_as_stranger(offers[0], std::string(32, 'x')); });
  std::jthread silent([&] { call_as_stranger(offers[0], ""); });
  std::string problem;
  std::jthread leader([&] { problem = makers[0].connect(offers, kLong, kNothing); });
  stranger.join();
  EXPECT_EQ(answer, "") << "the leader closes the connection";
  EXPECT_EQ(makers[1].connect(offers, kLong, kNothing), "");
  leader.join();
  EXPECT_EQ(problem, "");
  makers.clear();  // ends the connection of the silent one
}

TEST(LinkMaker, RefusesALeaderThatDoesNotHaveTheToken) {
  auto makers = makers_for({0, 1});
  const auto offers = offers_of(makers);
  auto wrong = offers;
  wrong[0].token.fill(std::byte{7});  // what rank 1 believes to be the token of rank 0
  std::string problem;
  std::jthread leader([&] { problem = makers[0].connect(offers, kLong, kNothing); });
  EXPECT_THAT(makers[1].connect(wrong, kLong, kNothing),
              testing::HasSubstr("cannot connect to rank 0 (" + std::string(offers[0].host.data()) + ")"));
  EXPECT_EQ(makers[1].connect(offers, kLong, kNothing), "") << "with the right token";
  leader.join();
  EXPECT_EQ(problem, "");
  makers = makers_for({0, 1});
  const auto others = offers_of(makers);
  wrong = others;
  wrong[1].token.fill(std::byte{7});  // rank 0 answers with another token than rank 1 has offered
  EXPECT_THAT(connect(makers, {wrong, others}, kLong)[1], testing::HasSubstr("does not have the token"));
}

TEST(LinkMaker, SaysWhyItCannotConnect) {
  auto makers = makers_for({0, 1});
  auto offers = offers_of(makers);
  auto closed = offers;
  closed[0].port = htons(1);
  EXPECT_THAT(makers[1].connect(closed, kLong, kNothing), testing::HasSubstr("Connection refused"));
  EXPECT_THAT(makers[0].connect(offers, kShort, kNothing), testing::HasSubstr("within 50 ms"));
  LinkMaker without(2, "no_such_interface");
  offers.push_back(without.offer());
  for (LinkMaker* const maker : {&without, &makers[0]}) {
    EXPECT_THAT(maker->connect(offers, kLong, kNothing),
                testing::MatchesRegex("rank 2 \\(.*\\) has no IPv4 address at the interface no_such_interface"));
  }
}

TEST(LinkMaker, DoesNotCallAnAddressThatItsOwnHostHasToo) {
  auto makers = makers_for({0, 1});
  auto offers = offers_of(makers);
  offers[0].host = {'n', '1'};
  EXPECT_THAT(makers[1].connect(offers, kLong, kNothing),
              testing::EndsWith("cannot connect to rank 0 (n1): both have the same addresses"));
}

}  // namespace
}  // namespace syncrun::detail

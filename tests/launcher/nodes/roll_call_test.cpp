// The master's check of what the other nodes are, also if the program tries again after a failure.

#include "launcher/nodes/roll_call.hpp"

#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "launcher/nodes/start_messages.hpp"
#include "tests/launcher/nodes/borrowed_transport.hpp"
#include "tests/launcher/nodes/fake_transport.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr Milliseconds kLong{5000};
constexpr Milliseconds kShort{30};

/// A master and two agents that only say what they are.
class RollCalls : public testing::Test {
 protected:
  static constexpr NodeGroup::Limits kLimits{.silence = Milliseconds(60'000), .beat = Milliseconds(60'000)};

  RollCalls() {
    for (int node = 0; node < 3; ++node) network.at(node).open();
    group.emplace(std::make_unique<BorrowedTransport>(network.at(0)), kLimits);
    roll_call.emplace(*group);
  }
  NodeIdentity identity_of(int node) {
    NodeIdentity identity = own_identity(group->transport_name());
    identity.host = "n" + std::to_string(node);
    identity.machine += std::to_string(node);
    return identity;
  }
  void say_hello(int node, const NodeIdentity& identity) {
    MessageWriter message(MessageKind::hello);
    put_identity(message, identity);
    network.at(node).send(0, message.take());
  }
  std::string failure(Milliseconds limit) {
    try {
      roll_call->require(limit);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  FakeNetwork network{3};
  std::optional<NodeGroup> group;
  std::optional<RollCall> roll_call;
};

TEST_F(RollCalls, GiveTheNodesTheirNames) {
  for (int node = 1; node < 3; ++node) say_hello(node, identity_of(node));
  EXPECT_EQ(failure(kLong), "");
  EXPECT_THAT(group->names(), ElementsAre(testing::_, "n1", "n2"));
  EXPECT_EQ(failure(kLong), "") << "the agents do not say it again";
}

TEST_F(RollCalls, RefuseAnotherBuildAlsoWhenTheProgramTriesAgain) {
  NodeIdentity other = identity_of(1);
  other.build_id.assign({7});
  other.build = "build id 07";
  say_hello(1, other);
  say_hello(2, identity_of(2));
  const std::string first = failure(kLong);
  EXPECT_THAT(first, HasSubstr("node 1 (n1) has another build of the program"));
  EXPECT_EQ(failure(kLong), first);
}

TEST_F(RollCalls, RefuseAMissingNodeAlsoWhenItComesLater) {
  say_hello(1, identity_of(1));
  const std::string first = failure(kShort);
  EXPECT_THAT(first, HasSubstr("no word from node 2 within 30 ms"));
  say_hello(2, identity_of(2));
  EXPECT_EQ(failure(kLong), first);
}

}  // namespace
}  // namespace syncrun::test

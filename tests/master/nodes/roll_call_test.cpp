// The master's check of what the other nodes are, also if the program tries again after a failure.

#include "master/nodes/roll_call.hpp"

#include <gmock/gmock.h>

#include <string>

#include "master/nodes/start_messages.hpp"
#include "tests/common/error_text.hpp"
#include "tests/master/nodes/groups.hpp"

namespace syncrun::test {
namespace {

using namespace detail;
using namespace detail::master::nodes;
using testing::HasSubstr;

constexpr Milliseconds kLong{5000};
constexpr Milliseconds kShort{30};

/// A master and two agents that only say what they are.
class RollCalls : public Groups {
 protected:
  RollCalls() : Groups(3) {}
  NodeIdentity identity_of(int node) {
    NodeIdentity identity = own_identity(group.transport_name());
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
    return error_text([&] { roll_call.require(limit); });
  }

  NodeGroup& group = join(0);
  RollCall roll_call{group};
};

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

TEST_F(RollCalls, RefuseAnotherBuildOfTheLibrary) {
  NodeIdentity other = identity_of(2);
  other.library_id.assign({7});
  other.library = "build id 07";
  say_hello(1, identity_of(1));
  say_hello(2, other);
  EXPECT_THAT(failure(kLong), HasSubstr("node 2 (n2) has another build of libsyncrun.so: expected "));
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

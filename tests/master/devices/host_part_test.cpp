#include "master/devices/host_part.hpp"

#include <gmock/gmock.h>

#include "tests/common/error_text.hpp"

namespace syncrun::detail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(DevicesOfHosts, AListWithoutHostsIsForEveryHost) {
  EXPECT_EQ(master::devices::part_of_host("--devices", "cpu0,left=cpu1", "n1"), "cpu0,left=cpu1");
}

TEST(DevicesOfHosts, AHostGetsItsEntriesWithoutTheHost) {
  const char* const list = "n1:cpu0,left=n2:cuda1,cpu7,right=n1:cpu3";
  EXPECT_EQ(master::devices::part_of_host("--devices", list, "n1"), "cpu0,cpu7,right=cpu3");
  EXPECT_EQ(master::devices::part_of_host("--devices", list, "n2"), "left=cuda1,cpu7");
}

TEST(DevicesOfHosts, AHostWithoutEntriesIsRefused) {
  const auto part = [] { master::devices::part_of_host("--devices", "n1:cpu0,n2:cpu0", "n3"); };
  EXPECT_THAT(test::error_text(part, ErrorKind::usage),
              HasSubstr("--devices: expected a device of this machine, 'n3', in 'n1:cpu0,n2:cpu0'"));
}

TEST(DevicesOfHosts, HostsAreFoundOnce) {
  EXPECT_THAT(master::devices::hosts_in("n2:cpu0,x=n1:cpu0,n2:cpu1,cpu4"), ElementsAre("n2", "n1"));
  EXPECT_THAT(master::devices::hosts_in("cpu0"), testing::IsEmpty());
}

}  // namespace
}  // namespace syncrun::detail

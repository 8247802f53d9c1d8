#include "common/protocol/function_address.hpp"

#include <gtest/gtest.h>

#include "common/code/symbols.hpp"
#include "common/text/errors.hpp"
#include "tests/common/error_text.hpp"

int a_function_with_a_name(int value) { return value; }

namespace {

using namespace syncrun::detail;

template <class Function>
const void* address_of(Function* function) {
  return reinterpret_cast<const void*>(function);
}

TEST(FunctionName, IsWhatAUserWouldSay) {
  EXPECT_EQ(code::short_function_name("Mlp::step(float) const"), "Mlp::step");
  EXPECT_EQ(code::short_function_name("(anonymous namespace)::nothing()"), "nothing");
  EXPECT_EQ(code::short_function_name("syncrun::Output<(syncrun::Reduction)1, int, 0ul> typed<int>(int)"),
            "typed<int>");
  EXPECT_EQ(code::short_function_name("program(syncrun::Session&)::{lambda(int)#2}::_FUN(int)"), "lambda in program");
  EXPECT_EQ(code::short_function_name("program(syncrun::Session&)::$_1::__invoke(int)"), "lambda in program");
}

TEST(Image, RefusesWhatLiesInNoImage) {
  const int on_the_stack = 0;
  EXPECT_THROW(static_cast<void>(protocol::locate(&on_the_stack)), syncrun::Error);
}

TEST(Image, RefusesAnImageThatIsNotHere) {
  auto place = protocol::locate(address_of(a_function_with_a_name));
  place.build_id[0] = static_cast<std::uint8_t>(place.build_id[0] ^ 0xffU);
  text::put_text(place.path, "/nowhere");
  const std::string text = syncrun::test::error_text([&] { static_cast<void>(protocol::resolve(place)); });
  EXPECT_NE(text.find("/nowhere"), std::string::npos) << text;
}

}  // namespace

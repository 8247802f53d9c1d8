#include "common/protocol/image.hpp"

#include <gnu/libc-version.h>
#include <gtest/gtest.h>

#include "common/code/symbols.hpp"
#include "common/text/errors.hpp"

int a_function_with_a_name(int value) { return value; }

namespace {

using namespace syncrun::detail;

template <class Function>
const void* address_of(Function* function) {
  return reinterpret_cast<const void*>(function);
}

int a_static_function(int value) { return value + 1; }

TEST(FunctionName, ComesFromTheSymbols) {
  EXPECT_EQ(function_name_at(address_of(a_function_with_a_name)), "a_function_with_a_name");
  EXPECT_EQ(function_name_at(address_of(a_static_function)), "a_static_function");
  EXPECT_EQ(function_name_at(address_of(::gnu_get_libc_version)), "gnu_get_libc_version");
  int on_the_stack = 0;
  EXPECT_EQ(function_name_at(&on_the_stack), "");
}

TEST(FunctionName, IsWhatAUserWouldSay) {
  EXPECT_EQ(short_function_name("Mlp::step(float) const"), "Mlp::step");
  EXPECT_EQ(short_function_name("(anonymous namespace)::nothing()"), "nothing");
  EXPECT_EQ(short_function_name("syncrun::Output<(syncrun::Reduction)1, int, 0ul> typed<int>(int)"), "typed<int>");
  EXPECT_EQ(short_function_name("program(syncrun::Session&)::{lambda(int)#2}::_FUN(int)"), "lambda in program");
  EXPECT_EQ(short_function_name("program(syncrun::Session&)::$_1::__invoke(int)"), "lambda in program");
}

TEST(Image, RefusesWhatLiesInNoImage) {
  const int on_the_stack = 0;
  EXPECT_THROW(static_cast<void>(locate(&on_the_stack)), syncrun::Error);
}

TEST(Image, RefusesAnImageThatIsNotHere) {
  auto place = locate(address_of(a_function_with_a_name));
  place.build_id[0] = static_cast<std::uint8_t>(place.build_id[0] ^ 0xffU);
  put_text(place.path, "/nowhere");
  try {
    static_cast<void>(resolve(place));
    FAIL();
  } catch (const syncrun::Error& error) {
    EXPECT_NE(std::string(error.what()).find("/nowhere"), std::string::npos) << error.what();
  }
}

}  // namespace

// The failure that a worker reports for an exception. It depends on the type of the exception, and on whether the
// library or user code threw it.

#include "worker/serve/failure.hpp"

#include <gtest/gtest.h>

#include <exception>
#include <stdexcept>

#include "worker/comm/interruption.hpp"

namespace syncrun::detail {
namespace {

template <class Exception>
CaughtFailure failure_of(const Exception& exception, ThrownThrough through) {
  try {
    throw exception;
  } catch (...) {
    return current_failure(through);
  }
}

void expect_failure(const CaughtFailure& failure, ErrorKind kind, int native_code, const std::string& text) {
  EXPECT_EQ(failure.kind, kind);
  EXPECT_EQ(failure.native_code, native_code);
  EXPECT_EQ(failure.text, text);
  EXPECT_EQ(failure.origin, FailureOf::this_rank);
}

TEST(Failure, KeepsTheKindAndTheCodeOfAnError) {
  for (const auto through : {ThrownThrough::library, ThrownThrough::user_code}) {
    expect_failure(failure_of(Error(ErrorKind::cuda, "lost", 700), through), ErrorKind::cuda, 700, "lost");
    expect_failure(failure_of(Error(ErrorKind::system, "full", 28), through), ErrorKind::system, 28, "full");
  }
}

TEST(Failure, IsTheFunctionsWhereUserCodeMisusesTheLibrary) {
  const Error misuse(ErrorKind::usage, "lengths differ");
  expect_failure(failure_of(misuse, ThrownThrough::user_code), ErrorKind::function, 0, "lengths differ");
  expect_failure(failure_of(misuse, ThrownThrough::library), ErrorKind::usage, 0, "lengths differ");
}

TEST(Failure, OfAnotherExceptionDependsOnWhoThrewIt) {
  const std::runtime_error exception("no");
  expect_failure(failure_of(exception, ThrownThrough::user_code), ErrorKind::function, 0, "no");
  expect_failure(failure_of(exception, ThrownThrough::library), ErrorKind::system, 0, "no");
}

TEST(Failure, NamesWhatIsNoStandardException) {
  const auto expect_text = [](const auto& thrown, const std::string& text) {
    expect_failure(failure_of(thrown, ThrownThrough::user_code), ErrorKind::function, 0,
                   "an exception that is not a std::exception, of type " + text);
  };
  expect_text(42, "int: 42");
  expect_text(2.5, "double");
  expect_text(static_cast<const char*>("no rows"), "char const*: no rows");
  EXPECT_TRUE(failure_of(std::string("bad"), ThrownThrough::user_code).text.ends_with(": bad"));
}

TEST(Failure, ContainsTheTextsOfNestedExceptions) {
  const auto thrown = [] {
    try {
      try {
        throw 42;
      } catch (...) {
        std::throw_with_nested(std::runtime_error("cannot parse"));
      }
    } catch (...) {
      std::throw_with_nested(std::runtime_error("cannot load a.txt"));
    }
  };
  try {
    thrown();
  } catch (...) {
    expect_failure(current_failure(ThrownThrough::user_code), ErrorKind::function, 0,
                   "cannot load a.txt: cannot parse: an exception that is not a std::exception, of type int: 42");
  }
}

TEST(Failure, IsThePeersWhereTheCallWasAbandoned) {
  for (const auto through : {ThrownThrough::library, ThrownThrough::user_code}) {
    const CaughtFailure failure = failure_of(Abandoned(), through);
    EXPECT_EQ(failure.origin, FailureOf::peer);
    EXPECT_EQ(failure.text, "the call was abandoned, since another rank failed");
  }
}

TEST(Failure, IsNoneWhereTheSessionIsLost) {
  EXPECT_THROW(failure_of(SessionLost(), ThrownThrough::library), SessionLost);
  EXPECT_THROW(failure_of(SessionLost(), ThrownThrough::user_code), SessionLost);
}

}  // namespace
}  // namespace syncrun::detail

#pragma once

// Fixtures for tests that must pass with any number of workers, and a check for errors. The parameter of a test is the
// number of workers.

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace sr = syncrun;

inline sr::SessionOptions options_of_computing(int world_size) {
  sr::SessionOptions options;
  options.processes = std::to_string(world_size);
  options.timeout = std::chrono::seconds(SYNCRUN_COMPUTING_CALL_TIMEOUT_S);
  options.grace = std::chrono::seconds(60);
  return options;
}

/// Every test opens and closes a session.
class OnWorkers : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { session_ = std::make_unique<sr::Session>(options()); }
  void TearDown() override {
    if (session_) session_->close();
  }
  static sr::SessionOptions options() { return options_of_computing(GetParam()); }
  sr::Session& session() { return *session_; }
  int world_size() const { return GetParam(); }
  void end_session() { session_.reset(); }

 private:
  std::unique_ptr<sr::Session> session_;
};

/// The tests of a suite that run in one process after another share a session, if they have the same number of workers.
/// This is for programs that take long to start, such as those that load LibTorch. A test that fails, or that ends the
/// session, leaves none to the next test.
class OnSharedWorkers : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (session_ && session_->world_size() == GetParam()) return;
    end_session();
    session_ = std::make_unique<sr::Session>(options_of_computing(GetParam()));
  }
  void TearDown() override {
    if (HasFailure()) end_session();
  }
  static void TearDownTestSuite() {
    if (session_) session_->close();
    end_session();
  }
  static sr::Session& session() { return *session_; }
  static int world_size() { return GetParam(); }
  static void end_session() { session_.reset(); }

 private:
  inline static std::unique_ptr<sr::Session> session_;
};

#define INSTANTIATE_ON_WORKERS(suite, ...)                               \
  INSTANTIATE_TEST_SUITE_P(Workers, suite, testing::Values(__VA_ARGS__), \
                           [](const testing::TestParamInfo<int>& number) { return std::to_string(number.param); })

template <class T>
std::vector<T> counting(std::size_t count, T first = T(0)) {
  std::vector<T> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

/// Runs `statement`. Fails the test unless it throws a syncrun::Error of this kind whose message contains `text`.
#define EXPECT_ERROR(statement, expected_kind, text)                                                                \
  try {                                                                                                             \
    statement;                                                                                                      \
    ADD_FAILURE() << #statement " did not throw";                                                                   \
  } catch (const syncrun::Error& error) {                                                                           \
    EXPECT_EQ(error.kind(), expected_kind) << error.what();                                                         \
    EXPECT_NE(std::string_view(error.what()).find(std::string_view(text)), std::string_view::npos) << error.what(); \
  }

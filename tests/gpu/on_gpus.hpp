#pragma once

// A fixture for tests on 1, 2, 4 and 8 GPUs. A test that requires more GPUs than are present is reported as skipped.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <syncrun/syncrun.hpp>
#include <vector>

#include "tests/support/gpus.hpp"

namespace gpu_test {

namespace sr = syncrun;

using syncrun::test::gpus_present;
using syncrun::test::used_gpu_memory_mib;

class OnGpus : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (GetParam() > gpus_present()) GTEST_SKIP() << GetParam() << " GPUs wanted, " << gpus_present() << " present";
    session_ = std::make_unique<sr::Session>(session_options());
  }
  void TearDown() override {
    if (session_) session_->close();
  }
  static sr::SessionOptions options() {
    sr::SessionOptions options;
    for (int i = 0; i < GetParam(); ++i) options.devices += (i == 0 ? "cuda" : ",cuda") + std::to_string(i);
    options.timeout = std::chrono::seconds(20);
    return options;
  }
  virtual sr::SessionOptions session_options() const { return options(); }
  sr::Session& session() { return *session_; }
  int world_size() const { return GetParam(); }
  void end_session() { session_.reset(); }

 private:
  std::unique_ptr<sr::Session> session_;
};

#define INSTANTIATE_ON_GPUS(suite)                                   \
  INSTANTIATE_TEST_SUITE_P(Gpus, suite, testing::Values(1, 2, 4, 8), \
                           [](const testing::TestParamInfo<int>& number) { return std::to_string(number.param); })

/// first, first + 1, ...
template <class T>
std::vector<T> counting(std::int64_t count, T first = 0) {
  std::vector<T> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

/// Runs `statement` and returns the syncrun::Error that it throws. It is a failure of the test if it throws none.
template <class F>
sr::Error error_of(F&& statement) {
  try {
    statement();
  } catch (const sr::Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {sr::ErrorKind::usage, ""};
}

}  // namespace gpu_test

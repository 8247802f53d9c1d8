#pragma once

// Checks after every test that the test has left no process, descriptor, thread or named shared memory behind.

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace syncrun::test {

class LeakCheck : public testing::EmptyTestEventListener {
 public:
  LeakCheck();
  void OnTestStart(const testing::TestInfo& test) override;
  void OnTestEnd(const testing::TestInfo& test) override;

 private:
  std::set<std::string> descriptors_;
};

/// Descriptors of this process, as "number -> what it is".
std::set<std::string> open_descriptors();
int count_threads();
/// True if this process has a child, zombies included.
bool has_children();
/// Entries of /dev/shm that a Syncrun job may have made.
std::set<std::string> named_shared_memory();

}  // namespace syncrun::test

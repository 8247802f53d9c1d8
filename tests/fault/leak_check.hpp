#pragma once

// After every test: no process of it, no descriptor, no thread and no named shared memory is left.

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
/// Entries of /dev/shm that a Syncrun job could have made.
std::set<std::string> named_shared_memory();

}  // namespace syncrun::test

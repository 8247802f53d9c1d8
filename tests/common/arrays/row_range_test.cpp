#include "common/arrays/row_range.hpp"

#include <gtest/gtest.h>

namespace {

using syncrun::detail::arrays::share_of;

TEST(Shares, CoverEveryRowOnceAndDifferByOneAtMost) {
  for (std::int64_t rows = 0; rows < 40; ++rows) {
    for (std::int64_t parts = 1; parts < 12; ++parts) {
      std::int64_t next = 0;
      for (std::int64_t i = 0; i < parts; ++i) {
        const auto share = share_of(rows, parts, i);
        ASSERT_EQ(share.begin, next);
        ASSERT_GE(share.count(), rows / parts);
        ASSERT_LE(share.count(), rows / parts + 1);
        next = share.end;
      }
      ASSERT_EQ(next, rows);
    }
  }
}

}  // namespace

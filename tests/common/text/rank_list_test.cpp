#include "common/text/rank_list.hpp"

#include <gtest/gtest.h>

#include <chrono>

#include "common/text/time_text.hpp"

namespace {

using namespace syncrun::detail::text;

TEST(RankList, HasTheRanksThatItNames) {
  const auto list = RankList::parse("0,2-4,9");
  ASSERT_TRUE(list);
  for (const int rank : {0, 2, 3, 4, 9}) EXPECT_TRUE(list->has(rank)) << rank;
  for (const int rank : {1, 5, 10}) EXPECT_FALSE(list->has(rank)) << rank;
  EXPECT_EQ(list->highest(), 9);
  EXPECT_EQ(list->text(), "0,2-4,9");
  EXPECT_FALSE(RankList().has(0));
  EXPECT_TRUE(RankList::parse("all")->has(77));
  EXPECT_FALSE(RankList::parse("all")->highest());
  EXPECT_EQ(RankList::all().text(), "all");
}

TEST(RankList, IsNotReadFromOtherTexts) {
  for (const char* text : {"", ",", "1,", "a", "2-1", "1-", "-1", "1 ", "+1", "1000000", "99999999999"})
    EXPECT_FALSE(RankList::parse(text)) << text;
}

TEST(UtcText, IsIso8601WithMilliseconds) {
  using std::chrono::milliseconds;
  EXPECT_EQ(utc_text(std::chrono::system_clock::time_point(milliseconds(0))), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(utc_text(std::chrono::system_clock::time_point(milliseconds(1709210096007))), "2024-02-29T12:34:56.007Z");
}

}  // namespace

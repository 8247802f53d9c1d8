// `syncrun report`: a page from a profile whose figures are known, and files that are no profile.

#include <gmock/gmock.h>

#include <array>
#include <string>
#include <vector>

#include "master/profile/profile_json.hpp"
#include "master/report/draw_profile.hpp"
#include "master/report/report_command.hpp"
#include "tests/common/error_text.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::test {
namespace {

using namespace detail::master;
using std::chrono::microseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

PhaseTimes times(int us) { return {microseconds(us / 10), microseconds(us / 5), microseconds(us)}; }

/// Rank 1 computes for 900 us in all, and rank 0 waits for it.
std::vector<CallProfile> uneven_calls() {
  return {
      {.name = "step<a&b>", .rank = -1, .calls = 10, .whole = times(1000)},
      {.name = "step<a&b>", .rank = 0, .calls = 10, .whole = times(950), .function = times(300), .waiting = times(650)},
      {.name = "step<a&b>", .rank = 1, .calls = 10, .whole = times(940), .inputs = times(40), .function = times(900)},
      {.name = "small", .rank = -1, .calls = 2, .whole = times(20)},
      {.name = "small", .rank = 1, .calls = 2, .whole = times(20), .function = times(20)}};
}

profile::Coverage overlapping() {
  profile::Coverage coverage;
  coverage.add(0, 1'000'000);
  coverage.add(990'000, 1'010'000);  // 10 us of overlap
  coverage.add(1'990'000, 2'000'000);
  return coverage;
}

std::string json_of(std::uint64_t lost_events = 0) {
  return profile::profile_json(uneven_calls(), {"cpu0", "b:cpu1"}, overlapping(), lost_events);
}
std::string page_of(const std::string& json) {
  return report::draw_profile(report::parse_profile(json, "p.json"), "p.json");
}

TEST(Report, ReadsWhatTheProfileWrites) {
  const report::ReportedProfile read = report::parse_profile(json_of(7), "p.json");
  EXPECT_EQ(read.elapsed, microseconds(2000));
  EXPECT_EQ(read.busy, microseconds(1020));
  EXPECT_EQ(read.calls, microseconds(1030));
  EXPECT_EQ(read.lost_events, 7);
  EXPECT_THAT(read.devices, testing::ElementsAre("cpu0", "b:cpu1"));
  ASSERT_EQ(read.functions.size(), 2U);
  EXPECT_EQ(read.functions[0].name, "step<a&b>");
  ASSERT_EQ(read.functions[0].lines.size(), 3U);
  EXPECT_EQ(read.functions[0].lines[1].waiting.total, microseconds(650));
  EXPECT_EQ(read.functions[0].lines[2].function.median, microseconds(90));
  EXPECT_EQ(read.functions[1].lines[1].rank, 1);
  EXPECT_TRUE(report::parse_profile(profile::profile_json({}, {"cpu0"}, {}, 0), "p.json").functions.empty());
}

TEST(Report, ShowsTheFiguresOfTheProfile) {
  const std::string page = page_of(json_of());
  EXPECT_THAT(page, HasSubstr("<dt>calls</dt><dd>12</dd>"));
  EXPECT_THAT(page, HasSubstr("<dt>a call in flight</dt><dd>51 %</dd>"));
  EXPECT_THAT(page, HasSubstr("<dt>calls overlapped for</dt><dd>10.0 us</dd>"));
  EXPECT_THAT(page, HasSubstr("<h3>step&lt;a&amp;b&gt;</h3>"));
  // Rank 1 takes 940 us by itself, and rank 0 takes 300 us.
  EXPECT_THAT(page, HasSubstr("Slowest: <strong>rank 1 (b:cpu1)</strong>, 940 us without collectives and waiting, 3.13 "
                              "times the median of the other ranks"));
  EXPECT_THAT(page, HasSubstr("aria-label=\"function 300 us, waiting 650 us\""));
  EXPECT_THAT(page, HasSubstr("width:68.42%\" title=\"waiting 650 us\""));
  EXPECT_THAT(page, HasSubstr("960 us in calls, 48 %")) << "rank 1 in both functions, of 2 ms";
  EXPECT_LT(page.find("<h3>step"), page.find("<h3>small")) << "the longest first";
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script")), Not(HasSubstr("http")), Not(HasSubstr("missing"))));
  EXPECT_THAT(page_of(json_of(7)), HasSubstr("7 events came too fast to be read"));
}

TEST(Report, ShowsTheSlowestOfManyRanks) {
  std::vector<CallProfile> calls;
  for (int rank = 0; rank < 100; ++rank)
    calls.push_back({.name = "f", .rank = rank, .calls = 1, .whole = times(1000), .function = times(100 + rank)});
  const std::string page =
      page_of(profile::profile_json(calls, std::vector<std::string>(100, "cpu0"), overlapping(), 0));
  EXPECT_THAT(page,
              AllOf(HasSubstr("The slowest 64 of 100 ranks."), HasSubstr("rank 36 "), Not(HasSubstr("rank 35 "))));
}

std::string refusal_of(const std::string& json) {
  return error_text([&] { report::parse_profile(json, "p.json"); }, ErrorKind::usage);
}

TEST(Report, RefusesWhatIsNoProfile) {
  EXPECT_THAT(refusal_of(""), HasSubstr("p.json is empty"));
  EXPECT_THAT(refusal_of("[\n{\"ph\": \"M\"}"), HasSubstr("as a trace is"));
  EXPECT_THAT(refusal_of("median / max in us    calls"), HasSubstr("let the name of the profile end in .json"));
  EXPECT_THAT(refusal_of("{\"a\": 1}"), HasSubstr("another JSON file"));
  EXPECT_THAT(refusal_of("{\"syncrun_profile\": 2}"), HasSubstr("has form 2"));
  EXPECT_THAT(refusal_of("{\"a\":" + std::string(1 << 20, '[')), HasSubstr("too many levels"));
  const std::string whole = json_of();
  for (std::size_t length = 2; length + 2 < whole.size(); length += 7)
    EXPECT_THAT(refusal_of(whole.substr(0, length)), HasSubstr("p.json is damaged")) << length;
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string json = whole;
    return refusal_of(json.replace(json.find(from), from.size(), to));
  };
  EXPECT_THAT(with("\"rank\": 1", "\"rank\": 2"), HasSubstr("damaged: 'rank' is '2'"));
  EXPECT_THAT(with("\"elapsed_ns\": 2000000", "\"elapsed_ns\": -5"), HasSubstr("damaged"));
  EXPECT_THAT(with("\"calls\": 10", "\"calls\": \"x\""), HasSubstr("damaged"));
}

int run(std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  return report::run_report(pointers);
}

TEST(Report, WritesAPageBesideTheProfile) {
  const TemporaryFolder folder;
  write_text(folder.at("p.json"), json_of());
  testing::internal::CaptureStdout();
  EXPECT_EQ(run({folder.at("p.json")}), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), folder.at("p.html") + "\n");
  EXPECT_EQ(::text_of(folder.at("p.html")), page_of(json_of()));
  testing::internal::CaptureStdout();
  EXPECT_EQ(run({"-o", folder.at("other"), folder.at("p.json")}), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), folder.at("other") + "\n");
}

TEST(Report, DoesNotReplaceTheProfileByAnotherSpelling) {
  const TemporaryFolder folder;
  write_text(folder.at("p.json"), json_of());
  EXPECT_THAT(error_text(
                  [&] {
                    run({"-o", folder.at("./p.json"), folder.at("p.json")});
                  },
                  ErrorKind::usage),
              HasSubstr("would replace the profile"));
  EXPECT_EQ(::text_of(folder.at("p.json")), json_of());
}

TEST(Report, RefusesBadWords) {
  const auto refusal = [](const std::vector<std::string>& words) {
    return error_text([&] { run(words); }, ErrorKind::usage);
  };
  EXPECT_THAT(refusal({}), HasSubstr("expected syncrun report FILE.json"));
  EXPECT_THAT(refusal({"a.json", "b.json"}), HasSubstr("got 'b.json'"));
  EXPECT_THAT(refusal({"--all"}), HasSubstr("got '--all'"));
  EXPECT_THAT(refusal({"a.json", "-o"}), HasSubstr("-o: expected a file"));
  EXPECT_THAT(refusal({"a.html"}), HasSubstr("would replace the profile"));
  EXPECT_THAT(refusal({"/no/such.json"}), HasSubstr("cannot read /no/such.json: No such file"));
  EXPECT_THAT(refusal({"/tmp"}), HasSubstr("it is a folder"));
}

}  // namespace
}  // namespace syncrun::test

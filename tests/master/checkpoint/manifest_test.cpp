#include "master/checkpoint/manifest.hpp"

#include <gtest/gtest.h>

#include "tests/common/error_text.hpp"

namespace syncrun::detail {
namespace {

std::string complaint(std::string_view text) {
  return test::error_text([&] { master::checkpoint::parse_manifest(text); }, ErrorKind::usage);
}

std::string complaint_about(const std::string& line) { return complaint("syncrun checkpoint 1\n" + line + "\nend\n"); }

std::string refused(const master::checkpoint::Manifest& manifest) {
  return test::error_text([&] { master::checkpoint::to_text(manifest); });
}

TEST(Manifest, ComesBackFromItsText) {
  const master::checkpoint::Manifest manifest{{{"params", Placement::replicated}, {"rows-1.x", Placement::scattered}},
                                              {{"epoch", "3"}, {"empty", ""}, {"note", " a\nb\\n\\ \t "}}};
  const std::string text = master::checkpoint::to_text(manifest);
  EXPECT_EQ(text,
            "syncrun checkpoint 1\narray params replicated\narray rows-1.x scattered\nvalue epoch 3\nvalue empty \n"
            "value note  a\\nb\\\\n\\\\ \t \nend\n");
  const master::checkpoint::Manifest back = master::checkpoint::parse_manifest(text);
  EXPECT_EQ(back.arrays, manifest.arrays);
  EXPECT_EQ(back.values, manifest.values);
}

TEST(Manifest, IsRefusedWithTheLineThatIsWrong) {
  EXPECT_EQ(complaint("syncrun checkpoint 3\nend\n"),
            "expected 'syncrun checkpoint 1' or 'syncrun checkpoint 2' in line 1, found 'syncrun checkpoint 3'");
  EXPECT_EQ(complaint_about("arrays x"), "expected array, value or end in line 2, found 'arrays x'");
  EXPECT_EQ(complaint_about("array x shared"), "expected replicated or scattered in line 2, found 'array x shared'");
  EXPECT_EQ(complaint_about("array ../x scattered"), "expected a name in line 2, found 'array ../x scattered'");
  EXPECT_EQ(complaint_about("value x 1\nvalue x 2"), "expected each name once in line 3, found 'value x 2'");
  EXPECT_EQ(complaint_about("value x a\\tb"), "expected \\\\ or \\n in line 2, found 'value x a\\tb'");
  EXPECT_EQ(complaint_about("end\nmore"), "expected nothing after 'end' in line 2, found 'end'");
}

master::checkpoint::Manifest with_parts() {
  return {{{"params", Placement::replicated, {}},
           {"large", Placement::replicated, {{9, "n1"}}},
           {"rows", Placement::scattered, {{5, "n1"}, {3, "a b\n"}}}},
          {{"epoch", "3"}},
          "0f8e"};
}

TEST(Manifest, NamesTheNodesThatHaveWrittenParts) {
  const std::string text = master::checkpoint::to_text(with_parts());
  EXPECT_EQ(text,
            "syncrun checkpoint 2\nid 0f8e\narray params replicated\narray large replicated\npart 9 n1\n"
            "array rows scattered\npart 5 n1\npart 3 a b\\n\n"
            "value epoch 3\nend\n");
  const master::checkpoint::Manifest back = master::checkpoint::parse_manifest(text);
  EXPECT_EQ(back.arrays, with_parts().arrays);
  EXPECT_EQ(back.values, with_parts().values);
  EXPECT_EQ(back.folder_id, "0f8e");
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_NE(complaint(std::string_view(text).substr(0, length)), "") << length << " bytes";
  }
}

TEST(Manifest, IsRefusedWithThePartThatIsWrong) {
  const auto about = [](const std::string& lines) {
    return complaint("syncrun checkpoint 2\nid 0f8e\n" + lines + "\nend\n");
  };
  EXPECT_EQ(about("array x scattered\npart 1 n1"), "");
  EXPECT_EQ(about("array x scattered"), "expected an array with parts in line 4, found 'end'");
  EXPECT_EQ(about("part 1 n1"), "expected a part only of an array in line 3, found 'part 1 n1'");
  for (const std::string rows : {"0", "-1", "x", "", "1x", "9223372036854775808"}) {
    EXPECT_EQ(about("array x scattered\npart " + rows + " n1"),
              "expected a number of rows in line 4, found 'part " + rows + " n1'");
  }
  EXPECT_EQ(about("array x scattered\npart 9223372036854775807 n1\npart 1 n2"),
            "expected a number of rows in line 5, found 'part 1 n2'");
  EXPECT_EQ(complaint("syncrun checkpoint 2\narray x scattered\nend\n"),
            "expected the id of the folder in line 2, found 'array x scattered'");
  EXPECT_EQ(complaint("syncrun checkpoint 2\nid ../x\nend\n"),
            "expected the id of the folder in line 2, found 'id ../x'");
  EXPECT_EQ(complaint_about("array x scattered\npart 1 n1"),
            "expected array, value or end in line 3, found 'part 1 n1'");
}

TEST(Manifest, GivesPartsFilesThatNoArrayHas) {
  EXPECT_EQ(master::checkpoint::file_of("rows"), "rows.npy");
  EXPECT_EQ(master::checkpoint::file_of_part("rows", 1), "rows@1.npy");
  EXPECT_NE(refused({{{"rows@1", Placement::replicated}}, {}}), "");
}

TEST(Manifest, HasNamesThatAreGoodOnesForFiles) {
  for (const char* name : {"", ".", "..", ".x", "a/b", "a b", "a\nb", "\xc3\xa4"}) {
    EXPECT_NE(refused({{{name, Placement::replicated}}, {}}).find("a name in a checkpoint is"), std::string::npos)
        << name;
    EXPECT_NE(refused({{}, {{name, "1"}}}).find("a name in a checkpoint is"), std::string::npos) << name;
  }
  EXPECT_EQ(refused({{{"x", Placement::replicated}, {"x", Placement::replicated}}, {}}),
            "a checkpoint has each name once, got 'x' twice");
  EXPECT_EQ(refused({{{"x", Placement::replicated}}, {{"x", "1"}}}), "") << "an array and a value may share one";
}

}  // namespace
}  // namespace syncrun::detail

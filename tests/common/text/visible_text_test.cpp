#include "common/text/visible_text.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "common/text/time_text.hpp"

namespace {

using syncrun::detail::text::json_string;
using syncrun::detail::text::text_for;
using syncrun::detail::text::utc_text;
using syncrun::detail::text::visible;
using syncrun::detail::text::with_indented_lines;

TEST(VisibleText, LeavesTextAsItIs) {
  EXPECT_EQ(visible(""), "");
  EXPECT_EQ(visible("two\tcolumns\nand lines"), "two\tcolumns\nand lines");
  EXPECT_EQ(visible("Größe 10 µs – 漢字 🙂"), "Größe 10 µs – 漢字 🙂");
}

TEST(VisibleText, OfSeveralLinesIsIndentedFromTheSecondOn) {
  EXPECT_EQ(with_indented_lines("one line"), "one line");
  EXPECT_EQ(with_indented_lines("boom\n[rank 9] fake\n\nend\n"), "boom\n  [rank 9] fake\n  \n  end\n");
  EXPECT_EQ(with_indented_lines("lost\n  [rank 1] its last words"), "lost\n  [rank 1] its last words");
}

TEST(VisibleText, ShowsControlCharacters) {
  EXPECT_EQ(visible("\x1b[2J\x1b]0;title\a"), "^[[2J^[]0;title^G");
  EXPECT_EQ(visible("a\rb\b\b\x7f\v\f"), "a^Mb^H^H^?^K^L");
  EXPECT_EQ(visible(std::string("\0", 1)), "^@");
}

TEST(VisibleText, ShowsEightBitControlsHoweverTheyAreWritten) {
  EXPECT_EQ(visible("\xc2\x9b"
                    "2J"),
            "\\x9b2J");
  EXPECT_EQ(visible("\x9b"
                    "2J"),
            "\\x9b2J");
  EXPECT_EQ(visible("\xc2\xa0"), "\xc2\xa0") << "a space that does not break is no control character";
}

TEST(VisibleText, IsForTerminalsOnly) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  EXPECT_EQ(text_for(terminal, "\x1b[2J"), "^[[2J");
  ::close(terminal);
  const int file = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(text_for(file, "\x1b[2J"), "\x1b[2J");
  ::close(file);
}

TEST(VisibleText, ShowsBytesThatAreNotUtf8) {
  EXPECT_EQ(visible("\xc0\x9b"), "\\xc0\\x9b") << "longer than it must be";
  EXPECT_EQ(visible("\xe2\x82"), "\\xe2\\x82") << "cut off";
  EXPECT_EQ(visible("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "half of a pair";
  EXPECT_EQ(visible("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80") << "beyond Unicode";
  EXPECT_EQ(visible("\xe2\x1b[2J"), "\\xe2^[[2J") << "a sequence does not hide what follows";
}

TEST(JsonString, EscapesWhatJsonRequires) {
  EXPECT_EQ(json_string("a\"b\\c\n\t\x1b µ"), "\"a\\\"b\\\\c\\n\\u0009\\u001b µ\"");
  EXPECT_EQ(json_string("\x7f\xc2\x9b"), "\"\\u007f\\u009b\"") << "no terminal may obey what a log line quotes";
  EXPECT_EQ(json_string("\xff"), "\"\xef\xbf\xbd\"");
}

TEST(UtcText, IsIso8601WithMilliseconds) {
  using std::chrono::milliseconds;
  EXPECT_EQ(utc_text(std::chrono::system_clock::time_point(milliseconds(0))), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(utc_text(std::chrono::system_clock::time_point(milliseconds(1709210096007))), "2024-02-29T12:34:56.007Z");
}

}  // namespace

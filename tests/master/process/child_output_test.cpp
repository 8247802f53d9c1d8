// How the master passes on what its children write: to a terminal, to a file or pipe, and to a log.

#include "master/process/child_output.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "master/process/nonblocking_writer.hpp"
#include "tests/support/full_disk.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

using namespace syncrun::detail;

/// Everything that can be read from a descriptor without waiting.
std::string read_now(int fd) {
  std::string text;
  std::array<char, 4096> part{};
  for (;;) {
    pollfd entry{fd, POLLIN, 0};
    if (::poll(&entry, 1, 0) != 1) return text;
    const auto count = ::read(fd, part.data(), part.size());
    if (count <= 0) return text;
    text.append(part.data(), static_cast<std::size_t>(count));
  }
}

/// The destination of the lines: the test reads from `ours`, the writer writes to `theirs`.
struct Reader {
  os::FileDescriptor ours;
  os::FileDescriptor theirs;

  static Reader terminal() {
    Reader reader;
    reader.ours = os::FileDescriptor(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    EXPECT_EQ(::grantpt(reader.ours.get()), 0);
    EXPECT_EQ(::unlockpt(reader.ours.get()), 0);
    reader.theirs = os::FileDescriptor(::open(::ptsname(reader.ours.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    termios settings{};
    ::tcgetattr(reader.theirs.get(), &settings);
    ::cfmakeraw(&settings);  // keeps newlines as they are
    ::tcsetattr(reader.theirs.get(), TCSANOW, &settings);
    return reader;
  }
  static Reader pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    return {os::FileDescriptor(ends[0]), os::FileDescriptor(ends[1])};
  }
};

/// Two children whose output goes through one writer.
class Passed {
 public:
  explicit Passed(Reader reader, const master::process::OutputSettings& settings = {})
      : reader_(std::move(reader)),
        writer_(reader_.theirs.get()),
        children_{Child{0, settings, writer_, log_}, Child{1, settings, writer_, log_}} {}

  /// The output that arrives after a rank has written this text.
  std::string after(int rank, std::string_view text) {
    Child& child = children_[static_cast<std::size_t>(rank)];
    EXPECT_EQ(::write(child.to.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    EXPECT_TRUE(child.output.pump());
    return passed_on();
  }
  std::string after_end(int rank) {
    children_[static_cast<std::size_t>(rank)].output.finish();
    return passed_on();
  }
  std::string log() const {
    std::string text(1000, '\0');
    const auto count = ::pread(log_file_.get(), text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(count));
    return text;
  }
  std::vector<std::string> tail(int rank) const { return children_[static_cast<std::size_t>(rank)].output.tail(); }

 private:
  struct Child {
    Child(int rank, const master::process::OutputSettings& settings, master::process::OutputTarget& writer,
          master::process::ChildLog& log, Reader pipe = Reader::pipe())
        : to(std::move(pipe.theirs)),
          output(master::process::make_line_format(settings, "[rank " + std::to_string(rank) + "] ", rank),
                 without_blocking(std::move(pipe.ours)), writer, log) {}
    static os::FileDescriptor without_blocking(os::FileDescriptor fd) {
      ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
      return fd;
    }
    os::FileDescriptor to;
    master::process::ChildOutput output;
  };
  std::string passed_on() {
    writer_.flush();
    return read_now(reader_.ours.get());
  }

  Reader reader_;
  master::process::NonblockingWriter writer_;
  os::FileDescriptor log_file_{::memfd_create("log", MFD_CLOEXEC)};
  master::process::ChildLog log_{"/proc/self/fd/" + std::to_string(log_file_.get()), master::process::OpenMode::append};
  std::array<Child, 2> children_;
};

class OnTerminal : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("TERM", "xterm", 1);
    ::setenv("NO_COLOR", "1", 1);
  }
  Passed passed_{Reader::terminal()};
};

TEST_F(OnTerminal, LinesAreTaggedAndPlainTextIsAsItWas) {
  EXPECT_EQ(passed_.after(0, "one\n\ntwo\tµs\n"), "[rank 0] one\n[rank 0] \n[rank 0] two\tµs\n");
  EXPECT_EQ(passed_.after(1, "dos\r\n"), "[rank 1] dos\n");
}

TEST_F(OnTerminal, ForgedTagsStandBehindTheRealOne) {
  EXPECT_EQ(passed_.after(0, "x\n[rank 7] fake\n"), "[rank 0] x\n[rank 0] [rank 7] fake\n");
  EXPECT_EQ(passed_.after(0, "x\r[rank 7] fake\n"), "[rank 0] [rank 7] fake\n");
  EXPECT_EQ(passed_.after(0, "x\b\b\b\b\b\b\b\b\b\b[rank 7] fake\n"), "[rank 0] x^H^H^H^H^H^H^H^H^H^H[rank 7] fake\n");
  EXPECT_EQ(passed_.after(0, "x\v\x1b[1G\xc2\x85[rank 7] fake\n"), "[rank 0] x^K^[[1G\\x85[rank 7] fake\n");
}

TEST_F(OnTerminal, EscapeSequencesAreShownAndNotDone) {
  EXPECT_EQ(passed_.after(0, "\x1b[2J\x1b]52;c;bHM=\a\n"), "[rank 0] ^[[2J^[]52;c;bHM=^G\n");
}

TEST_F(OnTerminal, ProgressBarsMoveWhileTheyCome) {
  EXPECT_EQ(passed_.after(0, "\r 10%"), "[rank 0]  10%");
  EXPECT_EQ(passed_.after(0, "\r 20%"), "\r\x1b[K[rank 0]  20%");
  EXPECT_EQ(passed_.after(0, "\r 30%\r 40%"), "\r\x1b[K[rank 0]  40%");
  EXPECT_EQ(passed_.after(0, "\r100%\n"), "\r\x1b[K[rank 0] 100%\n");
  EXPECT_EQ(passed_.after(0, "next\n"), "[rank 0] next\n");
}

TEST_F(OnTerminal, ProgressBarsThatEndWithTheReturnMoveToo) {
  EXPECT_EQ(passed_.after(0, " 10%\r"), "[rank 0]  10%");
  EXPECT_EQ(passed_.after(0, " 20%\r"), "\r\x1b[K[rank 0]  20%");
  EXPECT_EQ(passed_.after(0, "100%\r\n"), "\r\x1b[K[rank 0] 100%\n");
}

TEST_F(OnTerminal, OthersLinesTakeThePlaceOfABarWhole) {
  passed_.after(0, "\r 10%");
  EXPECT_EQ(passed_.after(1, "x\n"), "\r\x1b[K[rank 1] x\n");
  EXPECT_EQ(passed_.after(0, "\r 20%"), "[rank 0]  20%");
  EXPECT_EQ(passed_.after(1, "\r 5%"), "\r\x1b[K[rank 1]  5%");
  EXPECT_EQ(passed_.after_end(0), "\r\x1b[K[rank 0]  20%\n");
}

TEST_F(OnTerminal, BarsAreLinesWhereTheTerminalCannotEraseThem) {
  ::setenv("TERM", "dumb", 1);
  Passed passed(Reader::terminal());
  ::setenv("TERM", "xterm", 1);
  EXPECT_EQ(passed.after(0, "\r 10%"), "[rank 0]  10%");
  EXPECT_EQ(passed.after(0, "\r 20%"), "\n[rank 0]  20%");
}

TEST_F(OnTerminal, ALineThatComesInPartsIsWholeAndOnce) {
  EXPECT_EQ(passed_.after(0, "one"), "");
  EXPECT_EQ(passed_.after(0, " two\n"), "[rank 0] one two\n");
}

TEST_F(OnTerminal, LogsAndLastLinesHaveEveryByte) {
  const std::string text = "\x1b[2J\r 10%\r 20%\n\x9b\b\n";
  passed_.after(0, text);
  EXPECT_EQ(passed_.log(), text);
  EXPECT_EQ(passed_.tail(0), (std::vector<std::string>{"\x1b[2J\r 10%\r 20%", "\x9b\b"}));
}

TEST(Colours, AreOnTerminalsOnly) {
  ::setenv("TERM", "xterm", 1);
  ::unsetenv("NO_COLOR");
  Passed on_terminal(Reader::terminal());
  Passed in_pipe(Reader::pipe());
  EXPECT_EQ(on_terminal.after(1, "x\n"), "\x1b[33m[rank 1] \x1b[0mx\n");
  EXPECT_EQ(in_pipe.after(1, "x\n"), "[rank 1] x\n");
  ::setenv("TERM", "dumb", 1);
  EXPECT_EQ(Passed(Reader::terminal()).after(1, "x\n"), "[rank 1] x\n");
}

TEST(ToAPipe, WithoutTagsEveryByteIsAsItWas) {
  Passed passed(Reader::pipe(), {.has_tags = false});
  const std::string text = "\r 10%\r 20%\n\n[rank 7] fake\nno end";
  std::string arrived = passed.after(0, text);
  arrived += passed.after_end(0);
  EXPECT_EQ(arrived, text + "\n");
}

TEST(ToAPipe, LinesThatComeInPartsOrAtOnceAreTheSame) {
  Passed passed(Reader::pipe());
  EXPECT_EQ(passed.after(0, "a"), "");
  EXPECT_EQ(passed.after(0, "b\nc\nd"), "[rank 0] ab\n[rank 0] c\n");
  EXPECT_EQ(passed.after(1, "e\n"), "[rank 1] e\n");
  EXPECT_EQ(passed.after(0, "\n"), "[rank 0] d\n");
  std::string many;
  for (int line = 0; line < 50; ++line) many += std::to_string(line) + "\n";
  passed.after(1, many);
  EXPECT_EQ(passed.tail(1).size(), 20U);
  EXPECT_EQ(passed.tail(1).front(), "30");
  EXPECT_EQ(passed.tail(1).back(), "49");
}

TEST(JsonLogLines, GetNoTag) {
  Reader reader = Reader::pipe();
  master::process::NonblockingWriter writer(reader.theirs.get());
  master::process::JsonLogTarget target(writer);
  target.push({"[rank 0] ", ""}, "a\n{\"logger\":\"cpu0\"}\n{\"logger\":\"cpu0\"}\nb\nc\n");
  writer.flush();
  EXPECT_EQ(read_now(reader.ours.get()),
            "[rank 0] a\n{\"logger\":\"cpu0\"}\n{\"logger\":\"cpu0\"}\n[rank 0] b\n[rank 0] c\n");
}

TEST(ToAPipe, EveryByteIsPassedOnAndEachStateIsTagged) {
  Passed passed(Reader::pipe());
  EXPECT_EQ(passed.after(0, "\x1b[31mred\x1b[0m\n"), "[rank 0] \x1b[31mred\x1b[0m\n");
  EXPECT_EQ(passed.after(0, "x\r[rank 7] fake\n"), "[rank 0] x\r[rank 0] [rank 7] fake\n");
  EXPECT_EQ(passed.after(0, "\r 10%\r 20%"), "");
  EXPECT_EQ(passed.after(0, "\n"), "[rank 0] \r[rank 0]  10%\r[rank 0]  20%\n");
  EXPECT_EQ(passed.after(0, "dos\r\n\n"), "[rank 0] dos\r\n[rank 0] \n");
}

/// A worker dies by SIGPIPE if the program has closed the pipe of its output. The error must then name the closed pipe.
TEST(AClosedPipe, HasNotEndedAndIsNotIntact) {
  Reader pipe = Reader::pipe();
  const int number = pipe.ours.get();
  master::process::ChildLog log;
  master::process::NonblockingWriter writer(-1);
  master::process::ChildOutput output(master::process::make_line_format({}, "", 0), std::move(pipe.ours), writer, log);
  ::close(number);
  EXPECT_TRUE(output.pump());
  EXPECT_FALSE(output.is_intact());
  const os::FileDescriptor empty(::memfd_create("of the program", MFD_CLOEXEC));
  const os::FileDescriptor in_its_place(::dup2(empty.get(), number));
  EXPECT_TRUE(output.pump());
  EXPECT_FALSE(output.is_intact());
}

// ---- log files that are divided ----------------------------------------------------------------------------------

TEST(ADividedLog, KeepsItsOlderFilesWhileTheDiskIsFull) {
  const TemporaryFolder folder;
  master::process::ChildLog log(folder.at("log"), master::process::OpenMode::empty, {.bytes = 8, .old_files = 2});
  log.write("line 1.\nline 2.\n333\n");
  {
    const syncrun::test::FullDisk full(4);
    for (int i = 0; i < 3; ++i) log.write("444\n555\n");
  }
  EXPECT_EQ(log.error(), EFBIG);
  EXPECT_EQ(text_of(folder / "log.2") + text_of(folder / "log.1") + text_of(folder / "log"), "line 1.\nline 2.\n333\n");
  log.write("666\n");
  EXPECT_EQ(text_of(folder / "log"), "333\n666\n");
}

TEST(ADividedLog, GoesOnIfItsFileIsRemoved) {
  const TemporaryFolder folder;
  master::process::ChildLog log(folder.at("log"), master::process::OpenMode::empty, {.bytes = 4, .old_files = 2});
  log.write("one\ntwo\n");
  std::filesystem::remove(folder / "log");
  log.write("333\n");
  EXPECT_EQ(log.error(), 0);
  EXPECT_EQ(text_of(folder / "log.1") + text_of(folder / "log"), "one\n333\n");
}

}  // namespace

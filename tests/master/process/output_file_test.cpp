// Files that the user names as output files. They are opened without waiting, and no other file is changed.

#include "master/process/output_file.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>

#include "syncrun/error.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

using namespace syncrun::detail;
using namespace std::chrono_literals;
using syncrun::ErrorKind;
using testing::HasSubstr;

class OutputFiles : public testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  /// The error of opening this path, in each mode. Opening must fail at once.
  static std::string refusal(const std::string& path, ErrorKind kind = ErrorKind::usage) {
    std::string text;
    const auto begin = std::chrono::steady_clock::now();
    for (const master::process::OpenMode mode :
         {master::process::OpenMode::empty, master::process::OpenMode::append_to_empty,
          master::process::OpenMode::append}) {
      try {
        master::process::open_output(path, mode, "the trace");
        ADD_FAILURE() << path << " was opened";
      } catch (const syncrun::Error& error) {
        EXPECT_EQ(error.kind(), kind) << error.what();
        text = error.what();
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
    EXPECT_THAT(text, HasSubstr("cannot write the trace " + path));
    return text;
  }

  TemporaryFolder folder_;
};

TEST_F(OutputFiles, KeepWhatTheyHadWhereTheyAreAppendedTo) {
  write_text(at("file"), "kept ");
  const os::FileDescriptor first =
      master::process::open_output(at("file"), master::process::OpenMode::append, "the log file");
  ASSERT_EQ(::write(first.get(), "one ", 4), 4);
  const os::FileDescriptor second =
      master::process::open_output(at("file"), master::process::OpenMode::append, "the log file");
  ASSERT_EQ(::write(second.get(), "two ", 4), 4);
  ASSERT_EQ(::write(first.get(), "three", 5), 5);
  EXPECT_EQ(text_of(at("file")), "kept one two three");
  EXPECT_EQ(::fcntl(first.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(OutputFiles, ThatArePipesWithAReaderAreNotEvenOpened) {
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  const os::FileDescriptor reader(::open(at("pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  refusal(at("pipe"));
  pollfd entry{reader.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0) << "the reader would see a writer come and go";
}

TEST_F(OutputFiles, InAFolderThatIsALinkAreWritten) {
  ASSERT_EQ(::mkdir(at("folder").c_str(), 0700), 0);
  ASSERT_EQ(::symlink(at("folder").c_str(), at("link").c_str()), 0);
  master::process::OutputFile(at("link/file"), "the trace").write("text");
  EXPECT_EQ(text_of(at("folder/file")), "text");
}

TEST_F(OutputFiles, ThatAreSomethingElseAreRefused) {
  EXPECT_THAT(refusal(folder_.path().string()), HasSubstr("found a folder"));
  const os::FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, at("socket").c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(refusal(at("socket")), HasSubstr("found a socket"));
  EXPECT_THAT(refusal(at("no folder/file"), ErrorKind::system), HasSubstr("No such file or directory"));
}

TEST_F(OutputFiles, CanBeDevices) {
  master::process::OutputFile nowhere("/dev/null", "the trace");
  nowhere.write("text");
  nowhere.close();
  master::process::OutputFile full("/dev/full", "the trace");
  full.write("text");
  EXPECT_THAT([&] { full.close(); }, testing::ThrowsMessage<syncrun::Error>(HasSubstr("No space left")));
}

TEST_F(OutputFiles, CanBeWhatTheProcessHasOpenAndAreNotEmptiedThen) {
  write_text(at("file"), "before ");
  const os::KeptDescriptor file(os::FileDescriptor(::open(at("file").c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)));
  master::process::OutputFile(std::string("/dev/fd/") + std::to_string(file.get()), "the trace").write("after");
  EXPECT_EQ(text_of(at("file")), "before after");
  EXPECT_TRUE(file.is_intact());

  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const os::FileDescriptor ours(ends[0]);
  const os::FileDescriptor theirs(ends[1]);
  master::process::OutputFile("/proc/self/fd/" + std::to_string(ours.get()), "the trace").write("text");
  std::array<char, 5> received{};
  EXPECT_EQ(::recv(theirs.get(), received.data(), 4, 0), 4);
  EXPECT_STREQ(received.data(), "text");

  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const os::FileDescriptor reader(ends[0]);
  const os::FileDescriptor writer(ends[1]);
  EXPECT_THAT(refusal("/dev/fd/" + std::to_string(writer.get())), HasSubstr("found a pipe"));
}

TEST_F(OutputFiles, ThatTheProgramHasClosedAreNoLongerWritten) {
  master::process::OutputFile file(at("file"), "the trace");
  file.write("first");
  const os::FileDescriptor probe(::open(at("file").c_str(), O_RDONLY | O_CLOEXEC));
  const int number = probe.get() - 1;  // that of `file`, which was opened right before
  ASSERT_EQ(::close(number), 0);
  write_text(at("mine"), "");
  const os::KeptDescriptor mine(os::FileDescriptor(::open(at("mine").c_str(), O_RDWR | O_CLOEXEC)));
  ASSERT_EQ(mine.get(), number);
  EXPECT_THAT([&] { file.close(); }, testing::ThrowsMessage<syncrun::Error>(HasSubstr("has closed file descriptors")));
  EXPECT_EQ(text_of(at("mine")), "");
  EXPECT_TRUE(mine.is_intact());
}

}  // namespace

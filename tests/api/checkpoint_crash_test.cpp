// A process that saves a checkpoint is killed at every point, or its disk is full. Afterwards the folder contains
// either the old checkpoint or the new one, and it is complete.

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <functional>

#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

bool has_links = true;

}  // namespace

/// The library calls this function of the program, and not that of libc. It can behave as on a file system without links.
extern "C" int symlinkat(const char* target, int folder, const char* name) noexcept {
  if (has_links) return static_cast<int>(::syscall(SYS_symlinkat, target, folder, name));
  errno = EPERM;
  return -1;
}

namespace {

namespace fs = std::filesystem;

/// Saves two arrays and a value. All of them contain the number of the save.
void save_number(const fs::path& folder, int number) {
  const std::vector<std::int32_t> a(20'000, number);
  const std::vector<double> b(100, number);
  sr::save_checkpoint(folder, {{"a", a}, {"b", b}}, {{"number", number}});
}

/// The number of the last save. Checks that all parts of the checkpoint contain it.
int saved_number(const fs::path& folder) {
  const sr::Checkpoint checkpoint(folder);
  const int number = checkpoint.value<int>("number");
  EXPECT_EQ((checkpoint.array<std::int32_t, 1>("a").to_vector()), std::vector<std::int32_t>(20'000, number));
  EXPECT_EQ((checkpoint.array<double, 1>("b").to_vector()), std::vector<double>(100, number));
  return number;
}

std::ptrdiff_t entries_in(const fs::path& folder) { return std::distance(fs::directory_iterator(folder), {}); }

/// A child process that runs `work` and exits. The destructor kills it if it has not ended yet.
class Child {
 public:
  explicit Child(const std::function<void()>& work) : pid_(::fork()) {
    if (pid_ != 0) return;
    try {
      work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "in a child: %s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const noexcept { return pid_; }
  /// Waits for the child to stop or to end, and returns its status.
  int wait() {
    int status = 0;
    if (::waitpid(pid_, &status, 0) != pid_) ADD_FAILURE() << "waitpid";
    if (!WIFSTOPPED(status)) pid_ = -1;
    return status;
  }
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }

 private:
  pid_t pid_;
};

/// Runs `work` in a child process, and returns the string that `work` returned there.
std::string in_child(const std::function<std::string()>& work) {
  const TemporaryFolder folder;
  Child child([&] { write_text(folder / "said", work()); });
  child.wait();
  return text_of(folder / "said");
}

std::string complaint(const std::function<void()>& work) {
  try {
    work();
  } catch (const sr::Error& error) {
    return std::string(to_string(error.kind())) + ": " + error.what();
  }
  return "none";
}

/// Lets a traced child run until the next beginning or end of a system call. Returns false if the child has ended.
bool step(Child& child) {
  if (::ptrace(PTRACE_SYSCALL, child.pid(), nullptr, nullptr) != 0) return false;
  return WIFSTOPPED(child.wait());
}

TEST(CheckpointCrash, AtAnySystemCallLeavesTheOldOneOrTheNewOne) {
  const TemporaryFolder folder;
  int kills = 0;
  int old_ones = 0;
  for (bool was_killed = true; was_killed; ++kills) {
    save_number(folder / "run", 2 * kills);
    Child child([&] {
      if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
      ::raise(SIGSTOP);
      save_number(folder / "run", 2 * kills + 1);
    });
    const int status = child.wait();
    if (WIFEXITED(status)) GTEST_SKIP() << "no ptrace here";
    was_killed = step(child);  // to the end of its raise(), or to the beginning of the next system call
    for (int i = 0; was_killed && i < 2 * kills; ++i) was_killed = step(child);
    child.end();
    const int number = saved_number(folder / "run");
    EXPECT_EQ(number / 2, kills);
    old_ones += 1 - number % 2;
  }
  EXPECT_GT(kills, 20) << "a save makes more system calls than that";
  EXPECT_GT(old_ones, 10);
  EXPECT_LT(old_ones, kills);
  save_number(folder / "run", 0);
  EXPECT_EQ(entries_in(folder / "run"), 2) << "the link and what it leads to: what the killed ones left is gone";
}

/// Makes writes beyond `bytes` fail, as on a full disk. Only the error number differs.
void limit_files_to(rlim_t bytes) {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

TEST(CheckpointOnAFullDisk, LeavesTheOldOneAndNothingElse) {
  const TemporaryFolder folder;
  save_number(folder / "run", 1);
  const std::string said = in_child([&] {
    limit_files_to(50'000);
    return complaint([&] { save_number(folder / "run", 2); });
  });
  EXPECT_NE(said.find("system: cannot write "), std::string::npos) << said;
  EXPECT_NE(said.find("a.npy: File too large"), std::string::npos) << said;
  EXPECT_EQ(saved_number(folder / "run"), 1);
  EXPECT_EQ(entries_in(folder / "run"), 2);
}

/// Moves this process into a mount namespace of its own, and if necessary into a user namespace too. Returns false if
/// that is not allowed.
bool leave_mounts() {
  if (::unshare(CLONE_NEWNS) == 0) return true;
  const std::string user = "0 " + std::to_string(::geteuid()) + " 1";
  const std::string group = "0 " + std::to_string(::getegid()) + " 1";
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  write_text("/proc/self/setgroups", "deny");
  write_text("/proc/self/uid_map", user);
  write_text("/proc/self/gid_map", group);
  return true;
}

/// Mounts a tmpfs with the option `size` over the folder. Only this process sees it. Returns false if that is not
/// allowed.
bool mount_small(const fs::path& folder, const char* size) {
  if (!leave_mounts()) return false;
  ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  return ::mount("tmpfs", folder.c_str(), "tmpfs", 0, size) == 0;
}

TEST(CheckpointOnAFullDisk, SaysSoAndGoesOnWhenThereIsRoomAgain) {
  const TemporaryFolder folder;
  const std::string said = in_child([&]() -> std::string {
    if (!mount_small(folder.path(), "size=300k")) return "skip";
    save_number(folder / "run", 1);
    write_text(folder / "other", std::string(150'000, 'x'));
    const std::string full = complaint([&] { save_number(folder / "run", 2); });
    if (saved_number(folder / "run") != 1 || entries_in(folder / "run") != 2)
      return "the old one is not whole; " + full;
    fs::remove(folder / "other");
    save_number(folder / "run", 3);
    return (saved_number(folder / "run") == 3 ? "goes on; " : "does not go on; ") + full;
  });
  if (said == "skip") GTEST_SKIP() << "no file system may be mounted here";
  EXPECT_NE(said.find("goes on; system: cannot write "), std::string::npos) << said;
  EXPECT_NE(said.find(": No space left on device"), std::string::npos) << said;
}

TEST(CheckpointFolder, IsWrittenByOneProcessAtATime) {
  const TemporaryFolder folder;
  save_number(folder / "run", 1);
  const int other = ::open((folder / "run/.syncrun-lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  struct flock whole {};
  whole.l_type = F_WRLCK;
  ASSERT_EQ(::fcntl(other, F_OFD_SETLK, &whole), 0) << "a lock that network file systems share between machines";
  EXPECT_ERROR(save_number(folder / "run", 2), sr::ErrorKind::usage, "another process is writing a checkpoint there");
  ::close(other);
  save_number(folder / "run", 3);
  EXPECT_EQ(saved_number(folder / "run"), 3);
}

TEST(CheckpointFolder, KeepsWhatASaveOfAnotherMachineIsWritingForADay) {
  const TemporaryFolder folder;
  const fs::path other = folder / "run/.syncrun-writing-9-0123456789abc-4026531836-1-1";
  fs::create_directories(other);
  write_text(other / "a.npy", "begun");
  const fs::path link = folder / "run/.syncrun-latest-0123456789abc-4026531836-1-1";
  fs::create_symlink(".syncrun-save-9", link);
  save_number(folder / "run", 1);
  EXPECT_TRUE(fs::exists(other / "a.npy"));
  EXPECT_TRUE(fs::is_symlink(link));
  const timespec a_day_ago{::time(nullptr) - 25 * 3600, 0};
  const std::array both{a_day_ago, a_day_ago};
  for (const fs::path& each : {other / "a.npy", other, link})
    ASSERT_EQ(::utimensat(AT_FDCWD, each.c_str(), both.data(), AT_SYMLINK_NOFOLLOW), 0);
  save_number(folder / "run", 2);
  EXPECT_FALSE(fs::exists(other));
  EXPECT_FALSE(fs::is_symlink(link));
  EXPECT_EQ(saved_number(folder / "run"), 2);
}

TEST(CheckpointFolder, ThatCannotBeMadeIsNamed) {
  const TemporaryFolder folder;
  EXPECT_ERROR(save_number(folder / std::string(300, 'x') / "run", 1), sr::ErrorKind::system, "cannot make ");
}

TEST(CheckpointFolder, LeavesFilesOfOthersAlone) {
  const TemporaryFolder folder;
  write_text(folder / "losses", "1 2 3");
  fs::create_directory(folder / "latest");
  EXPECT_ERROR(save_number(folder.path(), 1), sr::ErrorKind::usage, "latest is not the link of a checkpoint");
  fs::remove(folder / "latest");
  fs::create_symlink("losses", folder / "latest");
  EXPECT_ERROR(save_number(folder.path(), 1), sr::ErrorKind::usage, "latest is not the link of a checkpoint");
  fs::remove(folder / "latest");
  save_number(folder.path(), 1);
  save_number(folder.path(), 2);
  EXPECT_EQ(saved_number(folder.path()), 2);
  EXPECT_EQ(text_of(folder / "losses"), "1 2 3");
}

/// A folder with a checkpoint of the number 7, and how copies of it behave.
class CheckpointCopy : public testing::Test {
 protected:
  CheckpointCopy() { save_number(run_, 7); }
  fs::path copied() const {
    fs::copy(run_, copy_, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    return copy_;
  }
  /// What is saved there can be read, saved and read again, and then there is only the new one.
  static void expect_goes_on(const fs::path& run, int number) {
    EXPECT_TRUE(sr::Checkpoint::exists(run));
    EXPECT_EQ(saved_number(run), number);
    save_number(run, number + 1);
    EXPECT_EQ(saved_number(run), number + 1);
    save_number(run, number + 2);
    EXPECT_EQ(saved_number(run), number + 2);
    EXPECT_EQ(entries_in(run), 2);
    EXPECT_TRUE(fs::is_symlink(run / "latest"));
  }
  static void expect_refused(const fs::path& run, const std::string& words) {
    EXPECT_TRUE(sr::Checkpoint::exists(run)) << "a program must not start over unnoticed";
    EXPECT_ERROR(sr::Checkpoint{run}, sr::ErrorKind::usage, words);
  }

  TemporaryFolder folder_;
  fs::path run_ = folder_ / "run";
  fs::path copy_ = folder_ / "copy";
};

TEST_F(CheckpointCopy, WithoutTheLinkIsReadWithAWarning) {
  fs::remove(copied() / "latest");
  testing::internal::CaptureStderr();
  EXPECT_EQ(saved_number(copy_), 7);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "[syncrun] warning: " + (copy_ / "latest").string() +
                " does not exist. Using .syncrun-save-1, the newest complete checkpoint there\n");
  expect_goes_on(copy_, 7);
}

TEST_F(CheckpointCopy, WithoutTheLinkIsTheNewestCompleteOne) {
  fs::rename(copied() / ".syncrun-save-1", copy_ / ".syncrun-save-9");
  save_number(run_, 8);
  fs::copy(run_ / "latest/", copy_ / ".syncrun-save-10", fs::copy_options::recursive);
  fs::remove(copy_ / "latest");
  EXPECT_EQ(saved_number(copy_), 8);
  fs::remove(copy_ / ".syncrun-save-10" / "b.npy");
  expect_goes_on(copy_, 7);
}

TEST_F(CheckpointCopy, WithAFolderInPlaceOfTheLinkGoesOn) {
  fs::copy(run_, copy_, fs::copy_options::recursive);  // follows the link
  ASSERT_TRUE(fs::is_directory(fs::symlink_status(copy_ / "latest")));
  expect_goes_on(copy_, 7);
  fs::remove_all(copy_);
  fs::create_directory(copy_);
  fs::copy(run_ / "latest/", copy_ / "latest", fs::copy_options::recursive);  // the folder of the link alone
  expect_goes_on(copy_, 7);
}

TEST_F(CheckpointCopy, ThatIsIncompleteSaysWhatIsMissing) {
  fs::remove_all(copied() / ".syncrun-save-1");
  expect_refused(copy_, "latest leads to .syncrun-save-1, which does not exist. Copy the whole folder again");
  fs::create_directory(copy_ / ".syncrun-save-1");
  fs::copy(run_ / "latest" / "a.npy", copy_ / ".syncrun-save-1");
  fs::remove(copy_ / "latest");
  expect_refused(copy_, "latest does not exist; .syncrun-save-1 is incomplete: ");
}

TEST_F(CheckpointCopy, WithANewerCompleteOneThanTheLinkKeepsBothUntilTheNextSave) {
  fs::copy(run_ / "latest/", run_ / ".syncrun-save-5", fs::copy_options::recursive);
  save_number(run_, 8);
  EXPECT_TRUE(fs::exists(run_ / ".syncrun-save-5" / "manifest.txt"));
  EXPECT_EQ(saved_number(run_), 8);
  expect_goes_on(run_, 8);
}

TEST(CheckpointFolder, OfAnInterruptedFirstSaveHasNoCheckpoint) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "run");
  fs::permissions(folder / "run", fs::perms(0775));
  Child child([&] {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    ::raise(SIGSTOP);
    ::umask(077);
    save_number(folder / "run", 1);
  });
  if (WIFEXITED(child.wait())) GTEST_SKIP() << "no ptrace here";
  while (entries_in(folder / "run") < 2) ASSERT_TRUE(step(child));  // its lock, its folder
  child.end();
  EXPECT_EQ(fs::status(folder / "run/.syncrun-lock").permissions(), fs::perms(0664)) << "others may save there too";
  EXPECT_FALSE(sr::Checkpoint::exists(folder / "run"));
  save_number(folder / "run", 1);
  EXPECT_EQ(saved_number(folder / "run"), 1);
  EXPECT_EQ(entries_in(folder / "run"), 2);
}

TEST(CheckpointFolder, DoesWithoutLinks) {
  const TemporaryFolder folder;
  const std::string said = in_child([&]() -> std::string {
    has_links = false;
    for (int number = 1; number < 4; ++number) {
      save_number(folder / "run", number);
      if (!sr::Checkpoint::exists(folder / "run") || saved_number(folder / "run") != number) return "lost";
    }
    return "kept " + std::to_string(entries_in(folder / "run"));
  });
  EXPECT_EQ(said, "kept 1");
}

TEST(CheckpointFolder, ThatIsDamagedIsRefused) {
  const TemporaryFolder folder;
  const auto open = [&] { const sr::Checkpoint checkpoint(folder / "run"); };
  EXPECT_FALSE(sr::Checkpoint::exists(folder / "run"));
  EXPECT_ERROR(open(), sr::ErrorKind::usage, "there is no checkpoint in " + (folder / "run").string());
  save_number(folder / "run", 1);
  EXPECT_TRUE(sr::Checkpoint::exists(folder / "run"));
  const auto manifest = folder / "run/latest/manifest.txt";
  const std::string text = text_of(manifest);
  write_text(manifest, text.substr(0, text.size() / 2));
  EXPECT_ERROR(open(), sr::ErrorKind::usage, "is damaged: expected ");
  write_text(manifest, text);
  fs::resize_file(folder / "run/latest/a.npy", 1000);
  EXPECT_ERROR(open(), sr::ErrorKind::usage, "is damaged: ");
  fs::remove(folder / "run/latest/a.npy");
  EXPECT_ERROR(open(), sr::ErrorKind::system, "a.npy: No such file");
}

TEST(CheckpointFolder, RefusesBadNamesBeforeAnythingIsWritten) {
  const TemporaryFolder folder;
  const std::vector<float> x{1};
  EXPECT_ERROR(sr::save_checkpoint(folder / "run", {{"../x", x}}), sr::ErrorKind::usage, "a name in a checkpoint is");
  EXPECT_ERROR(sr::save_checkpoint(folder / "run", {{"x", x}, {"x", x}}), sr::ErrorKind::usage, "each name once");
  EXPECT_FALSE(fs::exists(folder / "run"));
}

}  // namespace

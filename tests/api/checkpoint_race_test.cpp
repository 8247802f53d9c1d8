// Some processes save checkpoints while others load them. A reader finds the old checkpoint or the new one, and it is
// complete.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <optional>

#include "tests/support/on_workers.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int kArrays = 4;
constexpr int kNoFilters = 77;

void save_numbered(const fs::path& folder, std::int64_t number) {
  std::vector<std::vector<std::int64_t>> values(kArrays, std::vector<std::int64_t>(64, number));
  std::vector<sr::SavedArray> arrays;
  for (int i = 0; i < kArrays; ++i) arrays.emplace_back("a" + std::to_string(i), values[static_cast<std::size_t>(i)]);
  sr::save_checkpoint(folder, arrays, {{"number", number}});
}

/// The number that every file of the checkpoint contains. Throws if the checkpoint mixes the files of two saves.
std::int64_t load_numbered(const fs::path& folder) {
  const sr::Checkpoint checkpoint(folder);
  const auto number = checkpoint.value<std::int64_t>("number");
  for (int i = 0; i < kArrays; ++i) {
    const auto values = checkpoint.array<std::int64_t, 1>("a" + std::to_string(i));
    for (const std::int64_t value : values) {
      if (value == number) continue;
      throw std::runtime_error("a checkpoint of " + std::to_string(number) + " has a file of " + std::to_string(value));
    }
  }
  return number;
}

/// A folder in memory if there is one. A save takes little time there, so reads coincide with saves most often.
/// Otherwise the folder for temporary files.
fs::path place_for_races() {
  return ::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path();
}

/// Counters that the processes share.
struct Counts {
  std::atomic<std::int64_t> saves, reads, failures;
  std::array<char, 400> first_failure;
};

/// From now on, this process has no locks of files, as on some file systems.
void refuse_locks() {
  std::array program{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_flock, 3, 0),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 3),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, F_OFD_SETLK, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOLCK),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    ::_exit(kNoFilters);
}

class CheckpointRace : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (has_locks_) return;
    const pid_t child = ::fork();
    if (child == 0) {
      refuse_locks();
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    if (status != 0) GTEST_SKIP() << "this machine has no system call filters";
  }
  /// Starts a process that repeats `round` until the time is over and there were enough saves and reads. Counts exceptions
  /// as failures.
  void start(const std::function<void()>& round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child != 0) return children_.push_back(child);
    if (!has_locks_) refuse_locks();
    const auto has_enough = [&] { return counts_.saves > 10 && counts_.reads > 10; };
    while (Clock::now() < until_ || (!has_enough() && Clock::now() < until_ + std::chrono::seconds(60))) {
      try {
        round();
      } catch (const std::exception& error) {
        if (counts_.failures++ == 0) std::snprintf(counts_.first_failure.data(), 400, "%s", error.what());
      }
    }
    ::_exit(0);
  }
  /// Saves, unless another process saves.
  void save_or_give_way(const std::function<void()>& save) {
    try {
      save();
      ++counts_.saves;
    } catch (const sr::Error& error) {
      if (error.kind() != sr::ErrorKind::usage ||
          std::string(error.what()).find("another process") == std::string::npos)
        throw;
    }
  }
  void await_ends() {
    for (const pid_t child : children_) {
      int status = -1;
      ::waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
    }
  }
  /// The duration of a race: 4 s, or what SYNCRUN_TEST_RACE_S says. The variable is for measurements.
  static std::chrono::seconds duration() {
    const char* const text = std::getenv("SYNCRUN_TEST_RACE_S");
    return std::chrono::seconds(text == nullptr ? 4 : std::atoi(text));
  }

  const bool has_locks_ = GetParam();
  TemporaryFolder folder_{place_for_races()};
  Clock::time_point until_ = Clock::now() + duration();
  Counts& counts_ =
      *new (::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Counts{};
  std::vector<pid_t> children_;
};

TEST_P(CheckpointRace, AReaderFindsTheOldOrTheNewOneWhole) {
  const fs::path run = folder_ / "run";
  save_numbered(run, 0);
  for (int saver = 0; saver < 2; ++saver) {
    start([&, number = std::int64_t{0}]() mutable { save_or_give_way([&] { save_numbered(run, ++number); }); });
  }
  for (int reader = 0; reader < 2; ++reader) {
    start([&] {
      ++counts_.reads;
      if (!sr::Checkpoint::exists(run)) throw std::runtime_error("exists() says that there is none");
      load_numbered(run);
    });
  }
  await_ends();
  std::printf("%lld saves, %lld reads, %lld failures\n", static_cast<long long>(counts_.saves),
              static_cast<long long>(counts_.reads), static_cast<long long>(counts_.failures));
  EXPECT_EQ(counts_.failures, 0) << counts_.first_failure.data();
  EXPECT_GT(counts_.saves, 10);
  EXPECT_GT(counts_.reads, 10);
  // The next save removes the folders whose removal readers have prevented.
  save_numbered(run, 1);
  int entries = 0;
  for (const auto& entry : fs::directory_iterator(run)) entries += entry.path().empty() ? 0 : 1;
  EXPECT_EQ(entries, 2) << "the link and one folder";
}

/// Repeatedly saves an array whose elements all have the same number, in a session of its own.
class NumberedSaver {
 public:
  void save(const fs::path& file) {
    if (!session_) session_.emplace(sr::SessionOptions{.processes = "1"});
    auto x = session_->data(std::vector<std::int64_t>(std::size_t{1} << 17U, ++number_));
    sr::save(file, x);
  }

 private:
  std::optional<sr::Session> session_;
  std::int64_t number_ = 0;
};

TEST_P(CheckpointRace, OneProcessAtATimeSavesToAFile) {
  const fs::path file = folder_ / "x.npy";
  NumberedSaver().save(file);
  for (int saver = 0; saver < 2; ++saver) {
    start([&, saves = std::make_shared<NumberedSaver>()] { save_or_give_way([&] { saves->save(file); }); });
  }
  start([&] {
    ++counts_.reads;
    const auto values = sr::read_npy<std::int64_t, 1>(file);
    if (values.size() != std::int64_t{1} << 17U) throw std::runtime_error("a file of another size");
    for (const std::int64_t value : values) {
      if (value != *values.begin()) throw std::runtime_error("a file that mixes two saves");
    }
  });
  await_ends();
  EXPECT_EQ(counts_.failures, 0) << counts_.first_failure.data();
  EXPECT_GT(counts_.saves, 10);
  EXPECT_GT(counts_.reads, 10);
  EXPECT_FALSE(fs::exists(folder_ / "x.npy.tmp"));
}

INSTANTIATE_TEST_SUITE_P(FileSystem, CheckpointRace, testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "WithLocks" : "WithoutLocks"; });

int opened_and_locked(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  EXPECT_EQ(::flock(fd, LOCK_SH | LOCK_NB), 0);
  return fd;
}

TEST(CheckpointFolder, ThatAReaderHasLockedIsRemovedByALaterSave) {
  const TemporaryFolder folder;
  const fs::path run = folder / "run";
  save_numbered(run, 1);
  const fs::path first = run / fs::read_symlink(run / "latest");
  const int reader = opened_and_locked(first);
  save_numbered(run, 2);
  EXPECT_EQ(load_numbered(run), 2);
  EXPECT_TRUE(fs::exists(first / "a0.npy"));
  EXPECT_TRUE(fs::exists(first / "manifest.txt"));
  ::close(reader);
  save_numbered(run, 3);
  EXPECT_FALSE(fs::exists(first));
  EXPECT_EQ(load_numbered(run), 3);
}

}  // namespace

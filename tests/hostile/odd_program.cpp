// A Syncrun program that tests start in odd environments: odd_program NAME [ARGUMENT]. Its output and its exit code
// show whether it worked.

#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <locale>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <syncrun/syncrun.hpp>
#include <vector>

namespace {

namespace sr = syncrun;
using Count = std::int64_t;

constexpr Count kMiB = Count{1} << 20;

/// The arguments of main, in the master and in the workers.
int given_count = 0;
char** given = nullptr;

Count number_of(int argc, char** argv, int index, Count otherwise) {
  return argc > index ? std::atoll(argv[index]) : otherwise;
}

sr::Sum<Count> add_up(sr::CpuWorker&, sr::Comm& comm, sr::Scattered<const std::int8_t, 1> rows) {
  comm.barrier();
  return std::accumulate(rows.begin(), rows.end(), Count{0});
}

Count sum_of_ones(sr::Session& session, Count bytes) {
  auto data = session.data<std::int8_t, 1>({bytes});
  data.fill(1);
  return session.function(add_up)(data).value();
}

/// add [BYTES]: adds up this many ones in shared memory.
void add(sr::Session& session, int argc, char** argv) {
  const Count bytes = number_of(argc, argv, 2, kMiB);
  std::printf("%d workers add up %lld\n", session.world_size(), static_cast<long long>(sum_of_ones(session, bytes)));
}

/// want MIB...: does the same for each size, and prints errors.
void want(sr::Session& session, int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    try {
      std::printf("%lld\n", static_cast<long long>(sum_of_ones(session, std::atoll(argv[i]) * kMiB)));
    } catch (const sr::Error& error) {
      std::printf("%s: %s\n", std::string(to_string(error.kind())).c_str(), error.what());
    }
  }
}

/// want-results MIB...: does the same for results, which are stored in the master's own memory.
void want_results(sr::Session& session, int argc, char** argv) {
  const auto f = session.function(
      +[](sr::CpuWorker& worker, Count bytes) { return sr::Sum<std::int8_t, 1>(worker, {bytes}); }, "f");
  for (int i = 2; i < argc; ++i) {
    try {
      std::printf("%lld\n", static_cast<long long>(f(std::atoll(argv[i]) * kMiB).rows()));
    } catch (const std::exception& error) {
      std::printf("%s\n", error.what());
    }
  }
}

std::uint64_t mixed(std::uint64_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<std::uint8_t>(c)) * 1099511628211U;
  return (hash ^ text.size()) * 1099511628211U;
}

std::uint64_t hash_of_arguments() {
  std::uint64_t hash = static_cast<std::uint64_t>(given_count);
  for (int i = 0; i < given_count; ++i) hash = mixed(hash, given[i]);
  return hash;
}

/// Hashes only the variables of the test, because those of Syncrun differ.
std::uint64_t hash_of_environment() {
  std::uint64_t hash = 0;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::string_view(*variable).starts_with("ODD_")) hash += mixed(1, *variable);
  }
  return hash;
}

struct Hashes {
  sr::Sum<Count> has_arguments;
  sr::Sum<Count> has_environment;
};

Hashes compare(std::uint64_t arguments, std::uint64_t environment) {
  return {arguments == hash_of_arguments() ? 1 : 0, environment == hash_of_environment() ? 1 : 0};
}

/// inherit ...: prints on how many workers the arguments and the environment equal those of the master.
void inherit(sr::Session& session) {
  const Hashes same = session.function(compare)(hash_of_arguments(), hash_of_environment());
  Count bytes = 0;
  for (int i = 0; i < given_count; ++i) bytes += static_cast<Count>(std::strlen(given[i])) + 1;
  std::printf("%d arguments of %lld bytes; the same on %lld, environment the same on %lld\n", given_count,
              static_cast<long long>(bytes), static_cast<long long>(same.has_arguments.value()),
              static_cast<long long>(same.has_environment.value()));
}

/// The standard streams of this process, for example "0 pipe:[17] 1 /dev/null 2 closed".
std::string standard_streams() {
  std::string text;
  for (int fd = 0; fd <= 2; ++fd) {
    std::array<char, 4096> target{};
    const std::string name = std::to_string(fd);
    const std::string path = std::string("/proc/self/fd/") + name;
    const bool is_open = ::readlink(path.c_str(), target.data(), target.size() - 1) > 0;
    text.append(name).append(" ").append(is_open ? target.data() : "closed").append(fd == 2 ? "" : " ");
  }
  return text;
}

void say_streams(sr::CpuWorker& worker, std::array<char, 1024> file) {
  std::ofstream(std::string(file.data()) + "." + std::to_string(worker.rank())) << standard_streams() << '\n';
  std::printf("a line from rank %d\n", worker.rank());
  std::fprintf(stderr, "an error line from rank %d\n", worker.rank());
}

/// streams FILE: writes the standard streams of the master to FILE and those of each worker to FILE.RANK. Also prints
/// lines.
void streams(sr::Session& session, int, char** argv) {
  std::array<char, 1024> file{};
  std::strncpy(file.data(), argv[2], file.size() - 1);
  std::printf("a line from the master\n");
  session.function(say_streams)(file);
  const Count sum = sum_of_ones(session, kMiB);
  std::ofstream(argv[2]) << standard_streams() << '\n' << sum << '\n';
}

/// Waits for the file, for about 60 s at most, so that the program ends even if the test has given up.
void await_file(const char* file) {
  for (int round = 0; round < 30'000 && ::access(file, F_OK) != 0; ++round) ::usleep(2000);
}

/// hold FILE: puts a secret into shared memory, prints "ready" and the pids, and waits for the file.
void hold(sr::Session& session, int, char** argv) {
  constexpr std::string_view kSecret = "the secret of this session";
  auto data = session.data<std::int8_t, 1>({4096});
  std::copy(kSecret.begin(), kSecret.end(), data.write().begin());
  std::printf("ready %d", ::getpid());
  for (const int pid : session.worker_pids()) std::printf(" %d", pid);
  std::printf("\n");
  std::fflush(stdout);
  await_file(argv[2]);
  std::printf("%lld\n", static_cast<long long>(sum_of_ones(session, kMiB)));
}

/// break-a-pipe: writes to a broken pipe that is not its standard output, and dies of SIGPIPE.
void break_a_pipe(sr::Session&) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0 || ::close(ends[0]) != 0) return;
  static_cast<void>(!::write(ends[1], "x", 1));
}

/// locale: follows the locale of the environment in its text. Prints half as this locale writes it, and the sum.
void follow_locale(sr::Session& session) {
  const auto f = session.function(add_up, "not \xff UTF-8");
  auto data = session.data<std::int8_t, 1>({kMiB});
  data.fill(1);
  std::printf("%.1f %lld\n", 0.5, static_cast<long long>(f(data).value()));
}

Count count_input() {
  std::array<char, 64> bytes{};
  return std::max<Count>(::read(STDIN_FILENO, bytes.data(), bytes.size()), 0);
}

/// read-input: prints how many bytes the workers and a task read from their standard input.
void read_input(sr::Session& session, int, char**) {
  const auto f = session.function(
      +[]() -> sr::Sum<Count> { return count_input(); }, "read");
  const auto workers = f().value();
  auto task = sr::task(+[] { return count_input(); }, {.name = "reader"});
  std::printf("%lld and %lld bytes\n", static_cast<long long>(workers), static_cast<long long>(task.get()));
}

void die_on_rank_1(sr::CpuWorker& worker, sr::Comm& comm, int signal) {
  if (worker.rank() == 1) {
    std::fprintf(stderr, "half a line");
    std::raise(signal);
  }
  comm.barrier();
}

/// die SIGNAL [MIB]: fills shared memory. Then rank 1 dies of the signal, in the middle of a line.
void die(sr::Session& session, int argc, char** argv) {
  auto data = session.data<std::int8_t, 1>({number_of(argc, argv, 3, 1) * kMiB});
  data.fill(1);
  session.function(die_on_rank_1)(std::atoi(argv[2]));
}

Count fill_privately(Count mib) {
  const std::vector<char> bytes(static_cast<std::size_t>(mib * kMiB), 'x');
  return bytes[static_cast<std::size_t>(std::rand()) % bytes.size()];
}

/// fill SHARED PRIVATE [who]: fills this many MiB of shared memory in the master, then of private memory in rank 1, or in
/// the master.
void fill(sr::Session& session, int argc, char** argv) {
  auto data = session.data<std::int8_t, 1>({number_of(argc, argv, 2, 0) * kMiB});
  data.fill(1);
  const Count mib = number_of(argc, argv, 3, 0);
  if (argc > 4) fill_privately(mib);
  session.function(
      +[](sr::CpuWorker& worker, Count wanted) {
        if (worker.rank() == 1) fill_privately(wanted);
      },
      "fill")(mib);
}

void print_lines(sr::CpuWorker& worker, Count lines) {
  for (Count i = 0; i < lines; ++i) std::printf("line %lld of rank %d\n", static_cast<long long>(i), worker.rank());
}

/// print LINES: each worker prints this many lines. Then the program fails.
void print(sr::Session& session, int argc, char** argv) {
  session.function(print_lines)(number_of(argc, argv, 2, 1));
  throw std::runtime_error("the program fails");
}

/// privileged: prints whether the program has more privileges than the user who started it.
int say_privileged() {
  std::puts(::getauxval(AT_SECURE) != 0 ? "yes" : "no");
  return 0;
}

/// print-variables: what a program sees after the beginning of its main().
int print_variables() { return std::system("env"); }

/// nest: the master, and then each worker, starts such a program.
void nest(sr::Session& session) {
  constexpr const char* kCommand = "SYNCRUN_LOG_SIZE=7K /proc/$PPID/exe print-variables";
  static_cast<void>(std::system(kCommand));
  session.function([](sr::CpuWorker&) { static_cast<void>(std::system(kCommand)); }, "nest")();
}

/// late FILE: prints "ready", and opens its session when the file exists.
int late(int argc, char** argv) {
  std::printf("ready\n");
  std::fflush(stdout);
  await_file(argv[2]);
  return sr::run(argc, argv, [](sr::Session& session) {
    std::printf("%lld\n", static_cast<long long>(sum_of_ones(session, kMiB)));
  });
}

}  // namespace

int main(int argc, char** argv) {
  given_count = argc;
  given = argv;
  const std::string_view name = argc > 1 ? argv[1] : "add";
  if (name == "locale") {
    std::setlocale(LC_ALL, "");
    std::locale::global(std::locale(""));
  }
  if (const auto code = sr::serve_if_worker(argc, argv)) return *code;
  if (name == "add") return sr::run(argc, argv, add);
  if (name == "want") return sr::run(argc, argv, want);
  if (name == "want-results") return sr::run(argc, argv, want_results);
  if (name == "inherit") return sr::run(argc, argv, inherit);
  if (name == "streams") return sr::run(argc, argv, streams);
  if (name == "read-input") return sr::run(argc, argv, read_input);
  if (name == "die") return sr::run(argc, argv, die);
  if (name == "fill") return sr::run(argc, argv, fill);
  if (name == "print") return sr::run(argc, argv, print);
  if (name == "late") return late(argc, argv);
  if (name == "break-a-pipe") return sr::run(argc, argv, break_a_pipe);
  if (name == "locale") return sr::run(argc, argv, follow_locale);
  if (name == "privileged") return say_privileged();
  if (name == "print-variables") return print_variables();
  if (name == "nest") return sr::run(argc, argv, nest);
  if (name == "hold") return sr::run(argc, argv, hold);
  std::fprintf(stderr, "no program '%.*s'\n", static_cast<int>(name.size()), name.data());
  return 2;
}

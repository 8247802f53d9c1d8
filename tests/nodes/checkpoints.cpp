#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "tests/nodes/actions.hpp"

namespace syncrun::test {

namespace {

constexpr std::int64_t kWidth = 3;

template <class T>
std::vector<T> counted(std::int64_t count, int number) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<T>(i % 1000 + static_cast<std::size_t>(number));
  return values;
}

/// A std::vector<bool> does not contain an array of bool.
std::unique_ptr<bool[]> flags_of(std::int64_t count, int number) {
  auto flags = std::make_unique<bool[]>(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) flags[static_cast<std::size_t>(i)] = (i + number) % 3 == 0;
  return flags;
}

/// Writes beyond this size of a file fail, as on a full disk. Only the error number differs.
void limit_files(CpuWorker&, std::int64_t bytes) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

/// Changes the copy of the last rank.
void change_last(CpuWorker& worker, Local<float, 1> weights) {
  if (worker.rank() == worker.world_size() - 1) weights(weights.rows() - 1) = -1;
}

constexpr std::int64_t kFlags = 101;
constexpr std::int64_t kWeights = 1 << 20;  // so many that each of three nodes writes a part

/// How many rows of its own a rank has.
std::int64_t own_rows(int rank) { return 2 * (rank % 4); }

/// Saves replicated and scattered variables, and values, which all contain `number`. The largest array has about
/// `megabytes` MiB. Announces when everything is ready to be saved, and when it was saved.
void save_numbers(Session& session, const std::string& folder, int number, int megabytes) {
  const std::int64_t row_count = (std::int64_t{megabytes} << 20U) / (kWidth * 4) + 7;
  const auto params = session.shared("params", counted<double>(5, number));
  const auto weights = session.shared("weights", counted<float>(kWeights, number));
  auto rows = session.shared<float, 2>("rows");
  rows.scatter(counted<float>(row_count * kWidth, number), {row_count, kWidth});
  auto few = session.shared<std::int64_t, 1>("few");  // all on the first node if it has two ranks
  few.scatter(counted<std::int64_t>(2, number));
  auto flags = session.shared<bool, 1>("flags");
  const auto flag_values = flags_of(kFlags, number);
  flags.scatter(std::span<const bool>(flag_values.get(), kFlags));
  auto own = session.shared<std::int32_t, 1>("own");  // each rank has another number of rows
  std::int64_t own_count = 0;
  for (int rank = 0; rank < session.world_size(); ++rank) {
    own.set(rank, std::vector<std::int32_t>(static_cast<std::size_t>(own_rows(rank)), rank + number));
    own_count += own_rows(rank);
  }
  announce("ready to save");
  save_checkpoint(folder,
                  {{"params", params},
                   {"rows", rows, Placement::scattered},
                   {"few", few, Placement::scattered},
                   {"flags", flags, Placement::scattered},
                   {"own", own, Placement::scattered},
                   {"weights", weights}},
                  {{"number", number}, {"rows", row_count}, {"ranks", session.world_size()}, {"own", own_count}});
  announce("saved");
}

/// Loads them in the same way. Prints the number.
void load_numbers(Session& session, const std::string& folder) {
  const Checkpoint checkpoint(folder);
  const int number = checkpoint.value<int>("number");
  const auto row_count = checkpoint.value<std::int64_t>("rows");
  auto params = session.shared<double, 1>("params");
  auto weights = session.shared<float, 1>("weights");
  auto rows = session.shared<float, 2>("rows");
  auto few = session.shared<std::int64_t, 1>("few");
  auto flags = session.shared<bool, 1>("flags");
  auto own = session.shared<std::int32_t, 1>("own");
  own.scatter(std::vector<std::int32_t>(static_cast<std::size_t>(checkpoint.value<std::int64_t>("own"))));
  announce("ready to load");
  checkpoint.load(
      {{"params", params}, {"rows", rows}, {"few", few}, {"flags", flags}, {"own", own}, {"weights", weights}});
  announce("loaded");
  const int last = session.world_size() - 1;
  require(params.get(last).to_vector() == counted<double>(5, number), "a replicated variable");
  require(weights.get(last).to_vector() == counted<float>(kWeights, number), "a large replicated variable");
  require(checkpoint.array<float, 1>("weights").to_vector() == counted<float>(kWeights, number),
          "the same in one array");
  const auto row_values = counted<float>(row_count * kWidth, number);
  require(rows.gather().to_vector() == row_values, "the rows");
  require(checkpoint.array<float, 2>("rows").to_vector() == row_values, "the rows in one array");
  const auto lengths = rows.lengths();
  for (int rank = 0; rank <= last; ++rank) {
    const std::int64_t most = row_count / session.world_size() + 1;
    require(lengths[static_cast<std::size_t>(rank)] <= most, "the rows are divided evenly");
  }
  require(few.gather().to_vector() == counted<std::int64_t>(2, number), "few rows");
  const auto flag_values = flags_of(kFlags, number);
  const auto loaded = flags.gather();
  for (std::int64_t i = 0; i < kFlags; ++i) require(loaded(i) == flag_values[static_cast<std::size_t>(i)], "the flags");
  std::vector<std::int32_t> own_values;
  for (int rank = 0; rank < checkpoint.value<int>("ranks"); ++rank)
    own_values.insert(own_values.end(), static_cast<std::size_t>(own_rows(rank)), rank + number);
  require(own.gather().to_vector() == own_values, "rows in other numbers");
  std::printf("as expected: number %d\n", number);
}

/// Saves only variables whose copies should be equal, twice.
void save_replicated(Session& session, const std::string& folder, int number, std::int64_t megabytes, bool are_equal) {
  auto weights = session.shared("weights", counted<float>(megabytes << 18U, number));
  if (!are_equal) session.function(change_last, "change_last")(weights);
  const auto few = session.shared("few", counted<double>(5, number));
  for (int save = 0; save < 2; ++save) {
    announce("ready to save");
    const auto began = std::chrono::steady_clock::now();
    save_checkpoint(folder, {{"weights", weights}, {"few", few}}, {{"number", number}});
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    announce(("saved in " + std::to_string(took.count()) + " s").c_str());
  }
}

void load_replicated(Session& session, const std::string& folder) {
  const Checkpoint checkpoint(folder);
  const int number = checkpoint.value<int>("number");
  auto weights = session.shared<float, 1>("weights");
  checkpoint.load({{"weights", weights}});
  const auto values = weights.get(session.world_size() - 1).to_vector();
  require(values == counted<float>(static_cast<std::int64_t>(values.size()), number), "rank 0's copy");
  std::printf("as expected: number %d\n", number);
}

}  // namespace

bool run_checkpoints(Session& session, const std::string& action, const Words& words) {
  if (action == "save") {
    save_numbers(session, words.at(0), std::stoi(words.at(1)), std::stoi(words.at(2)));
  } else if (action == "save-limited") {  // the last rank cannot write large files
    session.function(limit_files, "limit_files").on_rank(session.world_size() - 1)(std::int64_t{100'000});
    save_numbers(session, words.at(0), std::stoi(words.at(1)), std::stoi(words.at(2)));
  } else if (action == "save-again") {  // until something ends the job
    for (int save = 1;; ++save) save_numbers(session, words.at(0), save, std::stoi(words.at(1)));
  } else if (action == "save-replicated") {
    const bool are_equal = words.size() < 4 || words[3] != "other copies";
    save_replicated(session, words.at(0), std::stoi(words.at(1)), std::stoi(words.at(2)), are_equal);
  } else if (action == "load-replicated") {
    load_replicated(session, words.at(0));
  } else if (action == "load") {
    load_numbers(session, words.at(0));
  } else {
    return false;
  }
  return true;
}

}  // namespace syncrun::test

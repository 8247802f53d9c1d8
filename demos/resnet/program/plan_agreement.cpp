#include "demos/resnet/program/plan_agreement.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <set>
#include <stdexcept>
#include <utility>

#include "demos/common/usage_error.hpp"

namespace resnet {
namespace {

using demos::UsageError;
namespace fs = std::filesystem;

constexpr std::size_t kLargestFile = std::size_t{16} << 20;

using LargestFirst = std::set<std::int64_t, std::greater<>>;

/// Adds the lengths of the parts when `whole` is divided as evenly as possible. Leaves out parts of length 0.
void add_parts(LargestFirst& lengths, std::int64_t whole, std::int64_t parts) {
  const std::int64_t each = whole / parts;
  if (each > 0) lengths.insert(each);
  if (whole % parts > 0) lengths.insert(each + 1);
}

void add_slices(LargestFirst& lengths, int ranks, const Division& division) {
  LargestFirst shares;
  add_parts(shares, division.rows, ranks);
  for (const std::int64_t share : shares) add_parts(lengths, share, division.slices);
}

template <std::size_t N>
std::array<std::int64_t, N> first_of(const LargestFirst& lengths) {
  if (lengths.size() > N) throw std::logic_error("more numbers of rows than a run has");
  std::array<std::int64_t, N> values{};
  std::copy(lengths.begin(), lengths.end(), values.begin());
  return values;
}

/// Ranks that have another kind of GPU than rank 0.
std::vector<std::pair<int, PlanPlace>> other_places(PlanRanks& ranks, const PlanPlace& first) {
  std::vector<std::pair<int, PlanPlace>> others;
  for (int rank = 1; rank < ranks.count(); ++rank) {
    if (PlanPlace place = ranks.place_of(rank); !(place == first)) others.emplace_back(rank, std::move(place));
  }
  return others;
}

/// Throws UsageError if the file of --plans does not fit. The user has named this file, so a run with other plans would
/// not be the run that the user asked for.
void check_file(const PlanSources& sources, const PlanPlace& here,
                const std::vector<std::pair<int, PlanPlace>>& others) {
  if (sources.file.empty()) return;
  if (!others.empty()) {
    throw UsageError("--plans: expected the same GPU and versions on all ranks, got rank 0 with " + describe(here) +
                     " and rank " + std::to_string(others.front().first) + " with " + describe(others.front().second));
  }
  if (!sources.in_file || sources.in_file->place() == here) return;
  throw UsageError("--plans: expected plans for " + describe(here) + ", got those for " +
                   describe(sources.in_file->place()) + " in " + sources.file.string() +
                   " (a file that does not exist is written anew)");
}

/// Adds the plans of the checkpoint that can be used to `known`. Notes what does not fit.
void add_checkpoint(const PlanSources& sources, ConvPlans& known, std::vector<std::string>& notes) {
  if (sources.checkpoint.empty()) return;
  const std::string where = "the checkpoint in " + sources.checkpoint.string();
  if (!sources.in_checkpoint) {
    notes.push_back("cuDNN plans: " + where + " has none, so that roundings may differ from here on");
    return;
  }
  const ConvPlans& saved = *sources.in_checkpoint;
  if (!(saved.place() == known.place())) {
    notes.push_back("cuDNN plans: those of " + where + " are for " + describe(saved.place()) + ", and this is " +
                    describe(known.place()) + ": they are not used, and roundings differ from here on");
    return;
  }
  const std::size_t other = count_differences(known, saved);
  if (other > 0) {
    notes.push_back("cuDNN plans: " + std::to_string(other) + " of " + sources.file.string() + " are not those of " +
                    where + ": the file's are used, and roundings may differ from here on");
  }
  known.fill_from(saved);
}

/// A text that says how many plans came from each source.
std::string summary(const PlanSources& sources, std::size_t from_file, std::size_t known, std::size_t all) {
  std::string text = "cuDNN plans: ";
  if (sources.in_file) text += std::to_string(from_file) + " from " + sources.file.string() + ", ";
  if (sources.in_checkpoint)
    text += std::to_string(known - from_file) + " from the checkpoint in " + sources.checkpoint.string() + ", ";
  text += std::to_string(all - known) + " chosen by timing";
  if (!sources.file.empty() && all != from_file) text += "; " + sources.file.string() + " has all of them now";
  return text;
}

/// An open file, which the destructor closes.
class OpenFile {
 public:
  OpenFile(const fs::path& file, int flags) : descriptor_(::open(file.c_str(), flags | O_CLOEXEC, 0666)) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() { static_cast<void>(close()); }

  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  bool close() { return descriptor_ < 0 || ::close(std::exchange(descriptor_, -1)) == 0; }

 private:
  int descriptor_;
};

std::string reason(int error) { return std::strerror(error); }
std::string quoted_reason(int error) { return std::string("'").append(reason(error)).append("'"); }

[[noreturn]] void refuse(const fs::path& file, const std::string& expected, const std::string& got) {
  throw UsageError("--plans: expected " + expected + ", got " + got + " at " + file.string());
}

std::string text_of(const OpenFile& open, const fs::path& file) {
  std::string text;
  std::array<char, 65536> block{};
  while (text.size() <= kLargestFile) {
    const ssize_t got = ::read(open.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(file, "a file that can be read", quoted_reason(errno));
    if (got == 0) return text;
    text.append(block.data(), static_cast<std::size_t>(got));
  }
  refuse(file, "a list of plans", "more than " + std::to_string(kLargestFile >> 20) + " MiB");
}

/// Writes all of `text`, and waits until it is on the disk.
bool write_all(OpenFile& open, std::string_view text) {
  while (!text.empty()) {
    const ssize_t done = ::write(open.get(), text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(done));
  }
  return ::fsync(open.get()) == 0 && open.close();
}

}  // namespace

PassRows rows_of_passes(int ranks, const std::vector<Division>& steps, const std::optional<Division>& evaluation) {
  LargestFirst training;
  for (const Division& step : steps) add_slices(training, ranks, step);
  LargestFirst evaluated;
  if (evaluation) add_slices(evaluated, ranks, *evaluation);
  return {first_of<8>(training), first_of<4>(evaluated)};
}

AgreedPlans agree_on_plans(PlanRanks& ranks, const PlanSources& sources) {
  AgreedPlans agreed{ConvPlans(ranks.place_of(0)), {}};
  const PlanPlace here = agreed.plans.place();
  const auto others = other_places(ranks, here);
  check_file(sources, here, others);
  for (const auto& [rank, place] : others) {
    agreed.notes.push_back("cuDNN plans: rank " + std::to_string(rank) + " has " + describe(place) + ", and rank 0 " +
                           describe(here) + ": it chooses its own");
  }
  if (sources.in_file) agreed.plans.fill_from(*sources.in_file);
  const std::size_t from_file = agreed.plans.size();
  add_checkpoint(sources, agreed.plans, agreed.notes);
  const std::size_t known = agreed.plans.size();
  agreed.plans = ranks.choose(agreed.plans);
  if (!sources.file.empty() || sources.in_checkpoint)
    agreed.notes.push_back(summary(sources, from_file, known, agreed.plans.size()));
  ranks.adopt(agreed.plans);
  return agreed;
}

std::optional<ConvPlans> read_plans(const fs::path& file) {
  const OpenFile open(file, O_RDONLY | O_NONBLOCK | O_NOCTTY);  // does not wait if this is a FIFO without a writer
  if (!open.is_open() && errno == ENOENT) {
    const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
    if (std::error_code ignored; fs::is_directory(folder, ignored)) return std::nullopt;
    refuse(file, "a file in a folder that is there", "no such folder");
  }
  if (!open.is_open()) refuse(file, "a file that can be read", quoted_reason(errno));
  struct stat status {};
  if (::fstat(open.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    refuse(file, "a regular file, or none yet", S_ISDIR(status.st_mode) ? "a folder" : "something else");
  }
  try {
    return ConvPlans::parse(text_of(open, file));
  } catch (const PlansError& error) {
    throw UsageError("--plans: " + file.string() + ", " + error.what());
  }
}

void write_plans(const fs::path& file, const ConvPlans& plans) {
  fs::path beside = file;
  beside += std::string(".").append(std::to_string(::getpid())).append(".tmp");  // other runs may write the same list
  const auto fail = [&](int error) {
    static_cast<void>(::unlink(beside.c_str()));
    throw std::runtime_error("--plans: cannot write " + file.string() + ": " + reason(error));
  };
  OpenFile open(beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (!open.is_open()) fail(errno);
  if (!write_all(open, plans.text())) fail(errno);
  if (::rename(beside.c_str(), file.c_str()) != 0) fail(errno);
}

}  // namespace resnet

#include "master/command_line/foreign_options.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <utility>
#include <vector>

namespace syncrun::detail::master::command_line {

namespace {

/// Options of mpirun, srun and torchrun with the meaning of one of ours.
constexpr std::array kAliases{
    Alias{"np", "nproc-per-node"}, Alias{"nnodes", "nodes"}, Alias{"standalone", nullptr},
    Alias{"no-python", nullptr},   Alias{"wdir", "cwd"},     Alias{"chdir", "cwd"},
    Alias{"tag-output", "tag"},    Alias{"label", "tag"},    Alias{"timestamp-output", "timestamps"},
};

/// Options of mpirun, srun, torchrun and the like that users try here, and what to do in Syncrun.
struct ForeignOption {
  std::string_view name;  // in small letters, with '-' for '_'
  std::string_view advice;
};
constexpr std::string_view kWorkersAdvice = "write -n N for the number of workers on this machine";
constexpr std::string_view kNodesAdvice =
    "on several machines, an engine starts syncrun: srun -N NODES --mpi=pmix syncrun program, or mpirun -H HOSTS "
    "--map-by "
    "ppr:1:node --bind-to none syncrun program";
constexpr std::string_view kBindingAdvice =
    "leave it out: syncrun binds workers by itself, and --bind-to says to what. (It is an option of mpirun or srun, "
    "which "
    "stands before syncrun)";
constexpr std::string_view kMeetingAdvice = "leave it out: the workers of a job find each other by themselves";
constexpr auto kForeignOptions = std::to_array<ForeignOption>({
    {"-np", kWorkersAdvice},  // -np2
    {"-c", kWorkersAdvice},
    {"--n", kWorkersAdvice},
    {"--ntasks", kWorkersAdvice},
    {"--ntasks-per-node", kWorkersAdvice},
    {"--num-processes", kWorkersAdvice},
    {"--num-gpus", "write -n N or -n gpu for the GPUs of this machine"},
    {"--gpus", "write -n N or -n gpu for the GPUs of this machine"},
    {"--gpus-per-node", "write -n N or -n gpu for the GPUs of this machine"},
    {"--cpu", "write -n cpu, or name the devices: --devices cpu0,cpu1"},
    {"--num-nodes", kNodesAdvice},
    {"-h", kNodesAdvice},
    {"--host", kNodesAdvice},
    {"--hosts", kNodesAdvice},
    {"-hosts", kNodesAdvice},
    {"--hostfile", kNodesAdvice},
    {"-hostfile", kNodesAdvice},
    {"--machinefile", kNodesAdvice},
    {"-machinefile", kNodesAdvice},
    {"-bind-to", "write --bind-to with two dashes"},
    {"--map-by", kBindingAdvice},
    {"--cpu-bind", kBindingAdvice},
    {"--cpus-per-task", kBindingAdvice},
    {"--redirects", "write --redirect RANKS --log-dir DIR; both streams of a rank go to one file"},
    {"-r", "write --redirect RANKS --log-dir DIR; both streams of a rank go to one file"},
    {"-t", "write --tee RANKS --log-dir DIR; both streams of a rank go to one file"},
    {"--local-ranks-filter", "write --only-rank RANKS"},
    {"--output-filename", "write --log-dir DIR"},
    {"-l", "leave it out: each line begins with its rank, unless --no-tag is given"},
    {"--node-rank", kMeetingAdvice},
    {"--master-addr", kMeetingAdvice},
    {"--master-port", kMeetingAdvice},
    {"--rdzv-backend", kMeetingAdvice},
    {"--rdzv-endpoint", kMeetingAdvice},
    {"--rdzv-id", kMeetingAdvice},
    {"--oversubscribe", "leave it out: -n may be larger than the number of cores"},
});

/// How many letters to insert, remove or replace to get from one word to the other.
std::size_t distance_of(std::string_view one, std::string_view other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < one.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < other.size(); ++j) {
      const std::size_t replaced = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

/// The word that is written almost like this one. Empty if there is none.
std::string nearest(std::string_view name, std::span<const std::string_view> own) {
  constexpr std::size_t kMostLetters = 3;
  std::string found;
  std::size_t least = kMostLetters;
  for (const std::string_view each : own) {
    const std::string candidate = "--" + std::string(each);
    const std::size_t distance = distance_of(name, candidate);
    if (distance >= least || distance > candidate.size() / 3) continue;
    least = distance;
    found = candidate;
  }
  return found;
}

}  // namespace

std::span<const Alias> aliases() noexcept { return kAliases; }

std::string own_spelling(std::string_view word) {
  for (const std::string_view one_dash : {"-np", "-wdir", "-tag-output", "-timestamp-output"}) {
    if (word == one_dash) return "-" + std::string(word);
  }
  std::string spelled(word);
  if (!word.starts_with("--")) return spelled;
  std::replace(spelled.begin(), spelled.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size())),
               '_', '-');
  return spelled;
}

std::string advice_on_option(const std::string& word, std::span<const std::string_view> own) {
  std::string name = word.substr(0, word.find('='));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return letter == '_' ? '-' : static_cast<char>(std::tolower(letter)); });
  const auto found = std::find_if(kForeignOptions.begin(), kForeignOptions.end(),
                                  [&](const ForeignOption& each) { return each.name == name; });
  if (found != kForeignOptions.end()) return std::string(found->advice);
  if (!name.starts_with("--")) return {};
  const std::string almost = nearest(name, own);
  return almost.empty() ? std::string() : "did you mean " + almost + "?";
}

}  // namespace syncrun::detail::master::command_line

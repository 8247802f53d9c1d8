#include "master/command_line/help_topics.hpp"

#include <algorithm>
#include <array>
#include <filesystem>

#include "common/text/errors.hpp"
#include "common/text/joined.hpp"
#include "master/command_line/option_table.hpp"

namespace syncrun::detail::master::command_line {

const std::string_view kExitCodes =
    R"(The exit code is the program's; 128+N after signal N; 2: bad options; 125: not a Syncrun program, or
it became a daemon; 126: the program cannot be executed; 127: it was not found.
)";

namespace {

/// The variables through which options reach the program.
std::string variables_of_options() {
  std::size_t longest = 0;
  for (const OptionRow& row : option_table()) {
    if (row.variable != nullptr) longest = std::max(longest, std::string_view(row.variable).size());
  }
  std::string text;
  for (const OptionRow& row : option_table()) {
    if (row.variable == nullptr) continue;
    std::string line = std::string("  ") + row.variable;
    line.resize(longest + 4, ' ');
    text += line + "--" + row.name + '\n';
  }
  return text;
}

constexpr std::array kTopics{
    HelpTopic{"debugging",
              R"(A short deadline finds out where a program hangs. The error says which rank hangs, in which function,
and where the others wait:

  syncrun --timeout 10 ./program

If no error comes, your own code in the master hangs. A running job can be looked at: syncrun top, syncrun
stacks, syncrun attach RANK. If several jobs run, --pid chooses one.
Workers can run under another command, which shows where one crashes. A command that needs a terminal gets one:

  syncrun --wrap '2:gdb -batch -ex run -ex bt --args' ./program
  syncrun --wrap '*:valgrind' ./program
  syncrun --wrap '0:gdb --args' --wrap-terminal tmux ./program
)",
              "docs/api/command-line.md", nullptr},
    HelpTopic{"devices",
              R"(One worker computes on each device. cpu0, cpu1, ... are CPU workers, and cuda0, cuda1, ... are GPUs.
The rank of a worker is the place of its device in the list, from 0.

  syncrun -n 4 ./program                     four GPUs, or four CPU workers if no GPU is visible
  syncrun -n cpu ./program                   one CPU worker for each core
  syncrun --devices cuda1,cpu0 ./program     rank 0 on cuda1, rank 1 on cpu0
  syncrun --devices a=cuda0,b=cpu0 ./program names for session.device("a")

--dry-run shows the devices and starts nothing. --bind-to says which cores workers may use, and
--report-bindings prints which they have. syncrun doctor checks and measures the devices.
)",
              "docs/api/command-line.md", nullptr},
    HelpTopic{"environment",
              R"(An option reaches the program in a variable. You may set the variable yourself. If both are given, the
option wins. Both override what the program sets in its SessionOptions.

)",
              "docs/api/command-line.md", variables_of_options},
    HelpTopic{"exit-codes",
              R"(If the job fails, the last message on standard error is the reason. After --max-restarts, the exit code
and the message are those of the last attempt.
)",
              "docs/api/command-line.md", [] { return '\n' + std::string(kExitCodes); }},
    HelpTopic{"failures",
              R"(If a worker throws an exception, dies or hangs, the master gets an exception that names the worker. If
the program does not catch it, the job ends, and the last message on standard error is the reason.

No process of the job outlives syncrun. --error-file FILE writes the reason as JSON, for scripts.
)",
              "docs/failures.md", nullptr},
    HelpTopic{"nodes",
              R"(syncrun starts an engine, which starts the nodes. All nodes need the same program and the same Syncrun.

  syncrun --launcher srun --nodes 4 -n 8 ./program      Slurm, also in an allocation
  syncrun --hosts a,b,c,d -n 8 ./program                mpirun of Open MPI or MPICH

-n and --devices are per node. --dry-run prints the engine's command. --max-restarts 3 --spares 1 starts a
failed job again, with a spare host in the place of a lost one.
)",
              "docs/nodes.md", nullptr},
    HelpTopic{
        "output",
        R"(Lines of a worker are printed with its rank in front. --no-tag leaves the rank out, --timestamps adds the
time, and --only-rank 0 shows one rank. --log-dir DIR also writes the output of each worker to a file in DIR,
with every byte and without the rank.

At the start, syncrun prints which rank is on which device. --quiet turns these lines off.
--profile FILE writes a table of where the time of calls went, --trace FILE a trace of all calls, and
--metrics FILE metrics for Prometheus.
)",
        "docs/failures.md", nullptr},
};

/// The page below the folder in which Syncrun's pages were installed together with this command. If they are not there,
/// it is a page of the sources.
std::string place_of(std::string_view page) {
  std::error_code error;
  const auto command = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto installed = command.parent_path().parent_path() / "share/doc/syncrun" / page;
  if (!error && std::filesystem::exists(installed, error)) return installed.string();
  return std::string(page) + " in the sources of Syncrun";
}

}  // namespace

std::span<const HelpTopic> help_topics() noexcept { return kTopics; }

std::string names_of_topics() { return text::joined(kTopics, ", ", &HelpTopic::name); }

std::string help_on_topic(std::string_view name) {
  const auto found = std::ranges::find(kTopics, name, &HelpTopic::name);
  if (found == kTopics.end()) {
    text::throw_usage("syncrun help: expected one of " + names_of_topics() + "; got '" + std::string(name) + "'");
  }
  std::string text(found->text);
  if (found->list != nullptr) text += found->list();
  return text + "\nMore: " + place_of(found->page) + '\n';
}

}  // namespace syncrun::detail::master::command_line

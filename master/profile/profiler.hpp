#pragma once

// Collects the times of calls for a profile, and writes them to a trace at once.
//
//   worker: phase, phase, ..., idle --Timeline--> master: sums per call --> histograms per function and rank
//                                                                       --> spans of a trace

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/os/segment.hpp"
#include "common/protocol/control_block.hpp"
#include "common/protocol/timeline.hpp"
#include "master/process/output_file.hpp"
#include "master/profile/profile_json.hpp"
#include "master/settings/settings.hpp"
#include "syncrun/profile.hpp"

namespace syncrun::detail::master::profile {

/// Counts times in buckets that are at most about 3 % wide.
class TimeHistogram {
 public:
  void add(std::int64_t time_ns);
  PhaseTimes times() const noexcept;

 private:
  static constexpr int kStepBits = 5;  // each power of two is divided into 2^kStepBits steps
  static std::size_t bucket_of(std::uint64_t time_ns) noexcept;
  static std::uint64_t middle_of(std::size_t bucket) noexcept;
  std::vector<std::uint32_t> counts_;
  std::uint64_t calls_ = 0;
  std::int64_t least_ns_ = 0;
  std::int64_t max_ns_ = 0;
  std::int64_t total_ns_ = 0;
};

class Profiler {
 public:
  /// `timelines` has one element per rank. Throws Error (system) if a file cannot be written.
  Profiler(const settings::Settings& settings, const protocol::Timeline* timelines);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// A command is about to be published.
  /// `after` has the commands of other ranks for which this one waits, in words.
  void begin(std::uint64_t id, const std::string& name, const std::vector<std::string>& after = {});
  /// Every rank is done with it.
  /// `moved_bytes`: how many bytes the command has moved between ranks, if it is a move.
  void end(std::uint64_t id, std::optional<std::size_t> moved_bytes = {});
  /// The phases of a call, as in CallProfile.
  static constexpr std::size_t kPhases = 5;

  /// The profiles by function and rank. Functions are in the order of their first calls. The master comes before the
  /// ranks.
  std::vector<CallProfile> calls() const;
  /// Ends unfinished phases and calls, and writes the files. Throws Error (system).
  void close();

 private:
  struct Times {
    TimeHistogram whole;
    std::array<TimeHistogram, kPhases> phases;
    std::int64_t calls = 0;
  };
  struct Running {
    std::size_t function = 0;
    std::int64_t begin_ns = 0;      // sent, and its ranks were done with their commands before, as far as known
    std::int64_t end_ns = 0;        // the last of its ranks was done, as far as known
    std::uint64_t lost_events = 0;  // the number of lost events when it began
    std::string details;            // for the trace, as members of a JSON object
  };
  /// The activity of a rank at the last event that was read.
  struct RankState {
    std::uint64_t read = 0;
    bool is_open = false;  // in a phase
    std::uint64_t command = 0;
    protocol::Phase phase{};
    std::int64_t phase_since_ns = 0;
    std::int64_t call_since_ns = 0;
    std::int64_t free_since_ns = 0;  // done with its last command
    std::array<std::int64_t, kPhases> sums_ns{};
  };

  void read_events(int rank);
  void take(int rank, const protocol::TimelineEvent& event);
  void end_phase(int rank, std::int64_t now_ns);
  void end_call(int rank, std::int64_t now_ns);
  void note_end(int rank, std::uint64_t command, std::int64_t at_ns);
  Times& times_of(std::size_t function, int rank);
  void write_span(int row, const std::string& name, std::int64_t begin_ns, std::int64_t end_ns,
                  const std::string& details = {});
  void note_in_flight(std::int64_t begin_ns, std::int64_t end_ns);
  int row_of_master(std::int64_t begin_ns, std::int64_t end_ns);
  void write_row_name(int row, const std::string& name, int place);
  void open_trace(const settings::Settings& settings);
  std::string profile_text() const;

  int world_size_;
  std::string profile_path_;
  std::string trace_path_;
  const protocol::Timeline* timelines_;
  std::optional<process::OutputFile> trace_;
  std::int64_t start_ns_;
  std::vector<std::string> devices_;  // by rank
  Coverage coverage_;
  std::vector<std::int64_t> master_rows_{0};  // of the trace: the end of the last call in each of them
  std::unordered_map<std::string, std::size_t> functions_;
  std::vector<std::string> names_;  // by function
  std::vector<std::string> escaped_names_;
  std::vector<std::vector<Times>> times_;               // by function; the master first, then the ranks
  std::unordered_map<std::uint64_t, Running> running_;  // the commands in flight
  std::vector<RankState> ranks_;
  std::uint64_t lost_events_ = 0;
  bool is_closed_ = false;
};

}  // namespace syncrun::detail::master::profile

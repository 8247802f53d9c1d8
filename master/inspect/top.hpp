#pragma once

// `syncrun top`: shows again and again what each rank of a running job is doing. It reads memory that the job writes
// anyway.

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "master/inspect/session_view.hpp"

namespace syncrun::detail::master::inspect {

/// A row of the table. Numbers per second are negative if they are not known.
struct TopRow {
  RankView view;
  double calls_per_second = -1;
  double rows_per_second = -1;
  int busy_percent = -1;  ///< In how many of the samples the rank worked.
  int gpu_percent = -1;
};

/// The table, with one line for each rank and one for all together, in at most `columns` columns (0: no limit).
std::string table_of(const std::vector<TopRow>& rows, bool has_nodes, std::size_t columns);

/// The rows after two looks at the same ranks. A rank that another worker has taken in between has no numbers per second.
std::vector<TopRow> rows_between(const std::vector<RankView>& before, const std::vector<RankView>& after,
                                 std::chrono::duration<double> time);

/// Runs the subcommand with the words after its name. Returns the exit code.
int show_top(std::span<char* const> words);

}  // namespace syncrun::detail::master::inspect

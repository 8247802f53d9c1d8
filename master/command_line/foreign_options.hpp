#pragma once

// Options of mpirun, srun, torchrun and the like that users try, and typing errors.

#include <span>
#include <string>
#include <string_view>

namespace syncrun::detail::master::command_line {

/// An option of another tool that `syncrun` accepts.
struct Alias {
  const char* name;   ///< Without "--".
  const char* means;  ///< The name of our option. Null: it has no meaning here, and is accepted.
};
std::span<const Alias> aliases() noexcept;

/// An option of mpirun, srun, torchrun and the like that users try here, and what to do in Syncrun.
struct ForeignOption {
  std::string_view name;
  std::string_view advice;
};
std::span<const ForeignOption> foreign_options() noexcept;

/// How `syncrun` spells a word of the command line that may be an option of another tool: "--log-dir" for "--log_dir", and
/// "--np" for "-np". Other words stay as they are.
std::string own_spelling(std::string_view word);

/// What to write in place of an option that `syncrun` does not have. `own` has the names of its options, without "--".
/// Empty if there is no advice.
std::string advice_on_option(const std::string& word, std::span<const std::string_view> own);

}  // namespace syncrun::detail::master::command_line

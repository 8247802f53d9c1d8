#include "master/command_line/completions.hpp"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>
#include <vector>

#include "common/text/errors.hpp"
#include "common/text/joined.hpp"
#include "master/command_line/help_topics.hpp"
#include "master/command_line/option_table.hpp"
#include "master/command_line/subcommands.hpp"

namespace syncrun::detail::master::command_line {

namespace {

/// What may stand in a place, as far as --help shows it.
struct Choice {
  std::vector<std::string> words;
  bool files = false;
  bool folders = false;
};

constexpr std::string_view kLowerCase = "abcdefghijklmnopqrstuvwxyz0123456789-";

/// Reads what --help shows for a value or for the arguments of a subcommand, such as "N|cpu|gpu|auto", "[--json]" or
/// "FILE.json". Lower-case words stand for themselves.
Choice choice_in(std::string_view shown) {
  Choice choice;
  while (!shown.empty()) {
    std::string_view word = shown.substr(0, shown.find_first_of("|[] "));
    shown.remove_prefix(std::min(word.size() + 1, shown.size()));
    word = word.substr(0, word.find('.'));
    if (word.empty() || word == "--") continue;
    if (word == "options") {  // those of syncrun
      for (const OptionRow& each : option_table()) choice.words.push_back(std::string("--") + each.name);
    } else if (word == "TOPIC") {
      for (const HelpTopic& each : help_topics()) choice.words.emplace_back(each.name);
    } else if (word == "SHELL") {
      choice.words.insert(choice.words.end(), {"bash", "zsh", "fish"});
    } else if (word == "LEVEL") {
      choice.words.insert(choice.words.end(), {"trace", "debug", "info", "warning", "error", "off"});
    } else if (word.find_first_not_of(kLowerCase) == std::string_view::npos) {
      choice.words.emplace_back(word);
    } else {
      choice.folders |= word == "DIR";
      choice.files |= word == "FILE";
    }
  }
  return choice;
}

/// Replaces each character of `special` by `escape` and the character.
std::string escaped(std::string_view text, std::string_view special, std::string_view escape) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += escape;
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

/// As one word in single quotes, for bash and zsh.
std::string in_shell_quotes(std::string_view text) {
  std::string out(1, '\'');
  for (const char c : text) out.append(c == '\'' ? "'\\''" : std::string(1, c));
  out += '\'';
  return out;
}

/// "-n|--nproc-per-node", and only the second if there is no letter.
std::string names_of(const OptionRow& row, std::string_view between) {
  std::string names;
  if (row.letter != 0) names.append(1, '-').append(1, row.letter).append(between);
  return names.append("--").append(row.name);
}

/// The names of all options, or of those that have a value.
std::string names_of_options(std::string_view between, bool only_with_value) {
  std::string names;
  for (const OptionRow& row : option_table()) {
    if (only_with_value && row.value == nullptr) continue;
    names.append(names.empty() ? "" : between).append(names_of(row, between));
  }
  return names;
}

/// The subcommands that are for users. The others have no help.
std::vector<Subcommand> offered_subcommands() {
  std::vector<Subcommand> offered;
  std::copy_if(subcommands().begin(), subcommands().end(), std::back_inserter(offered),
               [](const Subcommand& each) { return !each.help.empty(); });
  return offered;
}

std::string names_of_subcommands() { return text::joined(offered_subcommands(), " ", &Subcommand::name); }

/// The script with the values in place of their names: "@OPTIONS@".
std::string filled(std::string_view script, std::initializer_list<std::pair<std::string_view, std::string>> values) {
  std::string out(script);
  for (const auto& [name, value] : values) {
    for (auto at = out.find(name); at != std::string::npos; at = out.find(name, at + value.size())) {
      out.replace(at, name.size(), value);
    }
  }
  return out;
}

// bash

constexpr std::string_view kBash = R"(# Completions of syncrun for bash. `syncrun completions bash` has made this file.

# Offers values of the option $1 that begin with $2.
_syncrun_values() {
  case $1 in
@VALUES@  esac
}

# Offers arguments of the subcommand $1 that begin with $2. Fails if $1 is no subcommand.
_syncrun_arguments() {
  case $1 in
@ARGUMENTS@    *) return 1 ;;
  esac
}

_syncrun() {
  # COMP_WORDS has words that are divided at = and :, and options of syncrun contain both.
  local line=${COMP_LINE:0:COMP_POINT} words at=1 last word
  read -ra words <<<"$line"
  [[ $line != *[[:space:]] ]] || words+=('')
  last=$((${#words[@]} - 1))
  word=${words[last]}
  COMPREPLY=()
  if ((last > 1)) && _syncrun_arguments "${words[1]}" "$word"; then return; fi
  while ((at < last)); do
    case ${words[at]} in
      --) break ;;
      @WITH_VALUE@)
        if ((at + 1 == last)); then
          _syncrun_values "${words[at]}" "$word"
          return
        fi
        at=$((at + 2))
        ;;
      -*) at=$((at + 1)) ;;
      *) return ;; # the program and its arguments: the shell completes names of files
    esac
  done
  case $word in
    --*=*) _syncrun_values "${word%%=*}" "${word#*=}" ;;
    -*) mapfile -t COMPREPLY < <(compgen -W '@OPTIONS@' -- "$word") ;;
    */*) ;;
    *)
      mapfile -t COMPREPLY < <(compgen -c -- "$word")
      ((last > 1)) || mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W '@COMMANDS@' -- "$word")
      ;;
  esac
}
complete -o bashdefault -o default -F _syncrun syncrun
)";

/// A case of bash that offers a choice for the word in $2.
std::string case_in_bash(std::string_view names, std::string_view shown) {
  const Choice choice = choice_in(shown);
  std::string text("    ");
  text.append(names).append(") ");
  if (choice.folders || choice.files) text += "compopt -o filenames; ";
  text += "mapfile -t COMPREPLY < <(compgen";
  if (choice.folders) text += " -d";
  if (choice.files) text += " -f";
  return text.append(" -W ").append(in_shell_quotes(text::joined(choice.words, " "))).append(" -- \"$2\") ;;\n");
}

std::string for_bash() {
  std::string values;
  for (const OptionRow& row : option_table()) {
    if (row.value != nullptr) values += case_in_bash(names_of(row, "|"), row.value);
  }
  std::string arguments;
  for (const Subcommand& each : offered_subcommands()) arguments += case_in_bash(each.name, each.arguments);
  return filled(kBash, {{"@VALUES@", values},
                        {"@ARGUMENTS@", arguments},
                        {"@WITH_VALUE@", names_of_options("|", true)},
                        {"@OPTIONS@", names_of_options(" ", false)},
                        {"@COMMANDS@", names_of_subcommands()}});
}

// zsh

constexpr std::string_view kZsh = R"(#compdef syncrun
# Completions of syncrun for zsh. `syncrun completions zsh` has made this file.

_syncrun_first() {
  local -a commands=(
@COMMANDS@  )
  ((CURRENT != 2)) || _describe -t commands 'command of syncrun' commands
  _command_names -e
  _files -g '*(-*)'
}

_syncrun_rest() {
  case $words[1] in
@ARGUMENTS@    *) _normal ;;
  esac
}

_syncrun() {
  local -a options=(
@OPTIONS@  )
  _arguments -S -A '-*' : $options '(-)1:program:_syncrun_first' '*::argument:_syncrun_rest'
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _syncrun "$@"; else compdef _syncrun syncrun; fi
)";

std::string option_in_zsh(const OptionRow& row) {
  std::string help("[");
  help.append(escaped(row.help, "[]\\:", "\\")).append("]");
  if (row.value != nullptr) {
    const Choice choice = choice_in(row.value);
    help.append(":").append(escaped(row.value, ":\\", "\\")).append(":");
    if (choice.files || choice.folders) {
      help += choice.files ? "_files" : "_files -/";
    } else if (choice.words.empty()) {
      help += ' ';
    } else {
      help.append("(").append(text::joined(choice.words, " ")).append(")");
    }
  }
  // A star: the option may be given again.
  std::string lines;
  if (row.letter != 0) {
    std::string name("*-");
    lines.append("    ").append(
        in_shell_quotes(name.append(1, row.letter).append(row.value ? "+" : "").append(help))) += '\n';
  }
  std::string name("*--");
  lines.append("    ").append(in_shell_quotes(name.append(row.name).append(row.value ? "=" : "").append(help))) += '\n';
  return lines;
}

std::string for_zsh() {
  std::string options;
  for (const OptionRow& row : option_table()) options += option_in_zsh(row);
  std::string commands;
  std::string arguments;
  for (const Subcommand& each : offered_subcommands()) {
    std::string command(each.name);
    commands.append("    ").append(in_shell_quotes(command.append(":").append(escaped(each.help, ":\\", "\\")))) +=
        '\n';
    const Choice choice = choice_in(each.arguments);
    arguments.append("    ").append(each.name).append(") compadd -- ").append(text::joined(choice.words, " "));
    if (choice.files || choice.folders) arguments += choice.files ? "; _files" : "; _files -/";
    arguments += " ;;\n";
  }
  return filled(kZsh, {{"@COMMANDS@", commands}, {"@ARGUMENTS@", arguments}, {"@OPTIONS@", options}});
}

// fish

constexpr std::string_view kFish = R"(# Completions of syncrun for fish. `syncrun completions fish` has made this file.

# Prints the program and its arguments, as far as they are there.
function __syncrun_program
    set -l words (commandline -opc)[2..]
    while set -q words[1]
        switch $words[1]
            case --
                string escape -- $words[2..]
                return
            case @WITH_VALUE@
                set -e words[1]
            case '-*'
            case '*'
                string escape -- $words
                return
        end
        set -e words[1]
    end
end
function __syncrun_before_program
    test (count (__syncrun_program)) -eq 0
end
function __syncrun_is_first
    test (count (commandline -opc)) -eq 1
end
function __syncrun_is_in
    set -l words (commandline -opc)
    set -q words[2]; and test $words[2] = $argv[1]
end
function __syncrun_is_after_program
    for name in @COMMANDS@
        __syncrun_is_in $name; and return 1
    end
    not __syncrun_before_program
end

@COMPLETE@complete -c syncrun -n __syncrun_before_program -x -a '(__fish_complete_command)'
complete -c syncrun -n __syncrun_is_after_program -x -a '(complete -C (string join -- " " (__syncrun_program) (commandline -ct)))'
)";

std::string quoted_in_fish(std::string_view text) {
  std::string out("'");
  return out.append(escaped(text, "'\\", "\\")).append("'");
}

/// The options of `complete` for a choice.
std::string offer_in_fish(const Choice& choice) {
  std::string text = choice.files ? " -r -F" : " -x";
  std::string words = text::joined(choice.words, " ");
  if (choice.folders) words += " (__fish_complete_directories)";
  return words.empty() ? text : text.append(" -a ").append(quoted_in_fish(words));
}

std::string for_fish() {
  std::string lines;
  for (const OptionRow& row : option_table()) {
    lines += "complete -c syncrun -n __syncrun_before_program";
    if (row.letter != 0) lines.append(" -s ").append(1, row.letter);
    lines.append(" -l ").append(row.name);
    if (row.value != nullptr) lines += offer_in_fish(choice_in(row.value));
    lines.append(" -d ").append(quoted_in_fish(row.help)) += '\n';
  }
  for (const Subcommand& each : offered_subcommands()) {
    lines.append("complete -c syncrun -n __syncrun_is_first -x -a ").append(each.name);
    lines.append(" -d ").append(quoted_in_fish(each.help)) += '\n';
    lines.append("complete -c syncrun -n '__syncrun_is_in ").append(each.name).append("'");
    lines.append(offer_in_fish(choice_in(each.arguments))) += '\n';
  }
  return filled(
      kFish,
      {{"@WITH_VALUE@", names_of_options(" ", true)}, {"@COMMANDS@", names_of_subcommands()}, {"@COMPLETE@", lines}});
}

}  // namespace

std::string completions(std::string_view shell) {
  if (shell == "bash") return for_bash();
  if (shell == "zsh") return for_zsh();
  if (shell == "fish") return for_fish();
  text::throw_usage("syncrun completions: expected bash, zsh or fish, got '" + std::string(shell) + "'");
}

}  // namespace syncrun::detail::master::command_line

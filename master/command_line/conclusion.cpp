#include "master/command_line/conclusion.hpp"

#include <sys/wait.h>

#include <array>
#include <csignal>

#include "common/text/errors.hpp"
#include "common/text/numbers.hpp"
#include "master/command_line/preparation.hpp"
#include "master/process/spawn.hpp"

namespace syncrun::detail::master::command_line {

namespace {

int own_exit_code(const JobEnd& end) {
  if (!end.wait_status) return kSignalExit + SIGKILL;
  if (WIFSIGNALED(*end.wait_status)) return kSignalExit + WTERMSIG(*end.wait_status);
  return WEXITSTATUS(*end.wait_status);
}

std::string in_seconds(std::chrono::milliseconds time) {
  return number_text(static_cast<double>(time.count()) / 1000) + " s";
}

/// True if a signal asked the program to stop, and the program has decided itself how it ends.
bool has_obeyed(const JobEnd& end) {
  return end.said_hello && end.killed == KillReason::none && end.wait_status &&
         (WIFEXITED(*end.wait_status) || WTERMSIG(*end.wait_status) != end.stop_signal);
}

std::string stopped_message(const JobEnd& end) {
  const std::string who = end.role == JobEnd{}.role ? "" : end.role + " was ";
  const std::string stopped = who + "stopped by " + text::signal_name(end.stop_signal);
  switch (end.killed) {
    case KillReason::none: return stopped;
    case KillReason::grace_over:
      return stopped + ", and killed since it had not ended " + in_seconds(end.grace) + " later";
    case KillReason::second_signal: return stopped + ", and killed at the second signal";
  }
  return stopped;
}

std::string ended_message(const JobEnd& end) {
  const std::string master = end.role + " (pid " + std::to_string(end.master) + ")";
  if (!end.wait_status) return master + " could not be killed";
  const std::string status = process::describe_status(*end.wait_status);
  if (end.went_on) {
    return end.program + " " + status +
           " while a process that it had forked went on: a program that becomes a daemon leaves syncrun, which has "
           "ended "
           "what was left of the job. Run it in the foreground (syncrun itself may be in the background), or without "
           "syncrun";
  }
  if (!end.said_hello && end.is_privileged) {
    return end.program +
           " runs with raised privileges (set-user-ID, set-group-ID or file capabilities), and so ignores "
           "syncrun and its options: run it without syncrun";
  }
  if (!end.said_hello && !end.needed_library.empty()) {
    const std::string folder = end.library_folder.empty() ? "FOLDER" : end.library_folder;
    return end.program + " ended (" + status +
           ") before its main: the loader has not found a library, and its line above " + "names it. If it is " +
           end.needed_library + ", set LD_LIBRARY_PATH=" + folder + ", or link the program with " + "-Wl,-rpath," +
           folder + ", or run ldconfig if the folder is one of the system's, such as /usr/local/lib";
  }
  if (!end.said_hello) {
    return end.program + " ended (" + status +
           ") without starting Syncrun: is it a Syncrun program? Its main must call syncrun::run or "
           "syncrun::serve_if_worker";
  }
  return WIFSIGNALED(*end.wait_status) ? master + " was " + status + end.kill_hint : "the program " + status;
}

Conclusion conclude_without_notes(const JobEnd& end) {
  const int code = own_exit_code(end);
  if (end.stop_signal != 0 && !has_obeyed(end))
    return {kSignalExit + end.stop_signal, end.verdict.empty() ? stopped_message(end) : end.verdict};
  if (!end.verdict.empty()) return {code, end.verdict};
  if (!end.said_hello && end.is_privileged) return {code, ended_message(end)};
  if (!end.said_hello || end.went_on) {
    return {code == 0 ? kNotSyncrunExit : code, ended_message(end)};
  }
  if (code == 0) return {};
  // A shell reports nothing in this case either: `program | head -1`.
  if (code == kSignalExit + SIGPIPE && end.output_has_no_reader) return {code, ""};
  return {code, (end.stop_signal != 0 ? stopped_message(end) + ": " : "") + ended_message(end)};
}

}  // namespace

Conclusion conclude(const JobEnd& end) {
  Conclusion conclusion = conclude_without_notes(end);
  if (!conclusion.message.empty()) conclusion.message += end.notes;
  if (!end.verdict.empty()) conclusion.details = end.details;  // else they belong to another message
  conclusion.was_asked = end.stop_signal != 0;
  conclusion.was_killed = !end.wait_status || WIFSIGNALED(*end.wait_status);
  return conclusion;
}

}  // namespace syncrun::detail::master::command_line

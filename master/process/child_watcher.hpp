#pragma once

// The owner of a nursery implements this interface. It says how to start each child, and is told when a child has
// started and when one has died.

#include <pthread.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "master/process/output_settings.hpp"
#include "master/process/spawn.hpp"

namespace syncrun::detail::master::process {

/// The nursery's threads call these functions, until the nursery is destroyed.
class ChildWatcher {
 public:
  /// The child's ends of the descriptors whose other ends the nursery holds.
  struct Ends {
    int socket;  ///< Reads end of file when this process dies.
    int output;
    int error;
  };

  virtual ~ChildWatcher() = default;
  virtual int size() const = 0;
  /// For messages: "the workers".
  virtual std::string describe() const = 0;
  /// How to start the child.
  virtual SpawnRequest request_for(int child, const Ends& ends) const = 0;
  /// The text before each line of its output: "[rank 2] ".
  virtual std::string tag_of(int child) const = 0;
  /// The file that gets a copy of its lines. Empty: no file.
  virtual std::string log_of(int) const { return {}; }
  /// Whether its lines are shown.
  virtual bool is_shown(int) const { return true; }
  /// What stands before its lines, and how large its file may become.
  virtual OutputSettings output_settings() const { return output_from_environment(); }
  /// False if the program has closed a descriptor that the owner passes to the children.
  virtual bool has_descriptors() const noexcept { return true; }
  virtual void on_start(int child, pid_t pid) noexcept = 0;
  /// What the user wants to read about a child that has just started. Empty: nothing.
  virtual std::string news_of_start(int, pid_t) const { return {}; }
  /// The child has died although its end was not expected. The kernel has reported the death, or the child's sign of
  /// life has ended and the kernel will report the death in a moment. May be called twice for one death.
  virtual void on_loss(int child) noexcept = 0;
  /// The sign of life of the child (common/os/sign_of_life.hpp). Null if it has none, because it shares no memory with this
  /// process. The nursery then learns of its death only when the kernel reports it.
  virtual pthread_mutex_t* life_of(int) noexcept { return nullptr; }
};

/// Children are started from the image that this process runs, even if the file at its path has been replaced.
inline constexpr const char* kOwnImage = "/proc/self/exe";
/// kOwnImage, or its path under Valgrind, where kOwnImage is Valgrind itself.
std::string own_image();

/// The command line of this program, which the children get too.
std::vector<std::string> own_arguments();

/// A mark that identifies the processes started by children of this process, wherever they have moved to
/// (environment::kJob). No other process has or had the same mark.
std::string job_mark();

}  // namespace syncrun::detail::master::process

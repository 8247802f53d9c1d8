#pragma once

// Who the children of a nursery are: what each is started with, and who wants to know of its birth and of its death.

#include <pthread.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "launcher/spawn.hpp"

namespace syncrun::detail {

/// Called from the nursery's threads, until the nursery is gone.
class Brood {
 public:
  /// The child's ends of what the nursery holds the other ends of.
  struct Ends {
    int socket;  ///< Sees end of file when this process dies.
    int output;
    int error;
  };

  virtual ~Brood() = default;
  virtual int size() const = 0;
  /// For messages: "the workers".
  virtual std::string describe() const = 0;
  /// What it is started with.
  virtual SpawnRequest request_for(int child, const Ends& ends) const = 0;
  /// Stands before its lines: "[rank 2] ".
  virtual std::string tag_of(int child) const = 0;
  /// The file that its lines are copied to; empty: none.
  virtual std::string log_of(int) const { return {}; }
  /// Whether all that children are given is still open.
  virtual bool has_descriptors() const noexcept { return true; }
  virtual void on_birth(int child, pid_t pid) noexcept = 0;
  /// It has died, though nobody expected it to: now or, by its sign of life, within a moment. May come twice.
  virtual void on_loss(int child) noexcept = 0;
  /// Its sign of life (common/life.hpp). Null: it has none, since it shares no memory with this process; its death is known
  /// once the kernel reports it.
  virtual pthread_mutex_t* life_of(int) noexcept { return nullptr; }
};

/// What children are started from: the very image this process runs, whatever stands at its path by now.
inline constexpr const char* kOwnImage = "/proc/self/exe";

/// The program's own command line, which children get too.
std::vector<std::string> own_arguments();

/// By which what children start is known for this process's, wherever it has moved to (environment::kJob): no other process
/// has or had the same.
std::string job_mark();

}  // namespace syncrun::detail

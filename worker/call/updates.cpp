// Updates that bodies and train steps request.

#include "common/arrays/update.hpp"
#include "worker/serve/worker_core.hpp"

namespace syncrun::detail {

void apply_update(WorkerCore& core, const UpdateWork& work) {
  if (work.place == UpdateWork::RulePlace::host) check_update_rule(work.kind, work.rule);
  core.device().apply_update(work);
}

}  // namespace syncrun::detail

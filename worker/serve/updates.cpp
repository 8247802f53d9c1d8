// Updates that bodies and train steps request.

#include "common/arrays/update.hpp"
#include "worker/place/user_code.hpp"
#include "worker/serve/worker_core.hpp"

namespace syncrun::detail {

void apply_update(WorkerCore& core, const UpdateWork& work) {
  end_if_forked();
  if (work.place == UpdateWork::RulePlace::host) check_update_rule(work.kind, work.rule);
  core.device().apply_update(work);
}

void sum_squares(WorkerCore& core, const UpdateWork& work, double* squares) {
  end_if_forked();
  core.gpu().sum_squares(work, squares);
}

void take_root(WorkerCore& core, double* number) {
  end_if_forked();
  core.gpu().take_root(number);
}

void combine_values(WorkerCore& core, DType dtype, void* into, const void* value, std::array<double, 2> weights,
                    std::size_t elements) {
  end_if_forked();
  core.device().accumulate(dtype, Reduction::avg, into, value, weights, elements);
}

void copy_values(WorkerCore& core, void* to, const void* from, std::size_t bytes) {
  end_if_forked();
  core.device().copy_within(to, from, bytes);
}

}  // namespace syncrun::detail

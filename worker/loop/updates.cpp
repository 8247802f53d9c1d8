// Updates that bodies and train steps request.

#include "common/arrays/update.hpp"
#include "worker/loop/command_loop.hpp"
#include "worker/process/user_code.hpp"

namespace syncrun::detail {

void apply_update(worker::loop::CommandLoop& core, const UpdateWork& work) {
  worker::process::end_if_forked();
  if (work.place == UpdateWork::RulePlace::host) check_update_rule(work.kind, work.rule);
  core.device().arithmetic.apply_update(work);
}

void sum_squares(worker::loop::CommandLoop& core, const UpdateWork& work, double* squares) {
  worker::process::end_if_forked();
  core.gpu().norm->sum_squares(work, squares);
}

void take_root(worker::loop::CommandLoop& core, double* number, const double* divisor) {
  worker::process::end_if_forked();
  core.gpu().norm->take_root(number, divisor);
}

void combine_values(worker::loop::CommandLoop& core, DType dtype, void* into, const void* value,
                    std::array<double, 2> weights, std::size_t elements) {
  worker::process::end_if_forked();
  core.device().arithmetic.accumulate(dtype, Reduction::avg, into, value, weights, elements);
}

void copy_values(worker::loop::CommandLoop& core, void* to, const void* from, std::size_t bytes) {
  worker::process::end_if_forked();
  core.device().memory.copy_within(to, from, bytes);
}

void clear_values(worker::loop::CommandLoop& core, void* values, std::size_t bytes) {
  worker::process::end_if_forked();
  if (bytes != 0) core.device().memory.clear(values, bytes);
}

}  // namespace syncrun::detail

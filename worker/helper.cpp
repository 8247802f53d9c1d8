#include "worker/helper.hpp"

#include <sys/prctl.h>

#include <cstdio>
#include <limits>
#include <string>

#include "common/environment.hpp"
#include "common/errors.hpp"
#include "common/image.hpp"
#include "worker/parent_link.hpp"
#include "worker/parentage.hpp"

namespace syncrun::detail {

HelperFailure current_failure() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    // As of a replicated function: what was wrong was the function, not who started it.
    const ErrorKind kind = error.kind() == ErrorKind::usage ? ErrorKind::function : error.kind();
    return {kind, error.native_code(), error.what()};
  } catch (const std::exception& error) {
    return {ErrorKind::function, 0, error.what()};
  } catch (...) {
    return {ErrorKind::function, 0, "an exception that is not a std::exception"};
  }
}

void run_order(const ReceivedOrder& received, HelperCall& call) {
  const HelperOrder& order = received.order;
  const auto thunk = reinterpret_cast<HelperThunk>(resolve(order.body.thunk));
  thunk(call, resolve_pointer(order.body));
}

std::optional<int> serve_if_helper() {
  if (!is_called_helper()) return std::nullopt;
  try {
    Parentage parentage = take_parentage();
    die_with(parentage.master);
    const auto index = static_cast<int>(take_number(environment::kHelper, std::numeric_limits<int>::max()));
    const ReceivedOrder received = read_order(take_descriptor(environment::kOrderFd, "the order from the master"));
    const HelperOrder& order = received.order;
    ::prctl(PR_SET_NAME, std::string(get_text(order.name)).c_str());  // cut to 15 bytes; only for who looks
    check_image(order.build_id_bytes, order.build_id);
    flush_lines();
    switch (order.kind) {
      case HelperKind::producer: return serve_producer(received, index, std::move(parentage.socket));
      case HelperKind::task: return serve_task(received, std::move(parentage.socket));
    }
    throw Error(ErrorKind::system, "the order is of no kind that this program knows");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "syncrun: a helper process cannot start: %s\n", error.what());
    return 1;
  }
}

}  // namespace syncrun::detail

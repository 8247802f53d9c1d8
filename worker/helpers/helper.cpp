#include "worker/helpers/helper.hpp"

#include <sys/prctl.h>

#include <cstdio>
#include <limits>
#include <string>

#include "common/os/environment.hpp"
#include "common/protocol/image.hpp"
#include "common/text/errors.hpp"
#include "worker/place/parent_link.hpp"
#include "worker/place/parentage.hpp"
#include "worker/place/user_code.hpp"

namespace syncrun::detail {

void run_function(const ReceivedSpec& received, HelperCall& call) {
  const HelperSpec& spec = received.spec;
  const auto thunk = reinterpret_cast<HelperThunk>(resolve(spec.body.thunk));
  const BodyPointer body = resolve_pointer(spec.body);
  {
    const UserCode function;
    thunk(call, body);
  }
  throw_if_child_came();
}

std::optional<int> serve_if_helper() {
  if (!is_called_helper()) return std::nullopt;
  try {
    Parentage parentage = take_parentage();
    die_with(parentage.master);
    const auto index = static_cast<int>(take_number(environment::kHelper, std::numeric_limits<int>::max()));
    const ReceivedSpec received = read_spec(take_descriptor(environment::kSpecFd, "the description from the master"));
    const HelperSpec& spec = received.spec;
    ::prctl(PR_SET_NAME, std::string(get_text(spec.name)).c_str());  // cut to 15 bytes; shown in process lists only
    check_image(spec.build_id_bytes, spec.build_id);
    flush_lines();
    const std::string kind = spec.kind == HelperKind::task ? "task" : "producer " + std::to_string(index) + " of";
    watch_user_code(kind + " '" + std::string(get_text(spec.name)) + "'", nullptr);
    switch (spec.kind) {
      case HelperKind::producer: return serve_producer(received, index, std::move(parentage.socket));
      case HelperKind::task: return serve_task(received, std::move(parentage.socket));
    }
    throw Error(ErrorKind::system, "the description is of no kind that this program knows");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "syncrun: a helper process cannot start: %s\n", full_text_of(error).c_str());
    return 1;
  }
}

}  // namespace syncrun::detail

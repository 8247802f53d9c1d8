#include "worker/helper_processes/helper.hpp"

#include <sys/prctl.h>

#include <cstdio>
#include <limits>
#include <string>

#include "common/os/environment.hpp"
#include "common/protocol/function_address.hpp"
#include "common/text/errors.hpp"
#include "common/text/log.hpp"
#include "worker/process/parent_link.hpp"
#include "worker/process/parentage.hpp"
#include "worker/process/user_code.hpp"

namespace syncrun::detail::worker::helper_processes {

void run_function(const protocol::ReceivedSpec& received, HelperCall& call) {
  const protocol::HelperSpec& spec = received.spec;
  const auto thunk = reinterpret_cast<HelperThunk>(protocol::resolve(spec.body.thunk));
  const BodyPointer body = protocol::resolve_pointer(spec.body);
  {
    const process::UserCode function;
    thunk(call, body);
  }
  process::throw_if_child_came();
}

std::optional<int> serve_if_helper() {
  if (!process::is_called_helper()) return std::nullopt;
  try {
    process::Parentage parentage = process::take_parentage();
    process::die_with(parentage.master);
    const auto index = static_cast<int>(process::take_number(environment::kHelper, std::numeric_limits<int>::max()));
    const protocol::ReceivedSpec received =
        protocol::read_spec(process::take_descriptor(environment::kSpecFd, "the description from the master"));
    const protocol::HelperSpec& spec = received.spec;
    ::prctl(PR_SET_NAME,
            std::string(text::get_text(spec.name)).c_str());  // cut to 15 bytes; shown in process lists only
    process::check_image(spec.build_id_bytes, spec.build_id);
    process::flush_lines();
    const std::string kind =
        spec.kind == protocol::HelperKind::task ? "task" : "producer " + std::to_string(index) + " of";
    process::watch_user_code(kind + " '" + std::string(text::get_text(spec.name)) + "'", nullptr);
    switch (spec.kind) {
      case protocol::HelperKind::producer: return serve_producer(received, index, std::move(parentage.socket));
      case protocol::HelperKind::task: return serve_task(received, std::move(parentage.socket));
    }
    throw Error(ErrorKind::system, "the description is of no kind that this program knows");
  } catch (const std::exception& error) {
    std::fputs(text::own_line(LogLevel::error, "a helper process cannot start: " + text::full_text_of(error)).c_str(),
               stderr);
    return 1;
  }
}

}  // namespace syncrun::detail::worker::helper_processes

#include "launcher/settings/verdict.hpp"

#include <unistd.h>

#include <cstdio>

#include "common/protocol/supervisor_link.hpp"
#include "common/text/visible_text.hpp"

namespace syncrun::detail {

void report_verdict(const std::string& verdict) noexcept {
  const bool is_printed_there = supervisor_link().send({SupervisorMessage::Kind::verdict, 0, verdict});
  if (is_printed_there) return;
  std::fprintf(stderr, "syncrun: %s\n", text_for(STDERR_FILENO, with_indented_lines(verdict)).c_str());
}

}  // namespace syncrun::detail

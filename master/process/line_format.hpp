#pragma once

// What stands before each line of a child: a tag, the time, both or nothing. The user chooses it once for all children.

#include <memory>
#include <string>

#include "master/process/output_settings.hpp"
#include "master/process/output_target.hpp"

namespace syncrun::detail::master::process {

class LineFormat {
 public:
  virtual ~LineFormat() = default;
  /// The text before the lines that have just been read. It is valid until the next call.
  virtual const LinePrefix& prefix() = 0;
};

/// `tag` is the text before each line of the child: "[rank 2] ". On a terminal, each of the first children has its own
/// colour, unless TERM or NO_COLOR (https://no-color.org) says otherwise.
std::unique_ptr<LineFormat> make_line_format(const OutputSettings& settings, const std::string& tag, int child);

}  // namespace syncrun::detail::master::process

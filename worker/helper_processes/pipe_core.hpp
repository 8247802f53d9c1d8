#pragma once

// A task's end of the pipe to its master.

#include <string>

#include "common/protocol/channel.hpp"
#include "syncrun/detail/helper.hpp"

namespace syncrun::detail::worker::helper_processes {

class PipeCore {
 public:
  PipeCore(std::string name, os::FileDescriptor socket) noexcept
      : name_(std::move(name)), channel_(std::move(socket)) {}
  const std::string& name() const noexcept { return name_; }
  protocol::Channel& channel() noexcept { return channel_; }

 private:
  std::string name_;
  protocol::Channel channel_;
};

}  // namespace syncrun::detail::worker::helper_processes

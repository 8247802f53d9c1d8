#include "common/protocol/helper_spec.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <type_traits>

#include "common/protocol/function_address.hpp"
#include "common/text/errors.hpp"

namespace syncrun::detail::protocol {

namespace {

void write_fully(int fd, const void* bytes, std::size_t count) {
  for (const auto* from = static_cast<const std::byte*>(bytes); count != 0;) {
    const auto written = ::write(fd, from, count);
    if (written < 0 && errno == EINTR) continue;
    text::check_system(written, "cannot write a helper process's description");
    from += written;
    count -= static_cast<std::size_t>(written);
  }
}

void read_fully(int fd, void* bytes, std::size_t count, std::size_t at) {
  for (auto* to = static_cast<std::byte*>(bytes); count != 0;) {
    const auto taken = ::pread(fd, to, count, static_cast<off_t>(at));
    if (taken < 0 && errno == EINTR) continue;
    text::check_system(taken, "cannot read this helper process's description");
    if (taken == 0) throw Error(ErrorKind::system, "this helper process's description is cut short");
    to += taken;
    at += static_cast<std::size_t>(taken);
    count -= static_cast<std::size_t>(taken);
  }
}

}  // namespace

static_assert(std::is_trivially_copyable_v<HelperSpec>);

os::FileDescriptor write_spec(HelperSpec spec, std::span<const std::byte> arguments) {
  const ImageAddress image = program_image();
  spec.magic = kMagic;
  spec.build_id_bytes = image.build_id_bytes;
  spec.build_id = image.build_id;
  spec.arguments_bytes = arguments.size();
  os::FileDescriptor file(
      text::check_system(::memfd_create("syncrun-spec", MFD_CLOEXEC), "cannot create a file in memory"));
  write_fully(file.get(), &spec, sizeof(spec));
  write_fully(file.get(), arguments.data(), arguments.size());
  return file;
}

ReceivedSpec read_spec(const os::FileDescriptor& file) {
  ReceivedSpec received{};
  read_fully(file.get(), &received.spec, sizeof(received.spec), 0);
  if (received.spec.magic != kMagic) {
    throw Error(ErrorKind::system, "this helper process's description speaks another protocol");
  }
  struct stat status {};
  text::check_system(::fstat(file.get(), &status), "cannot look at this helper process's description");
  if (received.spec.arguments_bytes > static_cast<std::uint64_t>(status.st_size) - sizeof(received.spec)) {
    throw Error(ErrorKind::system, "this helper process's description is cut short");
  }
  received.arguments.resize(received.spec.arguments_bytes);
  read_fully(file.get(), received.arguments.data(), received.arguments.size(), sizeof(received.spec));
  return received;
}

}  // namespace syncrun::detail::protocol

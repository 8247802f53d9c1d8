// The output of a child, which is passed on line by line. Also the names of functions, which are shortened for
// messages.

#include <fcntl.h>

#include <array>

#include "common/code/symbols.hpp"
#include "master/process/child_output.hpp"
#include "master/process/nonblocking_writer.hpp"
#include "tests/fuzz/fuzzing.hpp"

namespace {

using namespace syncrun::detail;

constexpr std::size_t kLargest = std::size_t{1} << 15U;  // fits in a pipe

void pass_on(std::string_view text) {
  std::array<int, 2> ends{};
  fuzzing::expect(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0, "a pipe");
  const fuzzing::MemoryFile file("", 0);
  master::process::ChildLog log(file.path(), master::process::OpenMode::append);
  os::KeptDescriptor nowhere(os::FileDescriptor(::open("/dev/null", O_WRONLY | O_CLOEXEC)));
  master::process::NonblockingWriter writer(nowhere.get());
  os::FileDescriptor from(ends[0]);
  os::FileDescriptor to(ends[1]);
  master::process::ChildOutput output(master::process::make_line_format({}, "[rank 0] ", 0), std::move(from), writer,
                                      log);
  const std::string_view sent = text.substr(0, kLargest);
  fuzzing::expect(::write(to.get(), sent.data(), sent.size()) == static_cast<ssize_t>(sent.size()), "a pipe's room");
  to.reset();
  while (output.pump()) {
  }
  output.finish();
  std::string expected(sent);
  if (!expected.empty() && expected.back() != '\n') expected += '\n';
  fuzzing::expect(file.content() == expected, "every byte is passed on, in whole lines");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzzing::text_of(data, size);
  pass_on(text);
  fuzzing::expect(code::short_function_name(std::string(text)).size() <= size + 10, "a short name is short");
  return 0;
}

// How fast the output of workers arrives. Each rank writes its share of the bytes in lines, 64 KiB at a time:
//   syncrun -n 4 [options] bench_output BYTES LINE_BYTES >/dev/null
//   mpirun -np 4 --tag-output bench_output BYTES LINE_BYTES alone >/dev/null     (or torchrun --no-python --tee 3)
// bench/run_output.py runs and compares them.

#include <unistd.h>

#include <charconv>
#include <string>
#include <string_view>
#include <syncrun/syncrun.hpp>

namespace sr = syncrun;

namespace {

std::size_t number_in(std::string_view text) {
  std::size_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// Writes lines until about this many bytes are written.
void write_lines(std::size_t bytes, std::size_t line_bytes) {
  constexpr std::size_t kPartBytes = std::size_t{1} << 16U;
  std::string part;
  while (part.size() + line_bytes <= kPartBytes) part.append(line_bytes - 1, 'x').append("\n");
  for (std::size_t written = 0; written < bytes;) {
    const auto count = ::write(STDOUT_FILENO, part.data(), part.size());
    if (count <= 0) return;
    written += static_cast<std::size_t>(count);
  }
}

void write_share(sr::CpuWorker&, std::int64_t bytes, std::int64_t line_bytes) {
  write_lines(static_cast<std::size_t>(bytes), static_cast<std::size_t>(line_bytes));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::size_t bytes = number_in(argv[1]);
  const std::size_t line_bytes = number_in(argv[2]);
  if (argc > 3) {
    write_lines(bytes, line_bytes);
    return 0;
  }
  return sr::run(argc, argv, [&](sr::Session& session) {
    const auto share = static_cast<std::int64_t>(bytes) / session.world_size();
    session.function(write_share)(share, static_cast<std::int64_t>(line_bytes));
  });
}

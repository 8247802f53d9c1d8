// Runs a fuzz target without libFuzzer: every file of its corpus, and then mutations of these files, the same in each
// run.
//
// usage: fuzz_TARGET CORPUS [MUTATIONS]

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/fuzzing.hpp"

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kLargestInput = 4096;  // the limit for mutations: long inputs rarely find anything new
constexpr unsigned kSecondsPerInput = 30;
[[maybe_unused]] constexpr rlim_t kMemoryBytes = rlim_t{1} << 30U;

// The input that is being run, for the handler of a signal.
const Bytes* current = nullptr;

/// Prints the input that is being run, so that it can be added to the corpus.
void on_end(int signal) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  constexpr std::string_view kIntroduction = "the input was, in hexadecimal: ";
  const auto write = [](std::string_view text) {
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0) ::_exit(1);
  };
  write(kIntroduction);
  for (const std::uint8_t byte : current != nullptr ? *current : Bytes()) {
    write(kDigits.substr(byte >> 4U, 1));
    write(kDigits.substr(byte & 0xfU, 1));
  }
  write("\n");
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run(const Bytes& input) {
  current = &input;
  ::alarm(kSecondsPerInput);
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

class Mutator {
 public:
  explicit Mutator(const std::vector<Bytes>& seeds) : seeds_(seeds) {}

  Bytes next() {
    Bytes bytes = any_seed();
    for (std::size_t changes = 1 + below(4); changes != 0; --changes) change(bytes);
    bytes.resize(std::min(bytes.size(), kLargestInput));
    return bytes;
  }

 private:
  std::size_t below(std::size_t count) { return count == 0 ? 0 : random_() % count; }
  const Bytes& any_seed() { return seeds_[below(seeds_.size())]; }

  void change(Bytes& bytes) {
    const std::size_t at = below(bytes.size());
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t count = below(std::min<std::size_t>(16, bytes.size() - at) + 1);
    const auto end = place + static_cast<std::ptrdiff_t>(count);
    switch (below(6)) {
      case 0:
        if (!bytes.empty()) *place ^= static_cast<std::uint8_t>(1U << below(8));
        return;
      case 1: bytes.insert(place, static_cast<std::uint8_t>(below(256))); return;
      case 2: bytes.erase(place, end); return;
      case 3: {  // copies a part to another place
        const Bytes part(place, end);
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(below(bytes.size() + 1)), part.begin(), part.end());
        return;
      }
      case 4: {  // joins the beginning of this input and the end of another
        const Bytes& other = any_seed();
        bytes.erase(place, bytes.end());
        bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(below(other.size())), other.end());
        return;
      }
      default: return put_edge(bytes, at);
    }
  }

  /// Inserts a value at which counts and sizes go wrong, as bytes or as text.
  void put_edge(Bytes& bytes, std::size_t at) {
    static constexpr std::array<std::string_view, 12> kEdges{
        "0",   "-1",   "2147483648", "18446744073709551615", "1e999",      "nan",
        "inf", "\xff", ",",          "\xff\xff\xff\xff",     "-999999999", "\x7f\xff\xff\xff\xff\xff\xff\xff"};
    const std::string_view edge = kEdges[below(kEdges.size())];
    const std::size_t replaced = below(2) == 0 ? 0 : std::min(edge.size(), bytes.size() - at);
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    bytes.insert(bytes.erase(place, place + static_cast<std::ptrdiff_t>(replaced)), edge.begin(), edge.end());
  }

  const std::vector<Bytes>& seeds_;
  std::mt19937_64 random_{1};
};

std::vector<Bytes> read_corpus(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Bytes> inputs;
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return inputs;
}

/// Limits the memory. If a damaged header makes a parser allocate too much, the allocation fails, and so does the test.
/// Sanitizers need more memory and describe a crash better, so there is no limit with them.
void prepare() {
  for (const int signal : {SIGABRT, SIGALRM}) std::signal(signal, on_end);
#if !defined(SYNCRUN_ADDRESS_SANITIZER) && !defined(SYNCRUN_THREAD_SANITIZER)
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE}) std::signal(signal, on_end);
  const rlimit limit{kMemoryBytes, kMemoryBytes};
  ::setrlimit(RLIMIT_DATA, &limit);
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: %s CORPUS [MUTATIONS]\n", argv[0]), 2;
  const std::vector<Bytes> seeds = read_corpus(argv[1]);
  if (seeds.empty()) return std::fprintf(stderr, "%s holds no input\n", argv[1]), 1;
  const int mutations = argc > 2 ? std::atoi(argv[2]) : 0;
  prepare();
  run({});
  for (const Bytes& seed : seeds) run(seed);
  Mutator mutator(seeds);
  for (int i = 0; i < mutations; ++i) run(mutator.next());
  std::printf("%zu inputs, %d mutations\n", seeds.size() + 1, mutations);
  return 0;
}

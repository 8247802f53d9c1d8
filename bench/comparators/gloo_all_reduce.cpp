// Measures Gloo's all_reduce of float32 in a loop, for sizes in powers of four and for every algorithm that Gloo has.
// Gloo has no transport for shared memory, so ranks on one machine use TCP over the loopback interface. The program
// forks its ranks. They find each other through a temporary directory:
//
//   gloo_all_reduce --workers 2 --seconds 0.5 --min-bytes 1024 --max-bytes 67108864

#include <gloo/allreduce.h>
#include <gloo/allreduce_bcube.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <thread>

#include "measure.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

constexpr int kWarmUpIterations = 5;

using ContextPtr = std::shared_ptr<gloo::rendezvous::Context>;
using AllReduce = std::function<void()>;
using MakeAllReduce = std::function<AllReduce(const ContextPtr&, std::vector<float>&)>;

/// How a rank waits for bytes: through Gloo's event thread, in a blocking read, or by polling the socket.
enum class Waiting { EventThread, Blocking, Polling };

struct Variant {
  const char* name;
  Waiting waiting;
  std::size_t max_bytes;
  MakeAllReduce make;
};

constexpr std::size_t kAnySize = std::numeric_limits<std::size_t>::max();
/// A rank does not read while it waits in a blocking write. With more bytes than the sockets can buffer, all ranks
/// would wait for each other without end.
constexpr std::size_t kSocketBufferSafe = std::size_t{1} << 20;
/// The plain ring sends whole arrays around the ring, and is too slow for larger sizes.
constexpr std::size_t kPlainRingUseful = std::size_t{4} << 20;

ContextPtr connect(std::size_t rank, std::size_t size, const std::string& directory, const std::string& name,
                   Waiting waiting) {
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  gloo::rendezvous::FileStore files(directory);
  gloo::rendezvous::PrefixStore store(name, files);
  auto context = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(rank), static_cast<int>(size));
  context->connectFullMesh(store, device);
  if (waiting == Waiting::EventThread) return context;
  for (std::size_t peer = 0; peer < size; ++peer) {
    if (peer != rank) context->getPair(static_cast<int>(peer))->setSync(true, waiting == Waiting::Polling);
  }
  return context;
}

/// Uses Gloo's newer interface. The options are built for every call, as in programs of its users.
AllReduce by_options(const ContextPtr& context, std::vector<float>& values,
                     gloo::AllreduceOptions::Algorithm algorithm) {
  return [context, &values, algorithm] {
    gloo::AllreduceOptions options(context);
    options.setAlgorithm(algorithm);
    options.setOutput(values.data(), values.size());
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
  };
}

/// Uses Gloo's older interface. An object registers its buffers once and is run again and again.
template <template <typename...> class Algorithm>
AllReduce by_object(const ContextPtr& context, std::vector<float>& values) {
  auto algorithm =
      std::make_shared<Algorithm<float>>(context, std::vector<float*>{values.data()}, static_cast<int>(values.size()));
  return [algorithm] { algorithm->run(); };
}

std::vector<Variant> variants() {
  using Algorithm = gloo::detail::AllreduceOptionsImpl::Algorithm;
  const auto options_with = [](Algorithm algorithm) {
    return [algorithm](const ContextPtr& context, std::vector<float>& values) {
      return by_options(context, values, algorithm);
    };
  };
  const MakeAllReduce ring = by_object<gloo::AllreduceRing>;
  const MakeAllReduce ring_chunked = by_object<gloo::AllreduceRingChunked>;
  const MakeAllReduce halving_doubling = by_object<gloo::AllreduceHalvingDoubling>;
  const MakeAllReduce bcube = by_object<gloo::AllreduceBcube>;
  return {
      {"options_ring", Waiting::EventThread, kAnySize, options_with(Algorithm::RING)},
      {"options_bcube", Waiting::EventThread, kAnySize, options_with(Algorithm::BCUBE)},
      {"ring", Waiting::EventThread, kPlainRingUseful, ring},
      {"ring_chunked", Waiting::EventThread, kAnySize, ring_chunked},
      {"halving_doubling", Waiting::EventThread, kAnySize, halving_doubling},
      {"bcube", Waiting::EventThread, kAnySize, bcube},
      {"ring_blocking", Waiting::Blocking, kSocketBufferSafe, ring},
      {"ring_chunked_blocking", Waiting::Blocking, kSocketBufferSafe, ring_chunked},
      {"halving_doubling_blocking", Waiting::Blocking, kSocketBufferSafe, halving_doubling},
      {"bcube_blocking", Waiting::Blocking, kSocketBufferSafe, bcube},
      {"ring_polling", Waiting::Polling, kSocketBufferSafe, ring},
      {"ring_chunked_polling", Waiting::Polling, kSocketBufferSafe, ring_chunked},
      {"halving_doubling_polling", Waiting::Polling, kSocketBufferSafe, halving_doubling},
      {"bcube_polling", Waiting::Polling, kSocketBufferSafe, bcube},
  };
}

void barrier(const ContextPtr& context) {
  gloo::BarrierOptions options(context);
  gloo::barrier(options);
}

long from_rank_0(const ContextPtr& context, long value) {
  gloo::BroadcastOptions options(context);
  options.setOutput(&value, 1);
  options.setRoot(0);
  gloo::broadcast(options);
  return value;
}

void measure(const comparators::Options& options, const Variant& variant, const ContextPtr& control,
             const ContextPtr& context, std::size_t bytes) {
  const auto rank = static_cast<std::size_t>(control->rank);
  std::vector<float> values(bytes / sizeof(float));
  comparators::fill(values, rank);
  const AllReduce all_reduce = variant.make(context, values);

  barrier(control);
  all_reduce();
  comparators::require_sum(values, options.workers);
  for (int i = 0; i < kWarmUpIterations; ++i) all_reduce();
  barrier(control);
  const auto warm = comparators::Clock::now();
  for (int i = 0; i < kWarmUpIterations; ++i) all_reduce();
  const long iterations = from_rank_0(
      control, comparators::iterations_for(options.seconds, comparators::microseconds_since(warm) / kWarmUpIterations));

  std::vector<double> samples_us(static_cast<std::size_t>(iterations));
  barrier(control);
  for (double& sample_us : samples_us) {
    const auto start = comparators::Clock::now();
    all_reduce();
    sample_us = comparators::microseconds_since(start);
  }
  barrier(control);
  if (rank != 0) return;
  comparators::print_json_line(
      {.name = "all_reduce", .impl = "gloo", .variant = variant.name, .workers = options.workers, .bytes = bytes},
      samples_us);
}

/// Polling is too slow if ranks share a core: they prevent the rank that they wait for from running.
bool is_hopeless(const Variant& variant, std::size_t workers) {
  return variant.waiting == Waiting::Polling && workers > std::thread::hardware_concurrency();
}

void run_rank(const comparators::Options& options, std::size_t rank, const std::string& directory) {
  const ContextPtr control = connect(rank, options.workers, directory, "control", Waiting::EventThread);
  for (const Variant& variant : variants()) {
    if (is_hopeless(variant, options.workers)) continue;
    const std::size_t max_bytes = std::min(options.max_bytes, variant.max_bytes);
    for (std::size_t bytes = options.min_bytes; bytes <= max_bytes; bytes *= 4) {
      const std::string name = std::string(variant.name) + "-" + std::to_string(bytes);
      const ContextPtr context = connect(rank, options.workers, directory, name, variant.waiting);
      measure(options, variant, control, context, bytes);
    }
  }
  barrier(control);
}

int report(const std::exception& error) {
  std::fprintf(stderr, "gloo_all_reduce: %s\n", error.what());
  return 1;
}

/// Forks the ranks 1 to N-1, before Gloo starts a thread. They die with rank 0.
std::vector<pid_t> fork_peers(const comparators::Options& options, const std::string& directory) {
  const pid_t parent = getpid();
  std::vector<pid_t> peers;
  for (std::size_t rank = 1; rank < options.workers; ++rank) {
    const pid_t pid = fork();
    if (pid < 0) throw std::runtime_error("fork failed");
    if (pid > 0) {
      peers.push_back(pid);
      continue;
    }
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
    try {
      run_rank(options, rank, directory);
    } catch (const std::exception& error) {
      _exit(report(error));
    }
    _exit(0);
  }
  return peers;
}

bool all_succeeded(const std::vector<pid_t>& peers) {
  bool succeeded = true;
  for (const pid_t pid : peers) {
    int status = 0;
    succeeded &= waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return succeeded;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const comparators::Options options = comparators::parse_options(argc, argv);
    const TemporaryFolder folder;
    const std::string directory = folder.path().string();
    const std::vector<pid_t> peers = fork_peers(options, directory);
    run_rank(options, 0, directory);
    return all_succeeded(peers) ? 0 : 1;
  } catch (const std::exception& error) {
    return report(error);
  }
}

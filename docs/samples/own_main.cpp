// A program with a main of its own: the worker branch comes first, and a session is opened where it is needed.

// [all]
#include <cstdio>
#include <syncrun/syncrun.hpp>

namespace sr = syncrun;

int main(int argc, char** argv) {
  if (const auto code = sr::serve_if_worker(argc, argv)) return *code;  // a worker ends here

  sr::Session session({.processes = "2", .seed = 7});
  const auto f = session.function([](sr::CpuWorker& worker) -> sr::Sum<int> { return worker.rank() + 1; });
  std::printf("%d on", f().value());
  for (const auto& device : session.devices()) std::printf(" %s", device.c_str());
  std::printf("\n");
  session.close();
}
// [/all]

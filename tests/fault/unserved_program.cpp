// A program in which every process opens a session, because it does not call serve_if_worker, or calls it too late.
// Syncrun must refuse this in a worker. If it ever does not, the third generation of processes ends by itself, so that
// the test cannot fill the machine.

#include <cstdlib>
#include <cstring>
#include <string>
#include <syncrun/syncrun.hpp>

int main(int argc, char** argv) {
  const char* text = std::getenv("UNSERVED_GENERATION");
  const int generation = text == nullptr ? 1 : std::atoi(text) + 1;
  if (generation > 2) return 77;
  ::setenv("UNSERVED_GENERATION", std::to_string(generation).c_str(), 1);
  try {
    if (argc > 1 && std::strcmp(argv[1], "task") == 0) syncrun::task([] {}, {.name = "unserved"}).get();
    syncrun::Session session({.devices = "cpu0,cpu1"});
    if (argc > 1 && std::strcmp(argv[1], "late") == 0) {
      if (const auto code = syncrun::serve_if_worker(argc, argv)) return *code;
    }
  } catch (const syncrun::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

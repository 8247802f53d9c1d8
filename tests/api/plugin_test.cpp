// Functions in libraries that are loaded after the session has started.

#include <dlfcn.h>

#include "tests/support/on_workers.hpp"

namespace {

TEST(Plugin, FunctionIsFoundByTheWorkersToo) {
  sr::Session session({.processes = "2"});
  void* library = ::dlopen(TEST_PLUGIN, RTLD_NOW);
  ASSERT_NE(library, nullptr) << ::dlerror();
  using Function = sr::Sum<int> (*)(sr::CpuWorker&, int);
  const auto f = session.function(reinterpret_cast<Function>(::dlsym(library, "plugin_function")));
  EXPECT_EQ(f(5), 15);
  EXPECT_EQ(f.name(), "plugin_function");
  session.close();
}

}  // namespace

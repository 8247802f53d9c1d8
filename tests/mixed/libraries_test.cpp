// What a library such as that for LibTorch asks a worker with a GPU to load first.

#include <gtest/gtest.h>

#include <stdexcept>

#include "common/os/before_cuda.hpp"
#include "common/os/libraries.hpp"
#include "tests/mixed/mixed_bodies.hpp"

namespace mixed_test {
namespace {

enum class Loaded { not_yet, before_cuda, too_late };
Loaded loaded = Loaded::not_yet;

[[maybe_unused]] const bool is_announced = [] {
  sr::detail::os::load_before_cuda([] {
    loaded = sr::detail::os::loaded_libraries("libsyncrun_cuda.so").empty() ? Loaded::before_cuda : Loaded::too_late;
  });
  return true;
}();

void require(Loaded expected) {
  if (loaded != expected) throw std::runtime_error("loaded at another time");
}

TEST(Libraries, ThatComeBeforeCudaAreLoadedByWorkersWithAGpuOnly) {
  sr::SessionOptions options;
  options.devices = "cuda0,cpu0";
  sr::Session session(options);
  const auto check = session.function([](sr::CpuWorker&) { require(Loaded::not_yet); },
                                      +[](sr::CudaWorker&) { require(Loaded::before_cuda); });
  EXPECT_NO_THROW(check());
  EXPECT_EQ(loaded, Loaded::not_yet);  // the master
}

}  // namespace
}  // namespace mixed_test

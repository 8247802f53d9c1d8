// Folders that processes of several nodes use. Refusals of other folders are tested in tests/nodes.

#include "common/arrays/shared_folder.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/support/temporary_folder.hpp"

namespace syncrun::detail {
namespace {

using std::chrono::milliseconds;

TEST(SharedFolder, MayAppearAfterAWhile) {
  const TemporaryFolder folder;
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(100));
    std::filesystem::create_directory(folder / "run");
    arrays::write_folder_id(arrays::open_folder(folder / "run"), "0f8e");
  });
  EXPECT_EQ(arrays::open_shared({folder / "run", "0f8e"}, milliseconds(10'000)).path, folder / "run");
  late.join();
}

}  // namespace
}  // namespace syncrun::detail

// Folders that processes of several nodes use.

#include "common/arrays/shared_folder.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "syncrun/error.hpp"
#include "tests/support/temporary_folder.hpp"

namespace syncrun::detail {
namespace {

using std::chrono::milliseconds;

std::string complaint(const SharedFolder& shared, milliseconds limit = milliseconds(50)) {
  try {
    open_shared(shared, limit);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "none";
}

TEST(SharedFolder, HasAnIdThatNoOtherHas) {
  const std::string id = make_folder_id();
  EXPECT_EQ(id.size(), 32U);
  EXPECT_TRUE(std::ranges::all_of(id, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }));
  EXPECT_NE(id, make_folder_id());
}

TEST(SharedFolder, IsOpenedIfItHasTheId) {
  const TemporaryFolder folder;
  const std::string id = make_folder_id();
  write_folder_id(open_folder(folder.path()), id);
  EXPECT_EQ(open_shared({folder.path(), id}, milliseconds(0)).path, folder.path());
}

TEST(SharedFolder, IsRefusedIfItIsNotThereOrAnotherOne) {
  const TemporaryFolder folder;
  const std::string missing = complaint({folder / "run", "0f8e"});
  EXPECT_NE(missing.find("this node cannot see " + (folder / "run/id.txt").string()), std::string::npos) << missing;
  EXPECT_NE(missing.find("No such file"), std::string::npos) << missing;
  EXPECT_NE(missing.find("Use a folder that all nodes share"), std::string::npos) << missing;
  EXPECT_NE(complaint({folder.path(), "0f8e"}).find("No such file"), std::string::npos);
  write_folder_id(open_folder(folder.path()), "0f8f");
  EXPECT_NE(complaint({folder.path(), "0f8e"}, milliseconds(10'000)).find("is another one"), std::string::npos)
      << "at once";
}

TEST(SharedFolder, MayAppearAfterAWhile) {
  const TemporaryFolder folder;
  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(100));
    std::filesystem::create_directory(folder / "run");
    write_folder_id(open_folder(folder / "run"), "0f8e");
  });
  EXPECT_EQ(complaint({folder / "run", "0f8e"}, milliseconds(10'000)), "none");
  late.join();
}

TEST(FilePart, IsWrittenByOneWriterBesideAnother) {
  const TemporaryFolder path;
  const Folder folder = open_folder(path.path());
  FilePart first(folder, "x");
  FilePart second(folder, "x");
  second.write(3, std::as_bytes(std::span("def", 3)));
  first.write(0, std::as_bytes(std::span("abc", 3)));
  first.sync();
  second.sync();
  EXPECT_EQ(read_file(folder, "x", 100), "abcdef");
}

}  // namespace
}  // namespace syncrun::detail

// Files of tensors: mapped reads, and writes that replace a file as a whole.

#include "libtorch/tensor_files.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <stdexcept>
#include <syncrun/error.hpp>

#include "common/arrays/replaced_file.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

using syncrun::detail::arrays::AppendBytes;
using syncrun::detail::arrays::replace_file;
using syncrun::libtorch::detail::FileBytes;

std::string read(const std::filesystem::path& file) {
  const FileBytes bytes(file);
  return {reinterpret_cast<const char*>(bytes.bytes().data()), bytes.bytes().size()};
}

TEST(TensorFiles, KeepTheirOldContentsIfAWriteFails) {
  const TemporaryFolder folder;
  write_text(folder / "file", "old");
  EXPECT_THROW(replace_file(folder / "file",
                            [](const AppendBytes& append) {
                              append(std::as_bytes(std::span("new")));
                              throw std::runtime_error("stop");
                            }),
               std::runtime_error);
  EXPECT_EQ(read(folder / "file"), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "nothing is left";
}

TEST(TensorFiles, ThatCannotBeUsedAreNamed) {
  const TemporaryFolder folder;
  const auto expect = [&](const auto& use, syncrun::ErrorKind kind, const std::string& words) {
    try {
      use();
      ADD_FAILURE() << "no error, expected: " << words;
    } catch (const syncrun::Error& error) {
      EXPECT_EQ(error.kind(), kind);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  const auto nothing = [](const AppendBytes&) {};
  expect([&] { read(folder / "none"); }, syncrun::ErrorKind::system, folder.at("none") + ": No such file");
  expect([&] { read(folder.path()); }, syncrun::ErrorKind::usage, "expected a file");
  ASSERT_EQ(::mkfifo(folder.at("pipe").c_str(), 0600), 0);
  expect([&] { read(folder / "pipe"); }, syncrun::ErrorKind::usage, "expected a file");
  expect([&] { replace_file(folder / "no" / "file", nothing); }, syncrun::ErrorKind::system, "No such file");
  std::filesystem::create_directory(folder / "folder");
  expect([&] { replace_file(folder / "folder", nothing); }, syncrun::ErrorKind::system, "cannot write");
}

}  // namespace

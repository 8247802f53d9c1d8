#include "common/arrays/shared_folder.hpp"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <thread>

#include "common/text/errors.hpp"

namespace syncrun::detail::arrays {

namespace {

constexpr std::size_t kIdBytes = 16;
constexpr std::chrono::milliseconds kLookEvery{20};

[[noreturn]] void fail(const SharedFolder& shared, const std::string& found) {
  text::throw_usage("this node cannot see " + (shared.path / kFolderId).string() +
                    ", which the first node has written: " + found +
                    ". Use a folder that all nodes share, at the same path");
}

Folder open_once(const SharedFolder& shared) {
  Folder folder = open_folder(shared.path);
  constexpr std::size_t kLongestId = 4 * kIdBytes;  // of any program: a longer file is not an id
  const std::string id = read_file(folder, kFolderId, kLongestId);
  if (id == shared.id) return folder;
  if (id.size() < shared.id.size()) throw Error(ErrorKind::system, "its contents are not there");
  fail(shared, "the folder at this path is another one");
}

}  // namespace

std::string make_folder_id() {
  std::array<unsigned char, kIdBytes> bytes{};
  text::check_system(::getrandom(bytes.data(), bytes.size(), 0), "cannot get random bytes");
  std::string id;
  for (const unsigned char byte : bytes) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", byte);
    id += digits.data();
  }
  return id;
}

void write_folder_id(const Folder& folder, const std::string& id) { write_file(folder, kFolderId, id, {}); }

Folder open_shared(const SharedFolder& shared, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    try {
      return open_once(shared);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::system) throw;
      if (std::chrono::steady_clock::now() >= end) fail(shared, error.what());
    }
    std::this_thread::sleep_for(kLookEvery);
  }
}

}  // namespace syncrun::detail::arrays

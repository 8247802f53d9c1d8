#pragma once

// A folder to which processes on several nodes write. The master makes the folder, and a file in it with an id that no
// other folder has. A process on another node compares this id before it writes or reads there. So it does not take a
// folder of its own node for that of the master.

#include <chrono>
#include <filesystem>
#include <string>

#include "common/arrays/array_file.hpp"

namespace syncrun::detail::arrays {

/// The file with the id.
inline constexpr const char* kFolderId = "id.txt";

/// A folder, as the master describes it for other nodes.
struct SharedFolder {
  std::filesystem::path path;  // absolute
  std::string id;
};

/// An id that no other folder has. Throws Error (system).
std::string make_folder_id();
/// Writes the id, and waits until it is on disk. Throws Error (system).
void write_folder_id(const Folder& folder, const std::string& id);

/// Opens the folder. If it is not there yet, tries again until the limit is over: some file systems show it to other nodes
/// only after a while. Throws Error (usage) if the folder or its id cannot be seen, or if it is another folder.
Folder open_shared(const SharedFolder& shared, std::chrono::milliseconds limit);

}  // namespace syncrun::detail::arrays

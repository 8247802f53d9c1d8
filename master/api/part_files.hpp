#pragma once

// The files of an array whose parts several nodes have written.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/arrays/array_file.hpp"
#include "master/checkpoint/manifest.hpp"
#include "master/records/records.hpp"
#include "master/variables/variable_files.hpp"

namespace syncrun::detail {

/// "float32 of shape [2, 3]".
std::string shape_text(DType dtype, std::span<const std::int64_t> extents);

/// The parts of an array that the nodes of its ranks write themselves. Empty if the master writes the array: it is no
/// variable, all its rows are on the master's node, or it is small and every rank has all of it. Throws Error (usage) if
/// scattered rows differ in shape.
std::vector<master::checkpoint::ManifestPart> parts_of(const ArrayPlace& array);

std::vector<master::variables::RowsFile> files_of_parts(const master::checkpoint::ManifestArray& array);

/// Lets the nodes write the parts. Then checks that this node sees them. Returns false, and leaves no parts, if copies that
/// are saved as replicated differ from rank 0's. Throws Error (system), Error (usage) if a node does not see the folder, and
/// failures of calls that wrote the variable.
bool write_parts(const arrays::Folder& folder, const master::checkpoint::ManifestArray& array,
                 const std::shared_ptr<master::records::VariableRecord>& variable, const std::string& folder_id);

/// Whether all nodes of the session see the folder, and can write there. If they do not, the session remembers where the
/// checkpoint `root` is, and does not ask again for checkpoints beside it, because the answer takes some seconds.
bool is_seen_by_all(master::session::SessionCore& session, const std::filesystem::path& root,
                    const arrays::SharedFolder& folder);

/// Opens the parts, and checks that they have the rows that the manifest names. Throws Error (system), or Error (usage) if a
/// file is not as it should be. The message says which node has written the file.
std::vector<arrays::ArrayFile> open_parts(const arrays::Folder& folder, const master::checkpoint::ManifestArray& array);

}  // namespace syncrun::detail

#include "master/api/part_files.hpp"

#include <algorithm>
#include <filesystem>

#include "common/arrays/extents.hpp"
#include "common/protocol/row_shares.hpp"
#include "common/text/errors.hpp"
#include "master/records/variables.hpp"
#include "master/session/session_core.hpp"
#include "syncrun/checkpoint.hpp"

namespace syncrun::detail {

std::string shape_text(DType dtype, std::span<const std::int64_t> extents) {
  return std::string(to_string(dtype)) + " of shape " + syncrun::to_string(extents);
}

namespace {

/// The nodes share the work of writing an array that has this size or more on each of them.
constexpr std::size_t kLeastBytesOfPart = std::size_t{1} << 20U;

/// Each node writes the rows that are the shares of its ranks, although every rank has all rows.
std::vector<master::checkpoint::ManifestPart> parts_of_equal_copies(master::session::SessionCore& session,
                                                                    const ArrayPlace& array) {
  const master::records::CopyFacts& facts = array.variable->copies(session.commands().settled());
  const bool are_alike = std::all_of(facts.extents.begin(), facts.extents.end(),
                                     [&](const Extents& extents) { return extents == facts.extents.front(); });
  if (array.variable->value || !facts.assigned.all() || !are_alike)
    return {};  // the master saves them, or says why not
  const std::vector<protocol::NodePlace>& nodes = session.settings().nodes;
  const std::int64_t rows = facts.extents.front()[0];
  const std::size_t bytes = master::records::bytes_of(*array.variable, facts.extents.front());
  if (bytes / nodes.size() < kLeastBytesOfPart || rows < session.world_size()) return {};
  std::vector<master::checkpoint::ManifestPart> parts;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    parts.push_back(
        {protocol::rows_of_node(rows, session.world_size(), nodes[node]).count(), session.settings().node_names[node]});
  }
  return parts;
}

}  // namespace

std::vector<master::checkpoint::ManifestPart> parts_of(const ArrayPlace& array) {
  if (!array.variable) return {};
  master::session::SessionCore& session = *array.variable->session;
  const master::session::SessionCore::Entry guard(session);
  if (!session.place().has_others()) return {};
  if (array.placement == Placement::replicated) return parts_of_equal_copies(session, array);
  const master::records::Settled settled = session.commands().settled();
  static_cast<void>(master::records::extents_together(*array.variable, settled, "save"));  // the rows have one shape
  std::vector<master::checkpoint::ManifestPart> parts;
  int node_before = -1;
  for (int rank = 0; rank < session.world_size(); ++rank) {
    const std::int64_t rows = array.variable->extents_on(settled, static_cast<std::size_t>(rank))[0];
    const int node = session.node_of(rank);
    if (rows == 0) continue;
    if (node != node_before) parts.push_back({0, session.settings().node_names[static_cast<std::size_t>(node)]});
    parts.back().rows += rows;
    node_before = node;
  }
  const bool are_all_here = node_before <= 0;  // ranks are numbered node by node
  return are_all_here ? std::vector<master::checkpoint::ManifestPart>() : parts;
}

std::vector<master::variables::RowsFile> files_of_parts(const master::checkpoint::ManifestArray& array) {
  std::vector<master::variables::RowsFile> files;
  for (std::size_t part = 0; part < array.parts.size(); ++part)
    files.push_back({master::checkpoint::file_of_part(array.name, part), array.parts[part].rows});
  return files;
}

namespace {

[[noreturn]] void throw_unreadable(const arrays::Folder& folder, const std::string& file,
                                   const master::checkpoint::ManifestPart& part, const Error& error) {
  const std::string message = std::string(error.what()) + ". Node " + part.node + " has written " + file +
                              "; all nodes and readers of " + folder.path.string() + " have to share this folder";
  throw Error(error.kind(), message, error.native_code());
}

}  // namespace

std::vector<arrays::ArrayFile> open_parts(const arrays::Folder& folder,
                                          const master::checkpoint::ManifestArray& array) {
  std::vector<arrays::ArrayFile> files;
  const std::vector<master::variables::RowsFile> expected = files_of_parts(array);
  for (std::size_t part = 0; part < expected.size(); ++part) {
    const std::string& name = expected[part].name;
    try {
      const arrays::NpyHeader& header = files.emplace_back(folder, name).header();
      arrays::NpyHeader wanted = files.front().header();
      if (!wanted.shape.empty()) wanted.shape[0] = expected[part].rows;
      if (header.dtype == wanted.dtype && header.shape == wanted.shape && !wanted.shape.empty()) continue;
      text::throw_usage((folder.path / name).string() + ": expected " + shape_text(wanted.dtype, wanted.shape) +
                        ", found " + shape_text(header.dtype, header.shape));
    } catch (const Error& error) {
      throw_unreadable(folder, name, array.parts[part], error);
    }
  }
  return files;
}

bool write_parts(const arrays::Folder& folder, const master::checkpoint::ManifestArray& array,
                 const std::shared_ptr<master::records::VariableRecord>& variable, const std::string& folder_id) {
  const master::session::SessionCore::Entry guard(*variable->session);
  const master::variables::RowsOnDisk rows{
      variable, {std::filesystem::absolute(folder.path), folder_id}, files_of_parts(array)};
  if (array.placement == Placement::scattered) {
    master::variables::write_rows(variable->session->commands(), rows);
  } else if (!master::variables::write_shares(variable->session->commands(), rows)) {
    for (const master::variables::RowsFile& file : rows.files) arrays::remove_file(folder, file.name);
    return false;
  }
  static_cast<void>(open_parts(folder, array));
  return true;
}

bool is_seen_by_all(master::session::SessionCore& session, const std::filesystem::path& root,
                    const arrays::SharedFolder& folder) {
  const master::session::SessionCore::Entry guard(session);
  // Programs save to a new folder each time, in one that all of them are in.
  const std::filesystem::path key =
      std::filesystem::absolute(root / ".").lexically_normal().parent_path().parent_path();
  if (session.unshared_folders().contains(key)) return false;
  if (master::variables::is_seen_by_all(session.commands(), folder, session.settings().nodes)) return true;
  session.unshared_folders().insert(key);
  return false;
}

}  // namespace syncrun::detail

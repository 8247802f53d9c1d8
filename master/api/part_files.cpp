#include "master/api/part_files.hpp"

#include <filesystem>

#include "common/arrays/extents.hpp"
#include "common/text/errors.hpp"
#include "master/records/variables.hpp"
#include "master/session/session_core.hpp"
#include "syncrun/checkpoint.hpp"

namespace syncrun::detail {

std::string shape_text(DType dtype, std::span<const std::int64_t> extents) {
  return std::string(to_string(dtype)) + " of shape " + syncrun::to_string(extents);
}

std::vector<master::checkpoint::ManifestPart> parts_of(const ArrayPlace& array) {
  if (!array.variable || array.placement != Placement::scattered) return {};
  master::session::SessionCore& session = *array.variable->session;
  const master::session::SessionCore::Entry guard(session);
  if (!session.has_other_nodes()) return {};
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

void write_parts(const arrays::Folder& folder, const master::checkpoint::ManifestArray& array,
                 const std::shared_ptr<master::records::VariableRecord>& variable, const std::string& folder_id) {
  const master::session::SessionCore::Entry guard(*variable->session);
  const master::variables::RowsOnDisk rows{
      variable, {std::filesystem::absolute(folder.path), folder_id}, files_of_parts(array)};
  master::variables::write_rows(variable->session->commands(), rows);
  static_cast<void>(open_parts(folder, array));
}

}  // namespace syncrun::detail

#include "master/data/mapped_data.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/arrays/array_file.hpp"
#include "common/arrays/extents.hpp"
#include "common/text/errors.hpp"
#include "master/calls/describe.hpp"
#include "master/session/session_core.hpp"
#include "syncrun/session.hpp"

namespace syncrun::detail {

namespace {

/// The absolute path, or the path as given if the current folder no longer exists.
std::string absolute_name(const std::filesystem::path& path) {
  std::error_code failure;
  const std::filesystem::path absolute = std::filesystem::absolute(path, failure);
  return (failure ? path : absolute).string();
}

std::shared_ptr<master::records::DataRecord> make_record(const std::shared_ptr<master::session::SessionCore>& session,
                                                         const arrays::FileForm& form, std::string_view name) {
  auto record = std::make_shared<master::records::DataRecord>();
  record->session = session;
  record->name = name;
  record->dtype = form.dtype;
  record->dimensions = form.dimensions;
  record->extents = form.extents;
  return record;
}

/// "node 1 (n2)".
std::string node_text(const master::session::SessionCore& session, std::size_t node) {
  return "node " + std::to_string(node) + " (" + session.settings().node_names[node] + ")";
}

/// Asks a rank of each other node about its file. Returns the answers by node, without the first one.
std::vector<arrays::FileFacts> look_at_files(master::session::SessionCore& session, const std::string& path,
                                             const arrays::FileForm& form) {
  master::dispatch::CommandDispatcher& commands = session.commands();
  const auto world_size = static_cast<std::size_t>(commands.world_size());
  const master::calls::HeapLoan answers(commands, world_size * sizeof(arrays::FileFacts), "answers about files");
  const std::span<const protocol::NodePlace> others = std::span(session.settings().nodes).subspan(1);
  protocol::RankSet ranks;
  for (const protocol::NodePlace& node : others) ranks.add(node.first_rank);
  commands.run_system(
      commands.settle(ranks), "map", path, [&](protocol::CommandHead& command, master::calls::InFlight& in_flight) {
        const std::uint64_t question =
            commands.memory().allocate(sizeof(arrays::FileQuestion) + path.size(), "a path", in_flight.temporaries);
        auto* const asked =
            new (commands.segment().at(question)) arrays::FileQuestion{.form = form, .path_bytes = path.size()};
        std::copy(path.begin(), path.end(), asked->path());
        command.begin<protocol::LookPayload>() = {question, answers.offset()};
      });
  std::vector<arrays::FileFacts> facts;
  const auto* const by_rank = commands.segment().at<const arrays::FileFacts>(answers.offset());
  for (const protocol::NodePlace& node : others) facts.push_back(by_rank[node.first_rank]);
  return facts;
}

/// The nodes have files of one shape, except for the number of rows.
void check_same_rows(const master::session::SessionCore& session, const std::string& path, const Extents& first,
                     std::size_t node, const Extents& found, std::size_t dimensions) {
  if (std::equal(first.begin() + 1, first.begin() + static_cast<std::ptrdiff_t>(dimensions), found.begin() + 1)) return;
  const auto shape = [&](const Extents& extents) { return syncrun::to_string({extents.data(), dimensions}); };
  text::throw_usage(arrays::path_on_node(path, static_cast<int>(node)) + " on " + node_text(session, node) +
                    " has shape " + shape(found) + ", and " + arrays::path_on_node(path, 0) + " on " +
                    node_text(session, 0) + " has shape " + shape(first) +
                    ": the files of all nodes need rows of one shape");
}

/// Each node has a file of its own. The array has the rows of the first node, then those of the next one, and so on.
std::shared_ptr<master::records::DataRecord> map_parts(const std::shared_ptr<master::session::SessionCore>& session,
                                                       arrays::FileElements elements, const std::string& path,
                                                       const arrays::FileForm& asked, const arrays::FileForm& found,
                                                       std::string_view name) {
  auto record = make_record(session, found, name);
  std::vector<arrays::FilePartOfNode> parts(1);  // FileRecord completes the first one
  record->rows_on_nodes.push_back({0, found.extents[0]});
  struct stat before {};  // than the wait
  if (::fstat(elements.fd.get(), &before) != 0) text::throw_errno("cannot read " + elements.path.string());
  const std::vector<arrays::FileFacts> others = look_at_files(*session, path, asked);
  std::uint64_t begin = elements.bytes;
  for (std::size_t node = 1; node <= others.size(); ++node) {
    const arrays::FileFacts& facts = others[node - 1];
    check_same_rows(*session, path, found.extents, node, facts.extents, found.dimensions);
    const std::int64_t end = record->rows_on_nodes.back().end;
    record->rows_on_nodes.push_back({end, end + facts.extents[0]});
    parts.push_back({facts.elements_at, facts.bytes, begin, facts.state});
    begin += facts.bytes;
  }
  record->extents[0] = record->rows_on_nodes.back().end;
  static_cast<void>(arrays::checked_bytes(record->dtype, {record->extents.data(), record->dimensions}));
  record->file = std::make_shared<master::data::FileRecord>(session->commands(), session->registry(),
                                                            std::move(elements), path, std::move(parts));
  record->file->file().check_is({before.st_size, before.st_mtim.tv_sec, before.st_mtim.tv_nsec});
  return record;
}

std::shared_ptr<master::records::DataRecord> map_file(const std::shared_ptr<master::session::SessionCore>& session,
                                                      const std::filesystem::path& file, const arrays::FileForm& asked,
                                                      std::string_view name) {
  const master::session::SessionCore::Entry entry(*session);
  const std::string path = absolute_name(file);
  const bool has_parts = arrays::names_node(file.native());  // not the present folder
  arrays::FileForm found = asked;
  const std::filesystem::path own = has_parts ? std::filesystem::path(arrays::path_on_node(path, 0)) : file;
  arrays::FileElements elements = arrays::open_elements(own, found);
  if (has_parts && session->place().has_others())
    return map_parts(session, std::move(elements), path, asked, found, name);
  const auto readers = session->place().has_others() ? master::data::FileRecord::Readers::all_nodes
                                                     : master::data::FileRecord::Readers::this_node;
  auto record = make_record(session, found, name);
  record->file = std::make_shared<master::data::FileRecord>(session->commands(), session->registry(),
                                                            std::move(elements), readers);
  return record;
}

}  // namespace

master::data::FileRecord::FileRecord(master::calls::SystemCommands& commands, master::records::Registry& registry,
                                     arrays::FileElements elements, Readers readers)
    : FileRecord(commands, registry, std::move(elements)) {
  make_entry(file_.name(), {}).fingerprint = readers == Readers::all_nodes ? file_.fingerprint() : 0;
}

master::data::FileRecord::FileRecord(master::calls::SystemCommands& commands, master::records::Registry& registry,
                                     arrays::FileElements elements, const std::string& path,
                                     std::vector<arrays::FilePartOfNode> parts)
    : FileRecord(commands, registry, std::move(elements)) {
  parts.front() = {file_.elements_at(), file_.bytes(), 0, file_.state()};
  make_entry(path, parts);
}

master::data::FileRecord::FileRecord(master::calls::SystemCommands& commands, master::records::Registry& registry,
                                     arrays::FileElements elements)
    : commands_(commands),
      registry_(registry),
      file_(std::move(elements.fd), absolute_name(elements.path), elements.elements_at, elements.bytes),
      id_(registry.new_id()) {}

arrays::FileEntry& master::data::FileRecord::make_entry(const std::string& name,
                                                        std::span<const arrays::FilePartOfNode> parts) {
  entry_ = commands_.allocate(sizeof(arrays::FileEntry) + parts.size_bytes() + name.size(),
                              os::SharedHeap::Contents::any, "a mapped file");
  auto* const entry = new (commands_.segment().at(entry_)) arrays::FileEntry{.id = id_,
                                                                             .elements_at = file_.elements_at(),
                                                                             .bytes = file_.bytes(),
                                                                             .master = ::getpid(),
                                                                             .fd = file_.fd(),
                                                                             .state = file_.state(),
                                                                             .fingerprint = 0,
                                                                             .parts_count = parts.size(),
                                                                             .name_bytes = name.size()};
  std::copy(parts.begin(), parts.end(), entry->parts());
  std::copy(name.begin(), name.end(), entry->name());
  return *entry;
}

master::data::FileRecord::~FileRecord() {
  if (!commands_.is_open() || entry_ == 0) return;
  registry_.release_later([&commands = commands_, id = id_, entry = entry_] {
    commands.heap().free(entry, os::SharedHeap::Giveback::later);
    commands.launch_system(commands.settle(commands.all_ranks()), "the unmapping of a file", "",
                           [&](protocol::CommandHead& command, master::calls::InFlight&) {
                             command.begin<protocol::UnmapPayload>().file = id;
                           });
  });
}

void master::data::check_can_change(const master::records::DataRecord& record) {
  if (!record.file) return;
  text::throw_usage(master::calls::describe_data(record) + " is mapped from " + record.file->file().name() +
                    " and can only be read: an array that session.load or session.data makes can be written");
}

std::shared_ptr<master::records::DataRecord> map_data(const std::shared_ptr<master::session::SessionCore>& session,
                                                      const std::filesystem::path& file, DType dtype,
                                                      std::size_t dimensions, std::string_view name) {
  return map_file(session, file, {.dtype = dtype, .dimensions = static_cast<std::uint8_t>(dimensions)}, name);
}

std::shared_ptr<master::records::DataRecord> map_raw_data(const std::shared_ptr<master::session::SessionCore>& session,
                                                          const std::filesystem::path& file, DType dtype,
                                                          std::span<const std::int64_t> extents,
                                                          std::int64_t offset_bytes, std::string_view name) {
  arrays::FileForm form{.dtype = dtype,
                        .dimensions = static_cast<std::uint8_t>(extents.size()),
                        .has_header = false,
                        .offset_bytes = offset_bytes};
  std::copy(extents.begin(), extents.end(), form.extents.begin());
  return map_file(session, file, form, name);
}

}  // namespace syncrun::detail

#include "master/data/mapped_data.hpp"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "common/arrays/array_file.hpp"
#include "common/text/errors.hpp"
#include "master/calls/describe.hpp"
#include "master/session/session_core.hpp"
#include "syncrun/session.hpp"

namespace syncrun::detail {

namespace {

/// The elements are used in the mapping, so they must be aligned for their type.
void check_aligned(const arrays::ArrayFile& file) {
  const arrays::NpyHeader& header = file.header();
  if (header.data_offset % size_of(header.dtype) == 0) return;
  text::throw_usage(file.path().string() + ": expected elements at a multiple of their " +
                    std::to_string(size_of(header.dtype)) + " bytes to map them, found them at byte " +
                    std::to_string(header.data_offset) + ": load() copies such a file");
}

/// The absolute path, or the path as given if the current folder no longer exists.
std::string absolute_name(const std::filesystem::path& path) {
  std::error_code failure;
  const std::filesystem::path absolute = std::filesystem::absolute(path, failure);
  return (failure ? path : absolute).string();
}

std::shared_ptr<master::records::DataRecord> make_record(const std::shared_ptr<master::session::SessionCore>& session,
                                                         arrays::FileElements elements, DType dtype,
                                                         std::span<const std::int64_t> extents, std::string_view name) {
  auto record = std::make_shared<master::records::DataRecord>();
  record->session = session;
  record->name = name;
  record->dtype = dtype;
  record->dimensions = static_cast<std::uint8_t>(extents.size());
  std::copy(extents.begin(), extents.end(), record->extents.begin());
  const auto readers = session->has_other_nodes() ? master::data::FileRecord::Readers::all_nodes
                                                  : master::data::FileRecord::Readers::this_node;
  record->file = std::make_shared<master::data::FileRecord>(session->commands(), session->registry(),
                                                            std::move(elements), readers);
  return record;
}

}  // namespace

master::data::FileRecord::FileRecord(master::calls::SystemCommands& commands, master::records::Registry& registry,
                                     arrays::FileElements elements, Readers readers)
    : commands_(commands),
      registry_(registry),
      file_(std::move(elements.fd), absolute_name(elements.path), elements.elements_at, elements.bytes),
      id_(registry.new_id()),
      entry_(commands.allocate(sizeof(arrays::FileEntry) + file_.name().size(), os::SharedHeap::Contents::any,
                               "a mapped file")) {
  auto* const entry = new (commands.segment().at(entry_))
      arrays::FileEntry{.id = id_,
                        .elements_at = file_.elements_at(),
                        .bytes = file_.bytes(),
                        .master = ::getpid(),
                        .fd = file_.fd(),
                        .state = file_.state(),
                        .fingerprint = readers == Readers::all_nodes ? file_.fingerprint() : 0,
                        .name_bytes = file_.name().size()};
  std::copy(file_.name().begin(), file_.name().end(), entry->name());
}

master::data::FileRecord::~FileRecord() {
  if (!commands_.is_open()) return;
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
  const master::session::SessionCore::Entry entry(*session);
  arrays::ArrayFile opened(file);
  opened.check_type(dtype, dimensions);
  check_aligned(opened);
  return make_record(session, opened.take_elements(), dtype, opened.header().shape, name);
}

std::shared_ptr<master::records::DataRecord> map_raw_data(const std::shared_ptr<master::session::SessionCore>& session,
                                                          const std::filesystem::path& file, DType dtype,
                                                          std::span<const std::int64_t> extents,
                                                          std::int64_t offset_bytes, std::string_view name) {
  const master::session::SessionCore::Entry entry(*session);
  std::vector<std::int64_t> found(extents.begin(), extents.end());
  arrays::FileElements elements = arrays::open_raw_elements(file, dtype, found, offset_bytes);
  return make_record(session, std::move(elements), dtype, found, name);
}

}  // namespace syncrun::detail

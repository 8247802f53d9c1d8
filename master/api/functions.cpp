// Replicated functions and objects: how the workers find the code, and how objects are created and destroyed.

#include "master/dispatch/construct_object.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/code/symbols.hpp"
#include "common/protocol/function_address.hpp"
#include "common/protocol/function_entry.hpp"
#include "common/text/errors.hpp"
#include "master/calls/body_check.hpp"
#include "master/calls/body_entry.hpp"
#include "master/session/session_core.hpp"
#include "syncrun/session.hpp"

namespace syncrun::detail {

namespace {

/// True for a pointer to a virtual method. Such a pointer contains an offset in the object's table, not an address
/// (Itanium C++ ABI 2.3). The lowest bit of the first word marks it, or of the second word on machines where code
/// addresses may be odd (AArch64).
bool is_virtual(const BodyPointer& pointer) noexcept {
#if defined(__aarch64__)
  return pointer.is_member && (pointer.words[1] & 1U) != 0;
#else
  return pointer.is_member && (pointer.words[0] & 1U) != 0;
#endif
}

}  // namespace

protocol::BodyEntry master::calls::describe_body(const void* thunk, const BodyPointer& pointer) {
  protocol::BodyEntry entry{};
  entry.is_member = pointer.is_member;
  entry.thunk = protocol::locate(thunk);
  entry.words = {pointer.words[0], pointer.words[1]};
  entry.is_relocated = pointer.words[0] != 0 && !is_virtual(pointer);
  if (entry.is_relocated) entry.pointer = protocol::locate(reinterpret_cast<const void*>(pointer.words[0]));
  return entry;
}

std::string master::calls::choose_name(std::string_view given, const BodyPointer& pointer, std::string_view otherwise) {
  if (!given.empty()) return std::string(given);
  if (!is_virtual(pointer)) {
    const std::string name = code::function_name_at(reinterpret_cast<const void*>(pointer.words[0]));
    if (!name.empty()) return name;
  }
  return std::string(otherwise);
}

namespace {

std::uint64_t write_entry(master::pool::SegmentHeap memory, std::span<const Body> bodies, std::uint64_t id,
                          std::string_view name) {
  const std::uint64_t offset =
      memory.heap.allocate(sizeof(protocol::FunctionEntry), os::SharedHeap::Contents::zero, "a replicated function");
  auto& entry = *memory.segment.at<protocol::FunctionEntry>(offset);
  entry.id = id;
  text::put_text(entry.name, name);
  try {
    for (const Body& body : bodies) {
      for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
        if (!runs_on(body.device, kind)) continue;
        protocol::BodyEntry& there = entry.bodies[static_cast<std::size_t>(kind)];
        there = master::calls::describe_body(reinterpret_cast<const void*>(body.thunk), body.pointer);
        there.bucket_bytes = body.bucket_bytes;
        there.is_step = body.is_step;
        there.first = body.first;
      }
    }
  } catch (...) {
    memory.heap.free(offset, os::SharedHeap::Giveback::later);
    throw;
  }
  return offset;
}

}  // namespace

std::shared_ptr<master::records::FunctionRecord> define_function(
    const std::shared_ptr<master::session::SessionCore>& session, const SignatureInfo& signature,
    std::span<const Body> bodies, std::string_view name, std::shared_ptr<master::records::ObjectRecord> object) {
  const master::session::SessionCore::Entry guard(*session);
  if (object && object->session != session) text::throw_usage("the replicated object is of another session");
  const std::uint64_t id = session->registry().new_id();
  auto record = std::make_shared<master::records::FunctionRecord>();
  record->name = master::calls::choose_name(name, bodies.front().pointer, "function #" + std::to_string(id));
  record->signature = signature;
  record->object = std::move(object);
  for (const Body& body : bodies) {
    if (runs_on(body.device, DeviceKind::cpu)) record->written_by_update = body.written_by_update;
    for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
      if (!runs_on(body.device, kind)) continue;
      record->bodies[static_cast<std::size_t>(kind)] =
          body.is_replayable ? master::records::BodyState::replayable : master::records::BodyState::present;
      record->kinds.add(kind);
    }
  }
  record->writes_object = std::ranges::any_of(bodies, [](const Body& body) { return !body.pointer.is_const; });
  for (const auto& argument : signature.arguments) {
    record->has_updates = record->has_updates || argument.kind == ArgumentKind::update;
  }
  record->keeps_outputs = std::ranges::any_of(signature.outputs, [](const OutputType& type) { return type.is_kept; });
  record->entry = write_entry(session->memory(), bodies, id, record->name);
  record->session = session;
  return record;
}

master::records::FunctionRecord::~FunctionRecord() {
  // Calls in flight hold the record, so no worker reads the entry any more. (Workers keep what they have loaded by its
  // id.)
  if (session && session->is_open()) session->give_up(entry, os::SharedHeap::Giveback::later);
}

const std::string& name_of(const master::records::FunctionRecord& function) noexcept { return function.name; }

namespace {

constexpr const char* kConstruction = "construction";

void fill_in_construction(master::calls::SystemCommands& commands, const master::records::ObjectRecord& object,
                          protocol::CommandHead& command, master::calls::InFlight& in_flight) {
  auto& construction = command.begin<protocol::CallPayload>();
  construction.constructs = true;
  construction.function = object.constructor;
  construction.object = object.id;
  construction.arguments_count = 1;
  const std::uint64_t offset =
      commands.memory().allocate(object.arguments.size(), "the arguments of a constructor", in_flight.temporaries);
  commands.calls().next_slot().arguments[0] = {
      .kind = ArgumentKind::value, .offset = offset, .bytes = object.arguments.size()};
  if (!object.arguments.empty()) {
    std::memcpy(commands.segment().at(offset), object.arguments.data(), object.arguments.size());
  }
}

}  // namespace

std::shared_ptr<master::records::ObjectRecord> replicate_object(
    const std::shared_ptr<master::session::SessionCore>& session, std::span<const Body> bodies,
    std::span<const std::byte> arguments, std::string_view name) {
  const master::session::SessionCore::Entry guard(*session);
  protocol::DeviceKinds constructors;
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    const auto runs_there = [kind](const Body& body) { return runs_on(body.device, kind); };
    if (std::ranges::any_of(bodies, runs_there)) constructors.add(kind);
  }
  master::calls::check_constructors(constructors, session->rank_devices());
  auto record = std::make_shared<master::records::ObjectRecord>();
  master::dispatch::CommandDispatcher& commands = session->commands();
  record->id = session->registry().new_id();
  record->name = std::string(name);
  record->constructor =
      write_entry(session->memory(), bodies, session->registry().new_id(), "constructor of " + record->name);
  record->arguments.assign(arguments.begin(), arguments.end());
  // From here on the destructor of the record destroys the objects on the ranks. This is needed if a constructor
  // throws.
  record->session = session;
  const std::uint64_t id =
      commands.launch_system(commands.settle(session->all_ranks()), kConstruction, record->name,
                             [&](protocol::CommandHead& command, master::calls::InFlight& in_flight) {
                               fill_in_construction(commands, *record, command, in_flight);
                               in_flight.constructed = record;
                             });
  session->calls().note_write(record->writes, id);  // so calls of its methods depend on it
  session->registry().add(record);
  return record;
}

void master::dispatch::construct_object(master::calls::SystemCommands& commands,
                                        const master::records::ObjectRecord& object, const protocol::RankSet& ranks) {
  commands.run_system(commands.settle(ranks), kConstruction, object.name,
                      [&](protocol::CommandHead& command, master::calls::InFlight& in_flight) {
                        fill_in_construction(commands, object, command, in_flight);
                      });
}

std::shared_ptr<ObjectHistory>& history_of(master::records::ObjectRecord& object) noexcept { return object.history; }
std::vector<int> take_renewed(master::records::ObjectRecord& object) { return std::exchange(object.renewed, {}); }
void put_back_renewed(master::records::ObjectRecord& object, const std::vector<int>& ranks) {
  for (const int rank : ranks) {
    if (std::ranges::find(object.renewed, rank) == object.renewed.end()) object.renewed.push_back(rank);
  }
}

master::records::ObjectRecord::~ObjectRecord() {
  if (!session || !session->is_open()) return;
  master::session::SessionCore* core = session.get();
  core->registry().release_later([core, object = id, entry = constructor] {
    core->heap().free(entry, os::SharedHeap::Giveback::later);
    master::dispatch::CommandDispatcher& commands = core->commands();
    commands.launch_system(commands.settle(core->all_ranks()), "the destruction of a replicated object", "",
                           [&](protocol::CommandHead& command, master::calls::InFlight&) {
                             command.begin<protocol::DestroyPayload>().object = object;
                           });
  });
}

}  // namespace syncrun::detail

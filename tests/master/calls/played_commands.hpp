#pragma once

// System commands without workers. This class carries out transfers as workers would. It only records the other
// commands.

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/arrays/extents.hpp"
#include "common/protocol/variable_entry.hpp"
#include "master/calls/system_commands.hpp"
#include "tests/master/pool/fake_pool.hpp"

namespace syncrun::test {

class PlayedCommands final : public detail::master::calls::SystemCommands {
 public:
  PlayedCommands(FakePool& pool, detail::master::calls::CommandTable& calls, detail::os::SharedHeap& heap,
                 const detail::master::devices::RankDevices& devices)
      : detail::master::calls::SystemCommands({pool.segment(), heap}, calls, devices), pool_(pool) {}

  std::vector<std::string> log;  // for example "set of weights"
  std::function<void(const detail::protocol::Command&)>
      on_command;  // called before the command is carried out; may throw
  std::function<void(std::uint64_t)> on_await;
  std::function<void()> on_users;  // what happens while the users of something are awaited
  bool is_session_open = true;
  bool leaves_in_flight = false;  // commands that are launched

  void run_system(const detail::master::records::Room& room, const char* what, const std::string& subject,
                  const Fill& fill) override {
    const std::uint64_t id = publish(room, what, subject, fill);
    const detail::protocol::Command& command = calls().command(id);
    pool_.finish_all(id);
    std::exception_ptr failure;
    try {
      if (on_command) on_command(command);
      if (command.kind == detail::protocol::CommandKind::transfer)
        transfer(command.as<detail::protocol::TransferPayload>());
    } catch (...) {
      failure = std::current_exception();
    }
    for (const auto offset : calls().in_flight(id).temporaries)
      heap().free(offset, detail::os::SharedHeap::Giveback::later);
    calls().release(id, failure ? calls().failures().note(failure) : nullptr);
    if (failure) std::rethrow_exception(failure);
  }
  std::uint64_t launch_system(const detail::master::records::Room& room, const char* what, const std::string& subject,
                              const Fill& fill) override {
    if (leaves_in_flight) return publish(room, what, subject, fill);
    run_system(room, what, subject, fill);
    return calls().last_published();
  }
  /// A command that was left in flight is over.
  void finish(std::uint64_t id) {
    pool_.finish_all(id);
    for (const auto offset : calls().in_flight(id).temporaries)
      heap().free(offset, detail::os::SharedHeap::Giveback::later);
    calls().release(id, nullptr);
  }
  bool make_room(const detail::protocol::RankSet&) override {
    waits().note_wait();
    return false;
  }
  void await(std::uint64_t id) override {
    waits().note_wait();
    log.emplace_back("await");
    if (on_await) on_await(id);
  }
  void drain_all() override {
    waits().note_wait();
    log.emplace_back("drain all");
  }
  void await_users(const void*) override {
    waits().note_wait();
    log.emplace_back("await users");
    if (on_users) on_users();
  }
  bool is_open() const noexcept override { return is_session_open; }

  /// A rank's copy of a variable, as float elements.
  std::vector<float>& copy(std::uint64_t entry, int rank) { return copies_[{entry, rank}]; }

 private:
  std::uint64_t publish(const detail::master::records::Room& room, const char* what, const std::string& subject,
                        const Fill& fill) {
    room.check();
    log.push_back(subject.empty() ? what : std::string(what) + " of " + subject);
    detail::protocol::CommandHead& command = calls().next(room.ranks(), Milliseconds(0));  // first: it chooses the slot
    fill(command, calls().next_in_flight());
    waits().note_wait();
    return calls().publish();
  }
  void transfer(const detail::protocol::TransferPayload& payload) {
    const auto* slot = segment().at<const detail::protocol::TransferSlot>(payload.parts);
    for (std::uint32_t variable = 0; variable < payload.variables_count; ++variable) {
      for (int rank = 0; rank < world_size(); ++rank, ++slot) {
        if (slot->takes_part) transfer(payload.direction, *slot, rank);
      }
    }
  }
  void transfer(detail::protocol::TransferDirection direction, const detail::protocol::TransferSlot& slot, int rank) {
    auto& entry = *segment().at<detail::protocol::VariableEntry>(slot.variable);
    std::vector<float>& own = copy(slot.variable, rank);
    if (direction == detail::protocol::TransferDirection::from_variable) {
      std::memcpy(segment().at(slot.offset), own.data(), own.size() * sizeof(float));
      return;
    }
    const auto* values = segment().at<const float>(slot.offset);
    const auto elements = detail::arrays::elements_in({slot.extents.data(), entry.dimensions});
    own.assign(values, values + elements);
    entry.copies()[rank] = {
        .place = 0, .exported = 0, .capacity_bytes = elements * sizeof(float), .extents = slot.extents, .spare = 0};
  }

  FakePool& pool_;
  std::map<std::pair<std::uint64_t, int>, std::vector<float>> copies_;
};

/// A fake pool with a heap, and the objects that run commands on it.
struct PlayedSession {
  explicit PlayedSession(const std::vector<detail::master::devices::DeviceId>& all_devices,
                         std::vector<detail::protocol::NodePlace> nodes = {})
      : devices(all_devices, std::move(nodes)),
        pool(devices.world_size()),
        heap(pool.segment(), pool.control().header().heap_offset, pool.control().header().heap_bytes,
             detail::protocol::pages_of(devices.kinds())) {
    calls.attach(pool.control());
  }

  /// A variable of floats without a copy.
  std::shared_ptr<detail::master::records::VariableRecord> variable(const std::string& name,
                                                                    std::uint8_t dimensions = 1) {
    auto made = std::make_shared<detail::master::records::VariableRecord>();
    made->name = name;
    made->dtype = DType::float32;
    made->dimensions = dimensions;
    made->copies.change() = detail::master::records::CopyFacts(static_cast<std::size_t>(commands.world_size()));
    made->entry = heap.allocate(detail::protocol::VariableEntry::bytes(commands.world_size()),
                                detail::os::SharedHeap::Contents::zero, "a variable");
    auto& entry = *pool.segment().at<detail::protocol::VariableEntry>(made->entry);
    entry.dtype = made->dtype;
    entry.dimensions = made->dimensions;
    return made;
  }

  detail::master::devices::RankDevices devices;
  FakePool pool;
  detail::master::calls::CommandTable calls;
  detail::os::SharedHeap heap;
  PlayedCommands commands{pool, calls, heap, devices};
};

}  // namespace syncrun::test

#include "master/calls/system_commands.hpp"

#include <cerrno>

#include "syncrun/error.hpp"

namespace syncrun::detail::master::calls {

records::Room SystemCommands::settle(const protocol::RankSet& ranks, std::span<const void* const> records) {
  for (const void* const record : records) await_users(record);
  make_room(ranks);  // a wait makes no new users
  return {waits_, ranks};
}

void SystemCommands::when_settled(const protocol::RankSet& ranks, std::span<const void* const> records,
                                  const std::function<void(const records::Room&)>& change) {
  const std::uint64_t before = calls_.last_published();
  try {
    return change(settle(ranks, records));
  } catch (const Error& error) {
    if (error.native_code() != ENOMEM || calls_.last_published() != before || calls_.is_idle()) throw;
  }
  drain_all();
  change(settle(ranks, records));
}

void SystemCommands::give_back_pages() {
  if (!devices_.kinds().has(DeviceKind::cuda)) return;
  run_system(settle(all_ranks()), "unpin", "",
             [](protocol::CommandHead& command, InFlight&) { command.begin<protocol::UnpinPayload>(); });
  heap().trim();
}

namespace {

bool is_unseen(const std::shared_ptr<records::CallFailure>& failure) noexcept { return failure && !failure->is_seen; }

}  // namespace

std::exception_ptr SystemCommands::depend_on(const records::WriteLog& writes) {
  for (const std::uint64_t id : writes.calls) {
    if (!calls_.is_in_flight(id)) continue;
    const InFlight& call = calls_.in_flight(id);
    if (is_unseen(call.inherited) && calls_.command(id).ranks.meets(calls_.next_ranks())) return call.inherited->error;
    calls_.depend_on(id);
  }
  return collected_failure(writes, calls_.next_ranks());
}

/// A failure that the program has not seen, of a call that wrote on one of these ranks and was collected.
std::exception_ptr SystemCommands::collected_failure(const records::WriteLog& writes, const protocol::RankSet& ranks) {
  for (const records::WriteFailure& known : writes.failures) {
    if (is_unseen(known.failure) && known.ranks.meets(ranks)) return known.failure->error;
  }
  return nullptr;
}

/// As collected_failure(), also of calls in flight that are known to fail.
std::exception_ptr SystemCommands::known_failure(const records::WriteLog& writes,
                                                 const protocol::RankSet& ranks) const {
  for (const std::uint64_t id : writes.calls) {
    if (!calls_.is_in_flight(id) || !calls_.command(id).ranks.meets(ranks)) continue;
    if (const auto& inherited = calls_.in_flight(id).inherited; is_unseen(inherited)) return inherited->error;
  }
  return collected_failure(writes, ranks);
}

void SystemCommands::wait_for_copies(const records::WriteLog& writes) {
  for (const records::CopyRead& read : writes.copies) {
    if (calls_.next_ranks().has(read.source)) calls_.wait_for(read.command, read.rank, Requirement::end);
  }
}

void SystemCommands::follow(const records::WriteLog& writes, const protocol::RankSet& sources) {
  wait_for_copies(writes);
  std::exception_ptr failure = depend_on(writes);
  if (!failure) failure = known_failure(writes, sources);
  if (!failure) return;
  calls_.failures().has_surfaced(failure);
  std::rethrow_exception(failure);
}

std::uint64_t SystemCommands::allocate(std::size_t bytes, os::SharedHeap::Contents contents, std::string_view what) {
  waits_.note_wait();  // also if it need not wait this time
  try {
    return heap().allocate(bytes, contents, what);
  } catch (const Error& error) {
    if (error.native_code() != ENOMEM || !devices_.kinds().has(DeviceKind::cuda)) throw;
  }
  give_back_pages();
  return heap().allocate(bytes, contents, what);
}

protocol::TransferSlot* begin_transfer(SystemCommands& commands, protocol::CommandHead& command, InFlight& in_flight,
                                       protocol::TransferDirection direction, std::size_t variables) {
  auto& payload = command.begin<protocol::TransferPayload>();
  payload.direction = direction;
  payload.variables_count = static_cast<std::uint32_t>(variables);
  const std::size_t slots = variables * static_cast<std::size_t>(commands.world_size());
  payload.parts =
      commands.memory().allocate(sizeof(protocol::TransferSlot) * slots, "a transfer", in_flight.temporaries);
  return commands.segment().at<protocol::TransferSlot>(payload.parts);
}

}  // namespace syncrun::detail::master::calls

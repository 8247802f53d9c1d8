#include "launcher/session_core.hpp"

#include <cerrno>
#include <cstdio>
#include <utility>

#include "common/environment.hpp"
#include "common/errors.hpp"
#include "common/file_descriptor.hpp"
#include "launcher/inheritance.hpp"

namespace syncrun::detail {

namespace {

// One live session per process. Not a session's state, but the claim to be the only one.
std::atomic_flag live_session;

class Claim {
 public:
  Claim() {
    if (live_session.test_and_set()) throw_usage("there is a live session in this process already: close it first");
  }
  ~Claim() {
    if (!kept_) live_session.clear();
  }
  void keep() noexcept { kept_ = true; }

 private:
  bool kept_ = false;
};

std::vector<std::string> names_of(const std::vector<DeviceId>& devices) {
  std::vector<std::string> names;
  for (const auto& device : devices) names.push_back(to_string(device));
  return names;
}

}  // namespace

// ---- opening --------------------------------------------------------------------------------------------------

SessionCore::SessionCore(const SessionOptions& options) {
  Claim claim;
  open_missing_standard_streams();
  settings_ = resolve_settings(options);
  logger_ = make_logger("syncrun", settings_.log_level);
  for (const auto& device : settings_.devices) kinds_.add(device.kind);
  pool_ = std::make_unique<LocalPool>(settings_);
  ring_.attach(control());
  report_.emplace(*pool_, ring_, names_of(settings_.devices));
  recovery_.emplace(*pool_, ring_, *report_, recovery_steps(), settings_.max_respawns);
  const auto& header = control().header();
  heap_ = SharedHeap(segment(), header.heap_offset, header.heap_bytes, pages_of(kinds_));
  outputs_ = OutputCollector(segment(), control());
  policy_ = WaitPolicy::for_processes(world_size() + 1, usable_cores());
  begin_profile();
  start();
  announce();
  state_ = State::open;
  claim.keep();
}

void SessionCore::start() {
  pool_->start();
  await_ready();
  pool_->watch();
  for (const int rank : all_ranks()) logger_->info(report_->describe_rank(rank) + " is ready");
}

void SessionCore::await_ready() {
  auto& header = control().header();
  Patience patience(settings_.start_timeout);
  int failed = -1;
  const auto ready = [&] {
    bool all = true;
    for (const int rank : all_ranks()) {
      const StartState state = control().worker(rank).start.load(std::memory_order_seq_cst);
      if (state == StartState::failed) failed = rank;
      all = all && state == StartState::ready;
    }
    return all || failed >= 0;
  };
  // Never spinning here: starting takes milliseconds, and the workers want the cores.
  WaitPolicy policy = WaitPolicy::yielding();
  const auto lost = [this] { return has_lost_worker(); };
  const auto look = [this](Clock::time_point now) { report_->look(now); };
  const Woken woken = wait_until(header.to_master, policy, patience, ready, lost, look);
  if (woken == Woken::interrupted) failed = static_cast<int>(header.lost.load()) - 1;
  if (failed >= 0) {
    if (const auto blindness = pool_->blindness()) throw *blindness;
    throw report_->failed_start(failed, pool_->await_end(failed));
  }
  if (woken == Woken::expired) throw report_->late_start(settings_.start_timeout);
}

/// The mapping of ranks to devices: `syncrun` says it, unless it is to be quiet; a program on its own logs it.
void SessionCore::announce() const {
  if (!settings_.overruled.empty()) logger_->warn(settings_.overruled);
  const std::string mapping = describe_mapping(settings_.devices);
  if (supervisor_link().is_connected() && environment::get(environment::kQuiet) == nullptr) {
    std::fprintf(stderr, "syncrun: %s\n", mapping.c_str());
  } else {
    logger_->info(mapping);
  }
}

void SessionCore::begin_profile() {
  if (settings_.profile.empty() && settings_.trace.empty()) return;
  const auto bytes = sizeof(Timeline) * static_cast<std::size_t>(world_size());
  const std::uint64_t offset = heap_.allocate(bytes, SharedHeap::Contents::zero, "the timelines of a profile");
  control().header().timelines_offset = offset;
  profiler_ = std::make_unique<Profiler>(settings_, segment().at<const Timeline>(offset));
}

Recovery::Steps SessionCore::recovery_steps() {
  return {.collect = [this](std::uint64_t id) { collect(id); },
          .free = [this](std::uint64_t offset) { heap_.free(offset, SharedHeap::Giveback::later); },
          .forget_copies = [this](int rank) { forget_copies(*this, rank); },
          .welcome =
              [this](const std::vector<int>& ranks) {
                await_ready();
                for (const int rank : ranks) {
                  logger_->warn(report_->describe_rank(rank) + " takes the place of a worker that was lost");
                }
              },
          .pass_on = [this](const std::vector<int>& ranks, Failure& failure) { pass_on(*this, ranks, failure); }};
}

// ---- entries --------------------------------------------------------------------------------------------------

SessionCore::Entry::Entry(SessionCore& session) : session_(session) {
  if (session_.busy_.test_and_set(std::memory_order_acquire)) {
    throw_usage("a session is used from one thread at a time: another thread is inside a call of it");
  }
  try {
    session_.check_open();
    if (session_.registry_.has_releases()) session_.registry_.run_releases();
  } catch (...) {
    session_.busy_.clear(std::memory_order_release);
    throw;
  }
}

DeviceKinds SessionCore::kinds_of(const RankSet& ranks) const noexcept {
  if (ranks == all_ranks()) return kinds_;
  DeviceKinds kinds;
  for (const int rank : ranks) kinds.add(device_kind(rank));
  return kinds;
}

// ---- memory ---------------------------------------------------------------------------------------------------

void SessionCore::give_up(std::uint64_t offset, SharedHeap::Giveback giveback) noexcept {
  if (busy_.test_and_set(std::memory_order_acquire)) {
    return registry_.release_later([this, offset, giveback] { heap_.free(offset, giveback); });
  }
  if (is_open()) heap_.free(offset, giveback);
  busy_.clear(std::memory_order_release);
}

void SessionCore::give_back_pages() {
  if (!kinds_.has(DeviceKind::cuda)) return;
  run_system("unpin", "", [](Command& command, InFlight&) { command.begin<UnpinPayload>(CommandKind::unpin); });
  heap_.trim();
}

std::uint64_t SessionCore::allocate(std::size_t bytes, SharedHeap::Contents contents, std::string_view what) {
  try {
    return heap_.allocate(bytes, contents, what);
  } catch (const Error& error) {
    if (error.native_code() != ENOMEM || !kinds_.has(DeviceKind::cuda)) throw;
  }
  give_back_pages();
  return heap_.allocate(bytes, contents, what);
}

// ---- the end (see session_ends.cpp) ---------------------------------------------------------------------------

void SessionCore::abandon() noexcept {
  if (state_ == State::closed) return;
  const bool was_open = state_ == State::open;
  state_ = State::closed;
  registry_.end_dependants();
  if (pool_) pool_->end();
  if (fork_guard_.is_here()) end_profile();
  ring_.forget_all();
  registry_.forget_releases();
  if (was_open) live_session.clear();
}

/// What goes wrong is close()'s to throw; without a close, it is logged in the end.
void SessionCore::end_profile() noexcept {
  if (!profiler_) return;
  try {
    profiler_->close();
  } catch (const Error& error) {
    profile_failure_ = error;
  }
}

SessionCore::~SessionCore() {
  abandon();
  if (profile_failure_) logger_->warn(profile_failure_->what());
}

}  // namespace syncrun::detail

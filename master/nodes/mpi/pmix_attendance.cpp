// Engines with PMIx: Open MPI's mpirun, and srun --mpi=pmix.
//
// A node asks for a value of each other node. PMIx answers for a node that has come, also if there is no such value. For
// another one it waits until the node comes.

#include "master/nodes/mpi/engine_attendance.hpp"

#ifdef SYNCRUN_HAVE_PMIX

#include <dlfcn.h>
#include <pmix.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "common/os/mutex.hpp"

namespace syncrun::detail::master::nodes::mpi {

namespace {

constexpr os::Milliseconds kLongestWait{2000};
constexpr const char* kNoSuchValue = "syncrun.attendance";

/// What has been answered. Answers may come at any time, so they share it.
struct Answers {
  Answers(std::size_t nodes, std::size_t own)
      : attendance{std::vector<bool>(nodes), std::vector<std::string>(nodes)}, missing_hosts(nodes) {
    attendance.has_come[own] = true;
  }

  os::Mutex mutex;
  std::condition_variable has_changed;
  Attendance attendance SYNCRUN_GUARDED_BY(mutex);
  std::size_t missing_hosts SYNCRUN_GUARDED_BY(mutex);
};

struct Question {
  std::shared_ptr<Answers> answers;
  std::size_t node;
  bool is_about_host;
};

void take_answer(const Question& question, pmix_status_t status, const pmix_value_t* value) {
  Answers& answers = *question.answers;
  {
    const os::MutexLock lock(answers.mutex);
    if (question.is_about_host) {
      --answers.missing_hosts;
      if (status == PMIX_SUCCESS && value != nullptr && value->type == PMIX_STRING)
        answers.attendance.hosts[question.node] = value->data.string;
    } else if (status == PMIX_SUCCESS || status == PMIX_ERR_NOT_FOUND) {
      answers.attendance.has_come[question.node] = true;
    }
  }
  answers.has_changed.notify_all();
}

extern "C" void syncrun_take_pmix_answer(pmix_status_t status, pmix_value_t* value, void* question) {
  const std::unique_ptr<Question> owner(static_cast<Question*>(question));
  take_answer(*owner, status, value);
}

using Get = pmix_status_t (*)(const pmix_proc_t*, const char*, const pmix_info_t*, std::size_t, pmix_value_cbfunc_t,
                              void*);

/// The function of the library that Open MPI has loaded. Null if that has another version of PMIx.
Get find_get() {
  void* const library = ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<Get>(::dlsym(library, "PMIx_Get_nb"));
}

void ask(Get get, const char* job, const char* key, std::unique_ptr<Question> question) {
  pmix_proc_t task{};
  std::strncpy(task.nspace, job, sizeof(task.nspace) - 1);
  task.rank = static_cast<pmix_rank_t>(question->node);
  const pmix_status_t status = get(&task, key, nullptr, 0, syncrun_take_pmix_answer, question.get());
  if (status == PMIX_SUCCESS) static_cast<void>(question.release());  // its answer comes later
  else take_answer(*question, status, nullptr);
}

}  // namespace

std::optional<Attendance> ask_engine(int node, int nodes, pthread_t) {
  const char* const job = std::getenv("PMIX_NAMESPACE");
  const Get get = find_get();
  if (job == nullptr || get == nullptr) return std::nullopt;
  const auto count = static_cast<std::size_t>(nodes);
  const auto answers = std::make_shared<Answers>(count, static_cast<std::size_t>(node));
  for (std::size_t other = 0; other < count; ++other) {
    ask(get, job, PMIX_HOSTNAME, std::make_unique<Question>(answers, other, true));
    if (other != static_cast<std::size_t>(node))
      ask(get, job, kNoSuchValue, std::make_unique<Question>(answers, other, false));
  }
  os::UniqueLock lock(answers->mutex);
  answers->has_changed.wait_for(lock, kLongestWait, [&]() SYNCRUN_REQUIRES(answers->mutex) {
    const auto& come = answers->attendance.has_come;
    return answers->missing_hosts == 0 && std::count(come.begin(), come.end(), true) == nodes;
  });
  return answers->attendance;
}

}  // namespace syncrun::detail::master::nodes::mpi

#else

namespace syncrun::detail::master::nodes::mpi {

std::optional<Attendance> ask_engine(int, int, pthread_t) { return std::nullopt; }

}  // namespace syncrun::detail::master::nodes::mpi

#endif

#include "master/process/native_stack.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include "common/code/optional_library.hpp"
#include "common/code/symbols.hpp"
#include "common/os/kernel_file.hpp"
#include "common/os/mutex.hpp"

#if defined(SYNCRUN_HAVE_LIBDW)
#include <elfutils/libdwfl.h>
#endif

namespace syncrun::detail::master::process {

namespace {

/// The state that two threads share: the one that takes the stacks, and the one that waits for it and may stop waiting.
struct Taking {
  std::vector<int> pids;
  os::Mutex mutex;
  std::condition_variable changed;
  std::vector<NativeStack> stacks SYNCRUN_GUARDED_BY(mutex);  // the stacks so far, in the order of pids
  bool is_given_up SYNCRUN_GUARDED_BY(mutex) = false;
};

#if defined(SYNCRUN_HAVE_LIBDW)

constexpr std::size_t kMostThreads = 4;
constexpr std::size_t kMostFrames = 20;
constexpr std::size_t kDeepest = 200;
constexpr std::size_t kLongestFunctionName = 160;

/// The functions of libdw, as found in the library.
struct Libdw {
  decltype(&::dwfl_begin) begin;
  decltype(&::dwfl_end) end;
  decltype(&::dwfl_linux_proc_find_elf) find_elf;
  decltype(&::dwfl_linux_proc_report) report;
  decltype(&::dwfl_report_end) report_end;
  decltype(&::dwfl_linux_proc_attach) attach;
  decltype(&::dwfl_getthread_frames) frames;
  decltype(&::dwfl_thread_dwfl) dwfl_of_thread;
  decltype(&::dwfl_frame_thread) thread_of_frame;
  decltype(&::dwfl_frame_pc) pc;
  decltype(&::dwfl_addrmodule) module_at;
  decltype(&::dwfl_module_addrinfo) symbol_at;
  decltype(&::dwfl_module_info) module_info;
  decltype(&::dwfl_errmsg) message;
};

/// Returns nothing if the library is not installed, or if it lacks a function.
std::optional<Libdw> load_libdw() {
  code::OptionalLibrary library("libdw.so.1");
  Libdw dw{};
  library.find(dw.begin, "dwfl_begin");
  library.find(dw.end, "dwfl_end");
  library.find(dw.find_elf, "dwfl_linux_proc_find_elf");
  library.find(dw.report, "dwfl_linux_proc_report");
  library.find(dw.report_end, "dwfl_report_end");
  library.find(dw.attach, "dwfl_linux_proc_attach");
  library.find(dw.frames, "dwfl_getthread_frames");
  library.find(dw.dwfl_of_thread, "dwfl_thread_dwfl");
  library.find(dw.thread_of_frame, "dwfl_frame_thread");
  library.find(dw.pc, "dwfl_frame_pc");
  library.find(dw.module_at, "dwfl_addrmodule");
  library.find(dw.symbol_at, "dwfl_module_addrinfo");
  library.find(dw.module_info, "dwfl_module_info");
  library.find(dw.message, "dwfl_errmsg");
  return library.has_all() ? std::optional(dw) : std::nullopt;
}

struct Frame {
  std::string function;
  std::string library;
};
struct Walk {
  const Libdw* dw;
  std::vector<Frame> frames;
};

/// Symbols are sufficient. On some machines libdw would fetch files with debugging information over the network.
int find_no_debuginfo(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*, GElf_Word, char**) {
  return -1;
}

Frame frame_at(const Libdw& dw, Dwfl* process, Dwarf_Addr pc) {
  Frame frame{"??", ""};
  Dwfl_Module* module = dw.module_at(process, pc);
  if (module == nullptr) return frame;
  GElf_Off offset = 0;
  GElf_Sym symbol{};
  if (const char* name = dw.symbol_at(module, pc, &offset, &symbol, nullptr, nullptr, nullptr)) {
    frame.function = code::short_function_name(code::demangled(name));
    if (frame.function.empty()) frame.function = name;
    if (frame.function.size() > kLongestFunctionName)
      frame.function = frame.function.substr(0, kLongestFunctionName) + "...";
  }
  if (const char* path = dw.module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr)) {
    frame.library = std::string_view(path).substr(std::string_view(path).rfind('/') + 1);
  }
  return frame;
}

int on_frame(Dwfl_Frame* state, void* walk_of) {
  auto& walk = *static_cast<Walk*>(walk_of);
  const Libdw& dw = *walk.dw;
  Dwarf_Addr pc = 0;
  bool is_exact = false;
  if (!dw.pc(state, &pc, &is_exact) || walk.frames.size() >= kDeepest) return DWARF_CB_ABORT;
  // A return address may already belong to the next function.
  walk.frames.push_back(frame_at(dw, dw.dwfl_of_thread(dw.thread_of_frame(state)), is_exact ? pc : pc - 1));
  return DWARF_CB_OK;
}

bool is_of_the_system(const Frame& frame) {
  return frame.library.starts_with("libc.so") || frame.library.starts_with("ld-") || frame.library.starts_with('[');
}
/// True for a frame that brought a thread to the user's function. These frames are the same in every stack.
bool is_plumbing(const Frame& frame) {
  constexpr std::array<std::string_view, 7> kNames{"syncrun::detail::",
                                                   "syncrun::serve_if_worker",
                                                   "syncrun::run",
                                                   "__libc_start",
                                                   "_start",
                                                   "start_thread",
                                                   "clone"};
  // A name that the demangler does not understand, of a function in this namespace.
  constexpr std::string_view kMangled = "7syncrun6detail";
  if (frame.function == "main" || (frame.function == "??" && is_of_the_system(frame))) return true;
  std::string_view function = frame.function;
  if (function.starts_with("_Z") && function.find(kMangled) != std::string_view::npos) return true;
  if (constexpr std::string_view kLambda = "lambda in "; function.starts_with(kLambda))
    function.remove_prefix(kLambda.size());
  return std::any_of(kNames.begin(), kNames.end(), [&](std::string_view name) { return function.starts_with(name); });
}

/// Removes the plumbing from the end of a stack. Keeps it if the other frames are only those of the system.
void cut_plumbing(std::vector<Frame>& frames) {
  std::size_t kept = frames.size();
  while (kept > 0 && is_plumbing(frames[kept - 1])) --kept;
  const auto end = frames.begin() + static_cast<std::ptrdiff_t>(kept);
  if (!std::all_of(frames.begin(), end, is_of_the_system)) frames.erase(end, frames.end());
}

void append(std::vector<std::string>& lines, std::vector<Frame> frames) {
  cut_plumbing(frames);
  for (std::size_t i = 0; i < std::min(frames.size(), kMostFrames); ++i) {
    lines.push_back("#" + std::to_string(i) + " " + frames[i].function +
                    (frames[i].library.empty() ? "" : " (" + frames[i].library + ")"));
  }
  if (frames.size() > kMostFrames) lines.push_back("... and " + std::to_string(frames.size() - kMostFrames) + " more");
}

std::string name_of_thread(int pid, int thread) {
  const std::string line =
      os::kernel_file("/proc/" + std::to_string(pid) + "/task/" + std::to_string(thread) + "/comm");
  return line.substr(0, line.find('\n'));
}

/// The main thread comes first, because it serves the calls.
std::vector<int> threads_of(int pid) {
  std::vector<int> threads{pid};
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
    const int thread = std::atoi(entry.path().filename().c_str());
    if (thread > 0 && thread != pid && !name_of_thread(pid, thread).starts_with("syncrun-")) threads.push_back(thread);
  }
  std::sort(threads.begin() + 1, threads.end());
  if (threads.size() > kMostThreads) threads.resize(kMostThreads);
  return threads;
}

NativeStack stack_of(const Libdw& dw, int pid) {
  NativeStack stack;
  const auto problem = [&](int code) {
    const char* why = code > 0 ? ::strerrordesc_np(code) : dw.message(-1);
    stack.problem = std::string("ptrace is not permitted: ") + (why != nullptr ? why : "no reason given");
    return stack;
  };
  const Dwfl_Callbacks callbacks{dw.find_elf, find_no_debuginfo, nullptr, nullptr};
  const std::unique_ptr<Dwfl, decltype(dw.end)> process(dw.begin(&callbacks), dw.end);
  if (!process) return problem(0);
  if (const int code = dw.report(process.get(), pid); code != 0) return problem(code);
  dw.report_end(process.get(), nullptr, nullptr);
  if (const int code = dw.attach(process.get(), pid, false); code != 0) return problem(code);
  for (const int thread : threads_of(pid)) {
    Walk walk{&dw, {}};
    // An error here only means that no further frame could be found.
    static_cast<void>(dw.frames(process.get(), thread, on_frame, &walk));
    if (walk.frames.empty() && thread == pid) return problem(0);
    if (walk.frames.empty()) continue;
    if (thread != pid)
      stack.lines.push_back("thread " + std::to_string(thread) + " (" + name_of_thread(pid, thread) + "):");
    append(stack.lines, std::move(walk.frames));
  }
  return stack;
}

void take(Taking& taking) {
  const auto dw = load_libdw();
  for (const int pid : taking.pids) {
    NativeStack stack{{}, "libdw.so.1 is not installed"};
    if (pid == 0) stack.problem = "its process has not begun";
    else if (dw) stack = stack_of(*dw, pid);
    const os::MutexLock lock(taking.mutex);
    if (taking.is_given_up) return;
    taking.stacks.push_back(std::move(stack));
    taking.changed.notify_all();
  }
}

#else

void take(Taking& taking) {
  const os::MutexLock lock(taking.mutex);
  taking.stacks.resize(taking.pids.size(), NativeStack{{}, "Syncrun was built without libdw"});
  taking.changed.notify_all();
}

#endif

/// Runs in a separate thread for two reasons: only the thread that traces a process can use the trace, and a thread
/// that is stuck can be left behind.
void take_quietly(const std::shared_ptr<Taking>& taking) noexcept {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  ::pthread_setname_np(::pthread_self(), "syncrun-stacks");
  try {
    take(*taking);
  } catch (const std::exception& error) {
    const os::MutexLock lock(taking->mutex);
    taking->stacks.resize(taking->pids.size(), NativeStack{{}, error.what()});
    taking->changed.notify_all();
  }
}

}  // namespace

std::vector<NativeStack> native_stacks(const std::vector<int>& pids, os::Milliseconds limit) noexcept {
  if (pids.empty()) return {};
  try {
    const auto taking = std::make_shared<Taking>();
    taking->pids = pids;
    std::thread taker([taking] { take_quietly(taking); });
    std::vector<NativeStack> stacks;
    {
      os::UniqueLock lock(taking->mutex);
      taking->changed.wait_for(lock, limit,
                               [&]() SYNCRUN_REQUIRES(taking->mutex) { return taking->stacks.size() == pids.size(); });
      taking->is_given_up = true;
      stacks = taking->stacks;
    }
    if (stacks.size() == pids.size()) taker.join();
    else taker.detach();  // it ends when what it waits for is killed
    stacks.resize(pids.size(), NativeStack{{}, "it was not available within " + std::to_string(limit.count()) + " ms"});
    return stacks;
  } catch (const std::exception& error) {
    return std::vector<NativeStack>(pids.size(), NativeStack{{}, error.what()});
  }
}

}  // namespace syncrun::detail::master::process

#include "master/process/native_stack.hpp"

#include <pthread.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

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

constexpr const char* kNoLibdw = "libdw.so.1 is not installed";
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
  decltype(&::dwfl_attach_state) attach_state;
  decltype(&::dwfl_thread_state_registers) set_registers;
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
  library.find(dw.attach_state, "dwfl_attach_state");
  library.find(dw.set_registers, "dwfl_thread_state_registers");
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
  std::vector<Frame> frames{};
  os::Clock::time_point deadline = os::Clock::time_point::max();
  bool begins_at_call = false;  // the first address is a return address too
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
  if (os::Clock::now() > walk.deadline) return DWARF_CB_ABORT;
  // A return address may already belong to the next function.
  is_exact = is_exact && !std::exchange(walk.begins_at_call, false);
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
  const bool is_whole = frames.size() < kDeepest;
  cut_plumbing(frames);
  for (std::size_t i = 0; i < std::min(frames.size(), kMostFrames); ++i) {
    lines.push_back("#" + std::to_string(i) + " " + frames[i].function +
                    (frames[i].library.empty() ? "" : " (" + frames[i].library + ")"));
  }
  if (frames.size() > kMostFrames)
    lines.push_back((is_whole ? "... and " : "... and at least ") + std::to_string(frames.size() - kMostFrames) +
                    " more");
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

std::string heading_of(int pid, int thread) {
  return "thread " + std::to_string(thread) + " (" + name_of_thread(pid, thread) + "):";
}

/// The images of a process, and why they cannot be read: an errno, -1 for an error of libdw, or 0.
struct Images {
  Images(const Libdw& dw, int pid)
      : callbacks{dw.find_elf, find_no_debuginfo, nullptr, nullptr}, process(dw.begin(&callbacks), dw.end) {
    if (process) code = dw.report(process.get(), pid);
    if (code == 0) dw.report_end(process.get(), nullptr, nullptr);
  }
  Dwfl_Callbacks callbacks;
  std::unique_ptr<Dwfl, decltype(Libdw::end)> process;
  int code = -1;
};

NativeStack refused(const Libdw& dw, int code) {
  if (code == ESRCH || code == ENOENT) return {{}, "the process has died"};
  const char* why = code > 0 ? ::strerrordesc_np(code) : dw.message(-1);
  return {{}, std::string("ptrace is not permitted: ") + (why != nullptr ? why : "no reason given")};
}

NativeStack stack_of(const Libdw& dw, int pid) {
  NativeStack stack;
  const Images images(dw, pid);
  Dwfl* const process = images.process.get();
  if (images.code != 0) return refused(dw, images.code);
  if (const int code = dw.attach(process, pid, false); code != 0) return refused(dw, code);
  for (const int thread : threads_of(pid)) {
    Walk walk{&dw};
    // An error here only means that no further frame could be found.
    static_cast<void>(dw.frames(process, thread, on_frame, &walk));
    if (walk.frames.empty() && thread == pid) return refused(dw, 0);
    if (walk.frames.empty()) continue;
    if (thread != pid) stack.lines.push_back(heading_of(pid, thread));
    append(stack.lines, std::move(walk.frames));
  }
  return stack;
}

/// A thread that has crashed, for the functions with which libdw looks at it.
struct CrashedThread {
  const Libdw* dw;
  protocol::CrashReport report;
  int code = 0;  // why its memory cannot be read
};

bool read_word(CrashedThread& crashed, std::uint64_t address, Dwarf_Word& word) {
  const iovec here{&word, sizeof(word)};
  const iovec there{reinterpret_cast<void*>(address), sizeof(word)};
  if (::process_vm_readv(crashed.report.pid, &here, 1, &there, 1, 0) == sizeof(word)) return true;
  crashed.code = errno;
  return false;
}

pid_t next_thread(Dwfl*, void* crashed, void** thread) {
  if (std::exchange(*thread, crashed) != nullptr) return 0;
  return static_cast<CrashedThread*>(crashed)->report.thread;
}
bool get_thread(Dwfl*, pid_t, void* crashed, void** thread) {
  *thread = crashed;
  return true;
}
bool read_memory(Dwfl*, Dwarf_Addr address, Dwarf_Word* word, void* crashed) {
  return read_word(*static_cast<CrashedThread*>(crashed), address, *word);
}
bool give_registers(Dwfl_Thread* thread, void* of) {
  const auto& crashed = *static_cast<CrashedThread*>(of);
  const std::vector<Dwarf_Word> words(crashed.report.registers.begin(), crashed.report.registers.end());
  return crashed.dw->set_registers(thread, 0, static_cast<unsigned>(words.size()), words.data());
}
constexpr Dwfl_Thread_Callbacks kCrashedCallbacks{next_thread,    get_thread, read_memory,
                                                  give_registers, nullptr,    nullptr};

/// If the thread has called a null pointer or another address without code, no unwind table describes this place. But the
/// return address is on top of the stack.
void step_out_of_nowhere(CrashedThread& crashed, Dwfl* process, Walk& walk) {
  auto& registers = crashed.report.registers;
  std::uint64_t& pc = registers[protocol::CrashReport::kProgramCounter];
  std::uint64_t& stack = registers[protocol::CrashReport::kStackPointer];
  if (walk.dw->module_at(process, pc) != nullptr) return;
  std::array<char, 2 + 16 + 1> address{};
  std::snprintf(address.data(), address.size(), "0x%llx", static_cast<unsigned long long>(pc));
  Dwarf_Word caller = 0;
  if (!read_word(crashed, stack, caller) || walk.dw->module_at(process, caller) == nullptr) return;
  walk.frames.push_back({"??", std::string("address ") + address.data()});
  pc = caller;
  stack += sizeof(caller);
  walk.begins_at_call = true;
}

NativeStack crashed_stack_of(const Libdw& dw, const protocol::CrashReport& report, os::Clock::time_point deadline) {
  const Images images(dw, report.pid);
  Dwfl* const process = images.process.get();
  if (images.code != 0) return refused(dw, images.code);
  CrashedThread crashed{&dw, report};
  if (!dw.attach_state(process, nullptr, report.pid, &kCrashedCallbacks, &crashed)) return refused(dw, 0);
  Walk walk{.dw = &dw, .deadline = deadline};
  step_out_of_nowhere(crashed, process, walk);
  // An error here only means that no further frame could be found.
  static_cast<void>(dw.frames(process, report.thread, on_frame, &walk));
  NativeStack stack;
  // The first frame follows from the registers alone.
  if (walk.frames.size() <= 1 && crashed.code == EPERM) stack = refused(dw, crashed.code);
  else if (walk.frames.empty()) stack.problem = "no frame was found in time";
  else if (crashed.code == ESRCH || os::Clock::now() > deadline) stack.problem = "the rest was not available in time";
  if (!walk.frames.empty() && report.thread != report.pid) stack.lines.push_back(heading_of(report.pid, report.thread));
  append(stack.lines, std::move(walk.frames));
  return stack;
}

void take(Taking& taking) {
  const auto dw = load_libdw();
  for (const int pid : taking.pids) {
    NativeStack stack{{}, kNoLibdw};
    if (pid == 0) stack.problem = "its process has not begun";
    else if (dw) stack = stack_of(*dw, pid);
    const os::MutexLock lock(taking.mutex);
    if (taking.is_given_up) return;
    taking.stacks.push_back(std::move(stack));
    taking.changed.notify_all();
  }
}

constexpr const char* kLibdwAdvice = "install libdw1";
bool has_libdw() { return load_libdw().has_value(); }

#else

constexpr const char* kNoLibdw = "Syncrun was built without libdw";
constexpr const char* kLibdwAdvice = "install libdw-dev and libdw1, and build Syncrun again";
bool has_libdw() { return false; }

void take(Taking& taking) {
  const os::MutexLock lock(taking.mutex);
  taking.stacks.resize(taking.pids.size(), NativeStack{{}, kNoLibdw});
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

StackProblem why_no_stacks() { return has_libdw() ? StackProblem{} : StackProblem{kNoLibdw, kLibdwAdvice}; }

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

NativeStack crashed_stack([[maybe_unused]] const protocol::CrashReport& crash,
                          [[maybe_unused]] os::Clock::time_point deadline) {
#if defined(SYNCRUN_HAVE_LIBDW)
  if (const auto dw = load_libdw()) return crashed_stack_of(*dw, crash, deadline);
#endif
  return {{}, kNoLibdw};
}

}  // namespace syncrun::detail::master::process

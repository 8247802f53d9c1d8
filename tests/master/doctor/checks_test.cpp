// The checks of `syncrun doctor`, on machines that do not exist.

#include "master/doctor/checks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "master/doctor/figures.hpp"
#include "master/doctor/report.hpp"
#include "tests/support/temporary_folder.hpp"

namespace {

using namespace syncrun::detail::master::doctor;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kGiB = 1 << 30;

/// A machine without limits. Its files are in a folder.
class Doctor : public testing::Test {
 protected:
  Doctor() {
    system_.root = folder_.path().string();
    system_.user = 1000;
    system_.cores = {0, 1, 2, 3};
    system_.space = [this](const std::string&) { return shared_folder_; };
    system_.run = [this](const std::vector<std::string>&) { return output_of_ldd_; };
    system_.variable = [](const char*) { return static_cast<const char*>(nullptr); };
    write("/proc/meminfo", "MemTotal:       8000000 kB\nMemAvailable:   7000000 kB\n");
    write("/proc/self/cgroup", "0::/job\n");
    write("/proc/loadavg", "3.50 1 1 1/1 1\n");
  }

  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = folder_.path().string() + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void add_process(const std::string& pid, char state, const std::string& mark) {
    write("/proc/" + pid + "/stat", pid + " (program) " + state + " 1");
    write("/proc/" + pid + "/environ", std::string("HOME=/\0SYNCRUN_JOB=", 19) + mark + std::string("\0X=1", 4));
  }
  void add_gpus(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      system_.gpus.devices.push_back({"NVIDIA X", "0000:0" + std::to_string(i) + ":00.0", 80 * kGiB, 9, 0, 18});
    system_.gpus.pairs.assign(count, std::vector<GpuPair>(count, GpuPair{true, true, "SYS"}));
    system_.gpus.driver = "550.54";
    system_.gpus.driver_cuda = 12040;
  }

  TemporaryFolder folder_;
  System system_;
  std::optional<Space> shared_folder_ = Space{8 * kGiB, 8 * kGiB};
  std::string output_of_ldd_;
};

/// The only finding about a thing. It says what to do if something must be done.
Finding about(const Findings& findings, const std::string& what) {
  const auto found =
      std::find_if(findings.begin(), findings.end(), [&](const Finding& each) { return each.what == what; });
  if (found == findings.end()) {
    ADD_FAILURE() << "nothing about " << what;
    return {};
  }
  EXPECT_EQ(found->advice.empty(), found->level == Level::ok) << what << ": " << found->advice;
  return *found;
}

TEST_F(Doctor, IsContentWithAMachineWithoutLimits) {
  for (const auto check :
       {check_memory, check_cpu_quota, check_process_limits, check_shared_folder, check_leftovers, check_gpu_links}) {
    for (const Finding& finding : check(system_)) EXPECT_EQ(finding.level, Level::ok) << finding.what;
  }
}

TEST_F(Doctor, WarnsOfAControlGroupThatWillKillTheJob) {
  write("/sys/fs/cgroup/job/memory.max", "1073741824\n");
  write("/sys/fs/cgroup/job/memory.current", "1040187392\n");  // 32 MiB less
  write("/sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file 16777216\n");
  const Finding tight = about(check_memory(system_), "memory of the control group");
  EXPECT_EQ(tight.level, Level::wrong);
  EXPECT_EQ(tight.value, "50 MB of 1.1 GB free") << "files in the cache can be dropped";
  EXPECT_THAT(tight.advice, HasSubstr("docker run --memory"));
  write("/sys/fs/cgroup/job/memory.current", "536870912\n");
  EXPECT_EQ(about(check_memory(system_), "memory of the control group").level, Level::warning);
  write("/sys/fs/cgroup/job/memory.max", "max\n");
  for (const Finding& finding : check_memory(system_)) EXPECT_EQ(finding.what, "memory of the machine");
}

TEST_F(Doctor, WarnsOfAQuotaThatIsSmallerThanTheCores) {
  write("/sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  const Finding quota = about(check_cpu_quota(system_), "CPU quota");
  EXPECT_EQ(quota.level, Level::warning);
  EXPECT_EQ(quota.value, "2 cores' worth of time, on 4 cores");
  write("/sys/fs/cgroup/job/cpu.max", "400000 100000\n");
  EXPECT_EQ(about(check_cpu_quota(system_), "CPU quota").level, Level::ok);
}

TEST_F(Doctor, JudgesTheLimitsOfTheProcess) {
  system_.limits = {.open_files = 24,
                    .processes = 100,
                    .locked_bytes = 65536,
                    .core_bytes = 0,
                    .address_space_bytes = kGiB,
                    .file_bytes = kMiB};
  EXPECT_EQ(about(check_process_limits(system_), "open files").level, Level::wrong);
  EXPECT_EQ(about(check_process_limits(system_), "processes").level, Level::warning);
  EXPECT_EQ(about(check_process_limits(system_), "locked memory").level, Level::ok) << "nothing locks memory here";
  EXPECT_THAT(about(check_memory(system_), "address space").advice, HasSubstr("ulimit -v unlimited"));
  EXPECT_EQ(about(check_memory(system_), "size of files").value, "1 MB");
  write("/sys/class/infiniband/mlx5_0/x", "");
  EXPECT_EQ(about(check_process_limits(system_), "locked memory").level, Level::warning);
  system_.limits.open_files = 512;
  EXPECT_EQ(about(check_process_limits(system_), "open files").level, Level::warning);
}

TEST_F(Doctor, WarnsOfASmallSharedFolder) {
  shared_folder_ = Space{64 * kMiB, 60 * kMiB};
  EXPECT_EQ(about(check_shared_folder(system_), "/dev/shm").level, Level::warning);
  add_gpus(1);
  EXPECT_EQ(about(check_shared_folder(system_), "/dev/shm").level, Level::wrong) << "NCCL fails";
  shared_folder_ = Space{512 * kMiB, 512 * kMiB};
  EXPECT_EQ(about(check_shared_folder(system_), "/dev/shm").level, Level::warning);
  shared_folder_.reset();
  EXPECT_EQ(about(check_shared_folder(system_), "/dev/shm").value, "missing");
}

TEST_F(Doctor, SaysWhetherOneCanDebugHere) {
  write("/proc/sys/kernel/yama/ptrace_scope", "3\n");
  write("/proc/sys/kernel/core_pattern", "|/usr/lib/systemd/systemd-coredump %P %u\n");
  write("/proc/sys/user/max_user_namespaces", "0\n");
  const Findings findings = check_debugging(system_);
  EXPECT_EQ(about(findings, "ptrace").level, Level::warning);
  EXPECT_THAT(about(findings, "ptrace").advice, HasSubstr("kernel.yama.ptrace_scope to 1 in /etc/sysctl.d"));
  EXPECT_EQ(about(findings, "core files").value, "go to /usr/lib/systemd/systemd-coredump");
  EXPECT_EQ(about(findings, "user namespaces").value, "off");
  write("/proc/sys/kernel/yama/ptrace_scope", "2\n");
  EXPECT_EQ(about(check_debugging(system_), "ptrace").level, Level::warning);
  system_.user = 0;
  system_.stacks = {"built without libdw", "install libdw-dev"};
  EXPECT_EQ(about(check_debugging(system_), "ptrace").level, Level::ok) << "root may do it";
  EXPECT_EQ(about(check_debugging(system_), "native stacks").advice, "install libdw-dev");
}

TEST_F(Doctor, FindsProcessesWhoseMasterHasEnded) {
  add_process("100", 'S', "90-777");
  add_process("101", 'S', "91-777");  // its master lives
  add_process("91", 'S', "");
  add_process("102", 'Z', "90-777");  // has ended too
  add_process("103", 'S', "92-777");  // its master is a zombie
  write("/proc/92/stat", "92 (a (strange) name) Z 1");
  add_process("104", 'S', "7-777");  // in a container, where its master is process 7
  std::filesystem::create_directories(folder_ / "proc/104/ns");
  std::filesystem::create_symlink("pid:[4026532999]", folder_ / "proc/104/ns/pid");
  const Finding left = about(check_leftovers(system_), "leftover processes");
  EXPECT_EQ(left.level, Level::warning);
  EXPECT_THAT(left.advice, HasSubstr("kill 100 103"));
}

// ---- GPUs and versions ----------------------------------------------------------------------------------------

TEST_F(Doctor, DescribesGpusAndTheirPlaces) {
  add_gpus(2);
  write("/sys/bus/pci/devices/0000:01:00.0/numa_node", "1\n");
  write("/sys/bus/pci/devices/0000:01:00.0/local_cpulist", "2-3\n");
  EXPECT_EQ(about(check_gpus(system_), "GPU 1").value,
            "NVIDIA X, 85.9 GB, compute capability 9.0, 18 NVLinks, NUMA node 1, near cores 2-3");
  EXPECT_EQ(about(check_gpu_links(system_), "GPU 0 to others").value, "- NVLink");
  system_.gpus.pairs[0][1] = {false, false, "SYS"};
  const Finding link = about(check_gpu_links(system_), "GPU 0 to others");
  EXPECT_EQ(link.level, Level::warning);
  EXPECT_EQ(link.value, "- SYS(no peer)");
  system_.variable = [](const char* name) { return std::string_view(name) == "CUDA_VISIBLE_DEVICES" ? "1" : nullptr; };
  EXPECT_EQ(about(check_gpus(system_), "CUDA_VISIBLE_DEVICES").level, Level::note);
  system_.gpus = {};
  EXPECT_EQ(about(check_gpus(system_), "GPUs").level, Level::note);
  system_.gpus = {.why_unknown = "nvmlInit failed with code 9"};
  EXPECT_EQ(about(check_gpus(system_), "GPUs").level, Level::wrong);
}

std::string fitting(const std::string& library) { return library.starts_with("libnccl") ? "2.28.9" : "9.14.0"; }
std::string too_old(const std::string&) { return "2.20.5"; }
std::string missing(const std::string&) { return {}; }

TEST_F(Doctor, ComparesTheVersionsOfCudaLibraries) {
  const BuiltWith built{.cuda = "12.9", .nccl = "2.28.3", .cudnn = "9.10.2"};
  EXPECT_EQ(about(check_cuda_versions(system_, built, missing), "CUDA").level, Level::ok) << "there is no GPU";
  EXPECT_EQ(about(check_cuda_versions(system_, {}, missing), "CUDA").level, Level::note);
  add_gpus(1);
  for (const Finding& finding : check_cuda_versions(system_, built, fitting))
    EXPECT_EQ(finding.level, Level::ok) << finding.what << ": " << finding.value;
  EXPECT_EQ(about(check_cuda_versions(system_, built, too_old), "NCCL").level, Level::wrong);
  EXPECT_THAT(about(check_cuda_versions(system_, built, missing), "NCCL").value,
              HasSubstr("libnccl.so.2 was not found"));
  EXPECT_EQ(about(check_cuda_versions(system_, {}, fitting), "CUDA").level, Level::warning);
  system_.gpus.driver_cuda = 0;
  EXPECT_EQ(about(check_cuda_versions(system_, built, fitting), "CUDA").level, Level::note);
  system_.gpus.driver_cuda = 11080;
  const Finding driver = about(check_cuda_versions(system_, built, fitting), "CUDA");
  EXPECT_EQ(driver.level, Level::wrong);
  EXPECT_THAT(driver.value, HasSubstr("driver 550.54 for CUDA up to 11.8"));
}

TEST_F(Doctor, FindsWhatAPartOfSyncrunMisses) {
  write("/lib/libsyncrun_torch.so." SYNCRUN_SOVERSION, "");
  output_of_ldd_ = "\tlibtorch_cpu.so => /opt/torch/libtorch_cpu.so (0x7f)\n\tlibc.so.6 => /lib/libc.so.6 (0x7e)\n";
  write("/lib/cmake/Syncrun/SyncrunTorchVersion.cmake", "set(built_with \"1.13.0\")\n");
  EXPECT_EQ(about(check_plugins(system_, "/lib"), "LibTorch part").value,
            "built with LibTorch 1.13.0, /opt/torch/libtorch_cpu.so");
  write("/opt/share/cmake/Torch/TorchConfigVersion.cmake", "set(PACKAGE_VERSION \"2.11.0\")\nif(\"x\")\n");
  std::filesystem::create_directories(folder_ / "opt/torch");
  const Finding other = about(check_plugins(system_, "/lib"), "LibTorch part");
  EXPECT_EQ(other.level, Level::warning);
  EXPECT_EQ(other.value, "built with LibTorch 1.13.0, /opt/torch/libtorch_cpu.so, which is 2.11.0");
  output_of_ldd_ = "\tlibtorch_cpu.so.1.13 => /lib/libtorch_cpu.so.1.13 (0x7f)\n";
  EXPECT_EQ(about(check_plugins(system_, "/lib"), "LibTorch part").level, Level::ok);
  write("/lib/libsyncrun_torch_cuda.so." SYNCRUN_SOVERSION, "");
  output_of_ldd_ = "\tlibtorch_cuda.so => not found\n";
  EXPECT_EQ(about(check_plugins(system_, "/lib"), "LibTorch part for GPUs").value, "does not find libtorch_cuda.so");
  output_of_ldd_ = "\tlibtorch_cpu.so => not found\n\tlibc10.so => not found\n";
  const Finding lost = about(check_plugins(system_, "/lib"), "LibTorch part");
  EXPECT_EQ(lost.level, Level::warning);
  EXPECT_EQ(lost.value, "does not find libtorch_cpu.so, libc10.so");
  output_of_ldd_.clear();
  EXPECT_EQ(about(check_plugins(system_, "/lib"), "LibTorch part").level, Level::note) << "there is no ldd";
}

// ---- figures --------------------------------------------------------------------------------------------------

TEST_F(Doctor, JudgesFiguresByWhatTheMachineCanDo) {
  Figures figures =
      read_figures("ranks 2\nlibrary " SYNCRUN_VERSION
                   "\nsome other words\nfigure start 0.05\nfigure empty-call 3e-06\n"
                   "figure copy 1e+10\nfigure copies 1.5e+10\nfigure scatter 8e+09\nfigure product 5e+10\n"
                   "figure all-reduce-1MiB 0.0004\nfigure all-reduce-100MiB 0.05\n");
  for (const Finding& finding : judge_figures(figures, 4, system_))
    EXPECT_EQ(finding.level, Level::ok) << finding.what << ": " << finding.value;
  EXPECT_EQ(about(judge_figures(figures, 4, system_), "all_reduce of 100 MiB").value, "50.00 ms, 2.10 GB/s");
  figures.values["empty-call"] = 50e-6;
  const Finding slow = about(judge_figures(figures, 4, system_), "empty call");
  EXPECT_EQ(slow.level, Level::warning);
  EXPECT_EQ(slow.value, "50.0 us on 2 ranks, expected at most 20.0 us");
  EXPECT_THAT(slow.advice, HasSubstr("load 3.50"));
  EXPECT_EQ(about(judge_figures(figures, 2, system_), "empty call").level, Level::ok) << "no core is left over";
}

TEST_F(Doctor, JudgesGpusAloneAndTogetherAndTheWaysToOtherNodes) {
  const Figures figures = read_figures(
      "ranks 4\nranks:n1 2\nranks:n2 2\nfigure to-device:n1:cuda0 2.5e+10\nfigure to-device:n1:cuda1 3e+09\n"
      "figure to-devices:n1 1e+10\nfigure latency:n2 4e-05\nfigure bandwidth:n2 5e+06\nfigure gpu-product:n2 9e+13\n"
      "figure gpu-copies:n1 6.5e+12\nfigure gpu-copies:n2 1e+11\n"
      "figure empty-call 2e-3\nfigure empty-call:n2 9e-4\nunmeasured rank 1: no CUDA\n");
  const Findings findings = judge_figures(figures, 8, system_);
  EXPECT_EQ(about(findings, "host to n1:cuda0").level, Level::ok);
  EXPECT_EQ(about(findings, "host to n1:cuda1").level, Level::warning);
  EXPECT_EQ(about(findings, "host to all GPUs at once on n1").level, Level::warning);
  EXPECT_EQ(about(findings, "memory of all GPUs on n1").value, "6500.00 GB/s");
  EXPECT_EQ(about(findings, "memory of all GPUs on n2").level, Level::warning) << "two ranks";
  EXPECT_EQ(about(findings, "call of one rank on n2").value, "40.0 us");
  EXPECT_EQ(about(findings, "values to one rank on n2").level, Level::warning);
  EXPECT_EQ(about(findings, "matrix product, all ranks on n2").level, Level::ok);
  EXPECT_EQ(about(findings, "empty call").value, "2000.0 us on 4 ranks, expected at most 1000.0 us");
  EXPECT_EQ(about(findings, "empty call on n2").level, Level::ok);
  EXPECT_EQ(about(findings, "figures of devices").value, "some are missing: rank 1: no CUDA");
}

TEST_F(Doctor, KnowsTheReferenceBlas) {
  const auto level_of = [](const std::string& path) {
    return about(check_probe_libraries(read_figures("blas " + path + "\n")), "BLAS").level;
  };
  EXPECT_EQ(level_of("/usr/lib/x86_64-linux-gnu/blas/libblas.so.3.11.0"), Level::warning);
  EXPECT_EQ(level_of("/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3"), Level::ok);
  EXPECT_EQ(about(check_probe_libraries(read_figures("library 0.0.7\nfigure product 0\n")), "Syncrun").level,
            Level::wrong);
}

TEST_F(Doctor, SaysWhyASessionFailed) {
  const Findings findings = check_probe_end({.errors = "first\nsyncrun: rank 0 was lost\n", .exit_code = 1});
  EXPECT_EQ(about(findings, "a session").level, Level::wrong);
  EXPECT_EQ(about(findings, "a session").value, "failed: syncrun: rank 0 was lost");
  EXPECT_THAT(about(check_probe_end({.was_late = true}), "a session").value, HasSubstr("not ready in time"));
  EXPECT_TRUE(check_probe_end({.exit_code = 0}).empty());
}

// ---- report ---------------------------------------------------------------------------------------------------

TEST(DoctorsReport, CountsAndSaysWhatToDo) {
  const std::vector<Section> sections{
      {"limits", {{Level::ok, "CPU quota", "none"}, {Level::warning, "/dev/shm", "64 MB", "mount a \"tmpfs\""}}}};
  EXPECT_EQ(as_text(sections, "n1"),
            "limits\n"
            "  ok       CPU quota                      none\n"
            "  warning  /dev/shm                       64 MB\n"
            "           -> mount a \"tmpfs\"\n"
            "syncrun doctor on n1: nothing is wrong, 1 warning\n");
  EXPECT_EQ(as_json(sections, ""),
            "{\"syncrun\": \"" SYNCRUN_VERSION
            "\", \"node\": \"\", \"sections\": {\"limits\": [{\"level\": \"ok\", \"what\": \"CPU quota\", \"value\": "
            "\"none\", \"advice\": \"\"}, {\"level\": \"warning\", \"what\": \"/dev/shm\", \"value\": \"64 MB\", "
            "\"advice\": \"mount a \\\"tmpfs\\\"\"}]}, \"warnings\": 1, \"wrong\": 0}\n");
}

// ---- programs -------------------------------------------------------------------------------------------------

TEST(ProgramRun, KeepsBothOutputsAndTheExitCode) {
  const ProgramEnd end = run_program({"/bin/sh", "-c", "echo out; echo err >&2; exit 7"}, std::chrono::seconds(60));
  EXPECT_EQ(end.output, "out\n");
  EXPECT_EQ(end.errors, "err\n");
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_THAT(run_program({"/nonexistent"}, std::chrono::seconds(60)).errors, HasSubstr("/nonexistent"));
}

TEST(ProgramRun, EndsAProgramThatTakesTooLong) {
  const ProgramEnd end = run_program({"/bin/sleep", "1000"}, std::chrono::milliseconds(20));
  EXPECT_TRUE(end.was_late);
  EXPECT_EQ(end.exit_code, -1);
}

}  // namespace

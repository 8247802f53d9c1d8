// How the nursery's thread brings its workers into the world.

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>

#include "common/environment.hpp"
#include "common/errors.hpp"
#include "common/log.hpp"
#include "launcher/nursery.hpp"
#include "launcher/placement.hpp"

namespace syncrun::detail {

namespace {

std::pair<FileDescriptor, FileDescriptor> make_pipe() {
  std::array<int, 2> ends{};
  check_system(::pipe2(ends.data(), O_CLOEXEC), "cannot make a pipe for a worker's output");
  std::pair<FileDescriptor, FileDescriptor> pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  check_system(::fcntl(ends[0], F_SETFL, O_NONBLOCK), "cannot read a worker's output without blocking");
  return pipe;
}

/// The program's own command line, which workers get too.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  if (arguments.empty()) arguments.emplace_back(program_invocation_name);
  return arguments;
}

}  // namespace

void Nursery::give_birth() {
  for (int rank = 0; rank < control_.world_size(); ++rank) {
    if (closes_.load()) return;
    spawn_worker(rank);
  }
}

void Nursery::spawn_worker(int rank) {
  Worker& worker = workers_[static_cast<std::size_t>(rank)];
  std::array<int, 2> ends{};
  check_system(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), "socketpair");
  worker.socket = FileDescriptor(ends[0]);
  const FileDescriptor workers_end(ends[1]);
  auto [output_read, output_write] = make_pipe();
  auto [error_read, error_write] = make_pipe();
  if (!settings_.log_dir.empty()) {
    const std::string path = settings_.log_dir + "/rank" + std::to_string(rank) + ".log";
    worker.log =
        FileDescriptor(check_system(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644),
                                    ("cannot open the log file " + path).c_str()));
  }

  SpawnedProcess process = spawn(request_for(rank, workers_end.get(), output_write.get(), error_write.get()));
  supervisor_.send({SupervisorMessage::Kind::worker, process.pid, {}});
  control_.worker(rank).pid.store(process.pid);
  {
    const std::lock_guard lock(mutex_);
    worker.pidfd = std::move(process.pidfd);
    worker.output.reader = std::make_unique<WorkerOutput>(rank, std::move(output_read), output_, worker.log.get());
    worker.error.reader = std::make_unique<WorkerOutput>(rank, std::move(error_read), error_, worker.log.get());
    worker.pid = process.pid;
  }
  const bool is_watched = watch(worker.pidfd.get(), Source::death, rank) &&
                          watch(worker.output.reader->fd(), Source::output, rank) &&
                          watch(worker.error.reader->fd(), Source::error, rank);
  if (!is_watched) throw_errno("cannot watch a worker");
}

SpawnRequest Nursery::request_for(int rank, int socket, int output, int error) const {
  const int world_size = control_.world_size();
  const std::string device = to_string(settings_.devices[static_cast<std::size_t>(rank)]);
  SpawnRequest request;
  request.program = "/proc/self/exe";  // the very image this process runs, whatever stands at its path by now
  request.arguments = own_arguments();
  request.environment = {
      {environment::kWorkerRank, std::to_string(rank)},
      {environment::kSegmentFd, std::to_string(segment_.fd())},
      {environment::kSegmentBytes, std::to_string(segment_.bytes())},
      {environment::kSocketFd, std::to_string(socket)},
      {environment::kDevice, device},
      {environment::kMasterPid, std::to_string(::getpid())},
      {environment::kRank, std::to_string(rank)},
      {environment::kLocalRank, std::to_string(rank)},
      {environment::kWorldSize, std::to_string(world_size)},
      {environment::kLocalWorldSize, std::to_string(world_size)},
      {environment::kLogLevel, std::string(to_string(settings_.log_level))},
  };
  for (const auto& variable : thread_variables(world_size)) request.environment.push_back(variable);
  request.unset = {environment::kSupervisorFd};
  request.inherited = {segment_.fd(), socket};
  request.standard_output = output;
  request.standard_error = error;
  request.leads_group = true;
  const DeviceId& device_id = settings_.devices[static_cast<std::size_t>(rank)];
  if (device_id.kind == DeviceKind::cuda) {
    for (const auto& variable : nccl_variables()) request.environment.push_back(variable);
    request.cores = cores_near_gpu(device_id.index);
  } else {
    request.cores = cores_for(rank, world_size);
  }
  return request;
}

}  // namespace syncrun::detail

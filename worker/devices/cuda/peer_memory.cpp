#include "worker/devices/cuda/peer_memory.hpp"

#include <vector>

#include "worker/devices/cuda/check.hpp"

namespace syncrun::detail::worker::devices::cuda {

/// What each rank tells the others.
struct PeerMemory::PeerInfo {
  cudaIpcMemHandle_t handle;
  int device;  // its number is the same in all processes of the session
  bool is_good;
};

PeerMemory::~PeerMemory() {
  call_off();
  close();
}

void PeerMemory::connect() {
  check_cuda(cudaGetLastError(), "what was put on the stream");  // reports errors of earlier work
  if (state_ == State::none) {
    // Everything that blocks the host until the device is done comes after this meeting. Then no work on the stream
    // waits for a rank that fails before the meeting.
    meet(0);
    kernels::load_peer_kernels();
    const PeerInfo own = make_info();
    std::vector<PeerInfo> infos(static_cast<std::size_t>(attachment_.world_size));
    host_.all_gather(&own, infos.data(),
                     comm::Division(attachment_.world_size, attachment_.world_size, sizeof(PeerInfo)));
    if (!all_agree(open_all(infos.data()))) {
      close_peers();
      meet(1);  // no rank frees memory that a peer has mapped
      state_ = State::out_of_reach;
      return;
    }
    has_meetings_ = all_agree(meetings_.open());
    if (!has_meetings_) meetings_.close();
  }
  meet(2);  // after this, no kernel of a peer writes here any more
  clear();
  meet(3);
  state_ = State::connected;
}

/// Each meeting of connect() has its own number, so that ranks at different meetings get an error.
void PeerMemory::meet(std::uint8_t step) {
  rendezvous_.barrier({.kind = protocol::MeetingPurpose::Kind::connecting_peers, .detail = step}, limits_);
}

cudaError_t PeerMemory::allocate() {
  const std::size_t bytes = kernels::peer_memory_bytes(peers_.size);
  void* memory = nullptr;
  cudaError_t code = cudaMalloc(&memory, bytes);
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    pool_.trim();
    code = cudaMalloc(&memory, bytes);
  }
  if (code == cudaSuccess) own_ = GpuMemory(memory);
  return code;
}

/// Memory that an interrupted attempt has allocated is used again.
bool PeerMemory::allocate_own() {
  if (!own_ && allocate() != cudaSuccess) return false;
  if (called_off_) return true;
  void* word = nullptr;
  if (cudaHostAlloc(&word, sizeof(int), cudaHostAllocDefault) != cudaSuccess) return false;
  called_off_ = PinnedMemory(word);
  return true;
}

/// Allocates this rank's memory and describes it for the others. If that fails, `is_good` is false.
PeerMemory::PeerInfo PeerMemory::make_info() {
  PeerInfo info{};
  const int ranks = attachment_.world_size;
  if (ranks > kernels::kMostPeers) return info;
  peers_.rank = attachment_.rank;
  peers_.size = ranks;
  info.is_good = cudaGetDevice(&info.device) == cudaSuccess && allocate_own() &&
                 cudaIpcGetMemHandle(&info.handle, own_.get()) == cudaSuccess;
  peers_.memory[peers_.rank] = static_cast<std::byte*>(own_.get());
  peers_.called_off = static_cast<int*>(called_off_.get());
  if (!info.is_good) static_cast<void>(cudaGetLastError());
  return info;
}

bool PeerMemory::open_all(const PeerInfo* infos) noexcept {
  for (int rank = 0; rank < attachment_.world_size; ++rank) {
    if (!infos[rank].is_good) return false;
  }
  close_peers();
  for (int rank = 0; rank < peers_.size; ++rank) {
    if (rank == peers_.rank) continue;
    // Native atomics between two GPUs show that NVLink connects them. For GPUs that are connected by a bus, NCCL is the
    // better choice.
    int has_link = 0;
    void* memory = nullptr;
    const bool opened =
        cudaDeviceGetP2PAttribute(&has_link, cudaDevP2PAttrNativeAtomicSupported, infos[peers_.rank].device,
                                  infos[rank].device) == cudaSuccess &&
        has_link != 0 &&
        cudaIpcOpenMemHandle(&memory, infos[rank].handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    if (!opened) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    theirs_[static_cast<std::size_t>(rank)] = MappedGpuMemory(memory);
    peers_.memory[rank] = static_cast<std::byte*>(memory);
  }
  return true;
}

bool PeerMemory::all_agree(bool own) {
  int agreed = own ? 1 : 0;
  host_.all_reduce_value(&agreed, DType::int32, Reduction::min, {});
  return agreed != 0;
}

void PeerMemory::clear() {
  meetings_.clear();
  called_off() = 0;
  // Uses a stream of its own, because the worker's stream may be waiting or may be captured.
  const Stream stream = Stream::make();
  cudaError_t code = cudaMemsetAsync(own_.get(), 0, kernels::peer_memory_bytes(peers_.size), stream.get());
  if (code == cudaSuccess) code = cudaStreamSynchronize(stream.get());
  check_cuda(code, "clearing the memory for all_reduce");
}

void PeerMemory::call_off() noexcept {
  if (state_ != State::connected) return;
  called_off() = 1;
  meetings_.release();
  state_ = State::called_off;
}

void PeerMemory::average_by_copies(const kernels::PeerAverage& what, cudaStream_t stream) const {
  auto* const values = static_cast<std::byte*>(what.values);
  const std::size_t bytes = what.elements * size_of(what.dtype);
  const int own = peers_.rank;
  const auto copy = [&](std::byte* to, const std::byte* from, std::size_t size) {
    if (size != 0) check_cuda(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream), "an average's copies");
  };
  const auto for_each_peer = [&](auto&& f) {
    for (int k = 1; k < peers_.size; ++k) f((own + k) % peers_.size);
  };
  for_each_peer([&](int to) {
    const kernels::ByteRange share = kernels::share_of_bytes(bytes, to, peers_.size);
    copy(kernels::place_of_share(peers_, to, own), values + share.begin, share.count());
  });
  meetings_.meet(0, stream);
  kernels::average_share(peers_, what, stream);
  const kernels::ByteRange share = kernels::share_of_bytes(bytes, own, peers_.size);
  for_each_peer(
      [&](int to) { copy(kernels::place_of_results(peers_, to) + share.begin, values + share.begin, share.count()); });
  meetings_.meet(1, stream);
  const std::byte* const results = kernels::place_of_results(peers_, own);
  copy(values, results, share.begin);
  copy(values + share.end, results + share.end, bytes - share.end);
}

void PeerMemory::forget_peers() noexcept {
  close_peers();
  state_ = State::none;
}

void PeerMemory::close_peers() noexcept {
  for (int rank = 0; rank < peers_.size; ++rank) {
    if (rank == peers_.rank) continue;
    theirs_[static_cast<std::size_t>(rank)].reset();
    peers_.memory[rank] = nullptr;
  }
}

void PeerMemory::close() noexcept {
  meetings_.close();
  has_meetings_ = false;
  close_peers();
  own_.reset();
  called_off_.reset();
  peers_ = {};
}

}  // namespace syncrun::detail::worker::devices::cuda

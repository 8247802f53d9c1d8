#include "worker/cuda/peer_memory.hpp"

#include <vector>

#include "worker/cuda/check.hpp"

namespace syncrun::detail {

/// What each rank shows the others.
struct PeerMemory::Card {
  cudaIpcMemHandle_t handle;
  int device;  // as all processes of the session number it
  bool is_good;
};

PeerMemory::~PeerMemory() {
  call_off();
  close();
}

void PeerMemory::connect() {
  check_cuda(cudaGetLastError(), "what was put on the stream");  // not to be taken for what follows
  if (state_ == State::none) {
    // Whatever waits for the device on the host comes after all ranks are here: then nothing on the stream waits for one
    // that fails before.
    meet(0);
    kernels::load_peer_kernels();
    const Card own = make_card();
    std::vector<Card> cards(static_cast<std::size_t>(host_.world_size()));
    host_.all_gather(&own, cards.data(), Division(host_.world_size(), host_.world_size(), sizeof(Card)));
    if (!all_agree(open_all(cards.data()))) {
      close_peers();
      meet(1);  // nobody gives up memory that a peer has mapped
      state_ = State::out_of_reach;
      return;
    }
    has_meetings_ = all_agree(meetings_.open());
    if (!has_meetings_) meetings_.close();
  }
  meet(2);  // no kernel of a peer's writes here any more
  clear();
  meet(3);
  state_ = State::connected;
}

/// Each meeting of connect() is one of its own: ranks that are at different ones are told so.
void PeerMemory::meet(std::uint8_t step) {
  rendezvous_.barrier({.kind = MeetingPurpose::Kind::connecting_peers, .detail = step}, limits_);
}

cudaError_t PeerMemory::allocate() {
  const std::size_t bytes = kernels::peer_memory_bytes(peers_.size);
  void* memory = nullptr;
  cudaError_t code = cudaMalloc(&memory, bytes);
  if (code == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    make_room_();
    code = cudaMalloc(&memory, bytes);
  }
  if (code == cudaSuccess) own_ = DeviceMemory(memory);
  return code;
}

/// What an interrupted attempt has allocated is used again.
bool PeerMemory::allocate_own() {
  if (!own_ && allocate() != cudaSuccess) return false;
  if (called_off_) return true;
  void* word = nullptr;
  if (cudaHostAlloc(&word, sizeof(int), cudaHostAllocDefault) != cudaSuccess) return false;
  called_off_ = PinnedMemory(word);
  return true;
}

/// Its memory, if it can be had.
PeerMemory::Card PeerMemory::make_card() {
  Card card{};
  const int ranks = host_.world_size();
  if (ranks > kernels::kMostPeers) return card;
  peers_.rank = host_.rank();
  peers_.size = ranks;
  card.is_good = cudaGetDevice(&card.device) == cudaSuccess && allocate_own() &&
                 cudaIpcGetMemHandle(&card.handle, own_.get()) == cudaSuccess;
  peers_.memory[peers_.rank] = static_cast<std::byte*>(own_.get());
  peers_.called_off = static_cast<int*>(called_off_.get());
  if (!card.is_good) static_cast<void>(cudaGetLastError());
  return card;
}

bool PeerMemory::open_all(const Card* cards) noexcept {
  for (int rank = 0; rank < host_.world_size(); ++rank) {
    if (!cards[rank].is_good) return false;
  }
  close_peers();
  for (int rank = 0; rank < peers_.size; ++rank) {
    if (rank == peers_.rank) continue;
    // Atomics among GPUs are what tells NVLink from a bus, where NCCL knows better.
    int has_link = 0;
    void* memory = nullptr;
    const bool opened =
        cudaDeviceGetP2PAttribute(&has_link, cudaDevP2PAttrNativeAtomicSupported, cards[peers_.rank].device,
                                  cards[rank].device) == cudaSuccess &&
        has_link != 0 &&
        cudaIpcOpenMemHandle(&memory, cards[rank].handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    if (!opened) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    theirs_[static_cast<std::size_t>(rank)] = MappedDeviceMemory(memory);
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
  // On a stream of its own: the worker's may be waiting for something, or be captured.
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

}  // namespace syncrun::detail

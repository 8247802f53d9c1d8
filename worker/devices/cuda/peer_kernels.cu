#include "worker/devices/cuda/peer_kernels.hpp"

#include <algorithm>
#include <cuda/atomic>

#include "worker/devices/cuda/arithmetic.cuh"
#include "worker/devices/cuda/check.hpp"

namespace syncrun::detail::worker::devices::cuda::kernels {

namespace {

constexpr int kThreads = 512;
constexpr int kMostBlocks = 128;
constexpr int kFewBlocks = 16;  // about as many as NCCL uses
constexpr int kSteps = 2;       // how often the ranks wait for each other in reduce_shares
constexpr std::size_t kLineDataBytes = 8;
constexpr std::size_t kPackBytes = 16;

/// A value of 8 bytes in transfer. Each half comes with the number of its operation. A GPU usually writes the 16 bytes
/// at once, and always writes each half at once.
struct alignas(16) Line {
  std::uint32_t low;
  std::uint32_t low_mark;
  std::uint32_t high;
  std::uint32_t high_mark;
};

// ---- each rank's memory ---------------------------------------------------------------------------------------

/// Operations are numbered from 1. They use the two halves of each kind of memory in turn. A rank in operation k has
/// received from every peer in operation k - 1. So no rank still reads what operation k - 2 left, and operation k may
/// overwrite it. Averages by copies have no number and use the first halves. The streams wait for each other twice in
/// each of them, so no stream is ahead by more than one step.
struct Head {
  std::uint32_t operations;  // number of finished operations
  std::uint32_t blocks;      // blocks of the current operation that have finished
};

constexpr std::size_t kArrivedAt = 256;
constexpr std::size_t kLinesAt = kArrivedAt + sizeof(std::uint32_t) * kMostBlocks * kSteps * kMostPeers;

/// Where the halves of each kind of memory begin. "Per rank" means one region for each rank that writes there.
struct Layout {
  std::size_t lines;  // bytes that one rank sends, per rank; at kLinesAt
  std::size_t share;  // bytes of one share, per rank
  std::size_t shares_at;
  std::size_t results_at;
  std::size_t end;
};

__host__ __device__ constexpr Layout layout_for(int ranks) {
  const auto all = static_cast<std::size_t>(ranks);
  Layout layout{};
  layout.lines = most_line_bytes(ranks) / kLineDataBytes * sizeof(Line);
  layout.share = (kMostShareBytes / all + 31) / 16 * 16;  // rounded up to whole packs
  layout.shares_at = kLinesAt + 2 * all * layout.lines;
  layout.results_at = layout.shares_at + 2 * all * layout.share;
  layout.end = layout.results_at + 2 * kMostShareBytes;
  return layout;
}

/// Where averages by copies bring values from rank `from` to rank `at`. It is the first of the two halves that other
/// operations use in turn.
__host__ __device__ std::byte* share_memory(const Peers& peers, int at, int from) {
  const Layout layout = layout_for(peers.size);
  return peers.memory[at] + layout.shares_at + static_cast<std::size_t>(from) * layout.share;
}

__device__ Head& head_of(const Peers& peers) { return *reinterpret_cast<Head*>(peers.memory[peers.rank]); }

/// The word on rank `at` that says that this block of rank `from` has reached a step.
__device__ std::uint32_t& arrived(const Peers& peers, int at, int step, int from) {
  auto* const all = reinterpret_cast<std::uint32_t*>(peers.memory[at] + kArrivedAt);
  return all[(static_cast<int>(blockIdx.x) * kSteps + step) * kMostPeers + from];
}

/// The half of one kind of memory on rank `at` that this operation uses.
template <class U>
__device__ U* half(const Peers& peers, int at, std::size_t begin, std::size_t half_bytes, std::uint32_t operation) {
  return reinterpret_cast<U*>(peers.memory[at] + begin + operation % 2 * half_bytes);
}

/// The region of that half which rank `from` writes.
template <class U>
__device__ U* from_rank(const Peers& peers, int at, std::size_t begin, std::size_t bytes, std::uint32_t operation,
                        int from) {
  const auto ranks = static_cast<std::size_t>(peers.size);
  return half<U>(peers, at, begin + static_cast<std::size_t>(from) * bytes, ranks * bytes, operation);
}

__device__ std::uint32_t this_operation(const Peers& peers) {
  return *static_cast<volatile std::uint32_t*>(&head_of(peers).operations) + 1;
}

/// The last block that calls this ends the operation.
__device__ void finish(const Peers& peers) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  Head& head = head_of(peers);
  __threadfence();
  if (atomicAdd(&head.blocks, 1U) + 1 != gridDim.x) return;
  head.blocks = 0;
  head.operations += 1;
}

// ---- waiting --------------------------------------------------------------------------------------------------

constexpr int kPollsPerLook = 1024;

__device__ bool is_called_off(const Peers& peers) { return *static_cast<const volatile int*>(peers.called_off) != 0; }

/// Tells the peers that this block has reached `step`, and waits until the same block of each peer has reached it.
/// Returns false if the wait is cancelled. Everything that the threads of a block wrote before is visible to all
/// threads of the peers' blocks afterwards.
__device__ bool meet(const Peers& peers, std::uint32_t operation, int step) {
  using Mark = ::cuda::atomic_ref<std::uint32_t, ::cuda::thread_scope_system>;
  __syncthreads();
  int gave_up = 0;
  const int other = static_cast<int>(threadIdx.x);
  if (other < peers.size && other != peers.rank) {
    Mark(arrived(peers, other, step, peers.rank)).store(operation, ::cuda::std::memory_order_release);
    const Mark theirs(arrived(peers, peers.rank, step, other));
    for (int polls = 1; theirs.load(::cuda::std::memory_order_acquire) != operation; ++polls) {
      if (polls % kPollsPerLook == 0 && is_called_off(peers)) {
        gave_up = 1;
        break;
      }
    }
  }
  return __syncthreads_or(gave_up) == 0;
}

__device__ Line load_line(const Line* from) {
  Line line;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(line.low), "=r"(line.low_mark), "=r"(line.high), "=r"(line.high_mark)
               : "l"(from)
               : "memory");
  return line;
}

__device__ void store_line(Line* to, const Line& line) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(line.low), "r"(line.low_mark),
               "r"(line.high), "r"(line.high_mark)
               : "memory");
}

// ---- elements, several at a time ------------------------------------------------------------------------------

template <class T, std::size_t kBytes>
struct alignas(kBytes) Pack {
  static constexpr int kElements = kBytes / sizeof(T);
  T element[kElements];
};

/// The values of one rank, read in packs and multiplied by its factor.
template <class T, class P>
struct Own {
  T* values;
  std::size_t elements;
  double factor;
  bool is_aligned;

  __device__ std::size_t packs() const { return (elements + P::kElements - 1) / P::kElements; }

  __device__ P load(std::size_t pack) const {
    const std::size_t first = pack * P::kElements;
    P loaded;
    if (is_aligned && first + P::kElements <= elements) {
      loaded = *reinterpret_cast<const P*>(values + first);
    } else {
      for (int k = 0; k < P::kElements; ++k) loaded.element[k] = first + k < elements ? values[first + k] : T{};
    }
    if (factor == 1) return loaded;
    using A = typename Arithmetic<T>::type;
    for (int k = 0; k < P::kElements; ++k) {  // 0 times NaN is not 0
      loaded.element[k] =
          factor == 0 ? T{} : static_cast<T>(static_cast<A>(loaded.element[k]) * static_cast<A>(factor));
    }
    return loaded;
  }

  __device__ void store(std::size_t pack, const P& stored) const {
    const std::size_t first = pack * P::kElements;
    if (is_aligned && first + P::kElements <= elements) {
      *reinterpret_cast<P*>(values + first) = stored;
      return;
    }
    for (int k = 0; k < P::kElements; ++k) {
      if (first + k < elements) values[first + k] = stored.element[k];
    }
  }
};

/// Packs of all ranks, combined in rank order and rounded once.
template <class T, class P, bool kSums>
struct Combined {
  using A = typename Arithmetic<T>::type;
  A total[P::kElements];

  __device__ void begin(const P& first) {
    for (int k = 0; k < P::kElements; ++k) total[k] = static_cast<A>(first.element[k]);
  }
  __device__ void add(const P& next, Reduction reduction) {
    for (int k = 0; k < P::kElements; ++k) {
      total[k] = combine<A>(kSums ? Reduction::sum : reduction, total[k], static_cast<A>(next.element[k]));
    }
  }
  __device__ P rounded() const {
    P result;
    for (int k = 0; k < P::kElements; ++k) result.element[k] = static_cast<T>(total[k]);
    return result;
  }
};

// ---- who takes which ------------------------------------------------------------------------------------------

struct Range {
  std::size_t begin;
  std::size_t end;
};

/// Share number `index` of `count` shares of a range.
__host__ __device__ Range share(Range all, int index, int count) {
  const std::size_t size = all.end - all.begin;
  return {all.begin + size * static_cast<std::size_t>(index) / static_cast<std::size_t>(count),
          all.begin + size * static_cast<std::size_t>(index + 1) / static_cast<std::size_t>(count)};
}

/// Calls f for each pack of the range that belongs to this thread, among the threads of all blocks. Ends and returns
/// false when f returns false.
template <class F>
__device__ bool for_each_of_grid(Range range, F&& f) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t pack = range.begin + static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; pack < range.end; pack += stride) {
    if (!f(pack)) return false;
  }
  return true;
}

/// Like for_each_of_grid, among the threads of this block only. The whole range belongs to this block.
template <class F>
__device__ void for_each_of_block(Range range, F&& f) {
#pragma unroll 4
  for (std::size_t pack = range.begin + threadIdx.x; pack < range.end; pack += blockDim.x) f(pack);
}

// ---- by lines -------------------------------------------------------------------------------------------------

/// Waits for the values that arrive in a line. `line` is what was read there before. Returns false if the wait is
/// cancelled.
template <class P>
__device__ bool receive(const Peers& peers, std::uint32_t operation, const Line* at, Line line, P& received) {
  for (int polls = 1; line.low_mark != operation || line.high_mark != operation; ++polls) {
    if (polls % kPollsPerLook == 0 && is_called_off(peers)) return false;
    line = load_line(at);
  }
  const uint2 bits{line.low, line.high};
  memcpy(&received, &bits, sizeof(received));
  return true;
}

template <class P>
__device__ void send(Line* to, std::uint32_t operation, const P& pack) {
  uint2 bits;
  memcpy(&bits, &pack, sizeof(bits));
  store_line(to, {bits.x, operation, bits.y, operation});
}

/// Combines the values of all ranks: `own`, and those in the lines at `line_of(rank)`. Returns false if the wait is
/// cancelled.
template <bool kSums, class T, class P, class LineOf>
__device__ bool combine_lines(const Peers& peers, std::uint32_t operation, Reduction reduction, const P& own,
                              LineOf&& line_of, Combined<T, P, kSums>& all) {
  constexpr int kInFlight = 4;
  for (int first = 0; first < peers.size; first += kInFlight) {
    Line line[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int from = first + k;
      if (from < peers.size && from != peers.rank) line[k] = load_line(line_of(from));
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int from = first + k;
      if (from >= peers.size) break;
      P next = own;
      if (from != peers.rank && !receive(peers, operation, line_of(from), line[k], next)) return false;
      if (from == 0) all.begin(next);
      else all.add(next, reduction);
    }
  }
  return true;
}

/// Each rank sends all its values to all other ranks.
template <class T, bool kSums>
__global__ void __launch_bounds__(kThreads)
    reduce_by_lines(const __grid_constant__ Peers peers, Reduction reduction, Own<T, Pack<T, kLineDataBytes>> own) {
  using P = Pack<T, kLineDataBytes>;
  const std::uint32_t operation = this_operation(peers);
  const Layout layout = layout_for(peers.size);
  const auto sent = [&](int at, int from) {
    return from_rank<Line>(peers, at, kLinesAt, layout.lines, operation, from);
  };
  const Range all{0, own.packs()};

  for_each_of_grid(all, [&](std::size_t pack) {
    const P brought = own.load(pack);
    for (int k = 1; k < peers.size; ++k)
      send(sent((peers.rank + k) % peers.size, peers.rank) + pack, operation, brought);
    return true;
  });
  const bool done = for_each_of_grid(all, [&](std::size_t pack) {
    Combined<T, P, kSums> total;
    const auto line_of = [&](int from) { return sent(peers.rank, from) + pack; };
    if (!combine_lines(peers, operation, reduction, own.load(pack), line_of, total)) return false;
    own.store(pack, total.rounded());
    return true;
  });
  if (done) finish(peers);
}

// ---- by shares --------------------------------------------------------------------------------------------------

/// Each rank reduces a share, and sends the result to all other ranks. A mark for every value would cost too much.
/// Instead, each block waits twice for the same block of the peers.
template <class T, bool kSums>
__global__ void __launch_bounds__(kThreads)
    reduce_shares(const __grid_constant__ Peers peers, Reduction reduction, Own<T, Pack<T, kPackBytes>> own) {
  using P = Pack<T, kPackBytes>;
  const std::uint32_t operation = this_operation(peers);
  const Layout layout = layout_for(peers.size);
  const auto share_of = [&](int of) { return share({0, own.packs()}, of, peers.size); };
  const auto block_of = [&](int of) {
    return share(share_of(of), static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
  };
  const auto sent = [&](int at, int from) {
    return from_rank<P>(peers, at, layout.shares_at, layout.share, operation, from);
  };
  const auto results = [&](int at) { return half<P>(peers, at, layout.results_at, kMostShareBytes, operation); };

  for (int k = 1; k < peers.size; ++k) {
    const int to = (peers.rank + k) % peers.size;
    P* const there = sent(to, peers.rank) - share_of(to).begin;
    for_each_of_block(block_of(to), [&](std::size_t pack) { there[pack] = own.load(pack); });
  }
  if (!meet(peers, operation, 0)) return;

  const std::size_t first = share_of(peers.rank).begin;
  for_each_of_block(block_of(peers.rank), [&](std::size_t pack) {
    const P mine = own.load(pack);
    Combined<T, P, kSums> total;
    for (int from = 0; from < peers.size; ++from) {
      const P next = from == peers.rank ? mine : sent(peers.rank, from)[pack - first];
      if (from == 0) total.begin(next);
      else total.add(next, reduction);
    }
    const P result = total.rounded();
    for (int k = 1; k < peers.size; ++k) results((peers.rank + k) % peers.size)[pack] = result;
    own.store(pack, result);
  });
  if (!meet(peers, operation, 1)) return;

  for (int k = 1; k < peers.size; ++k) {
    const int from = (peers.rank + k) % peers.size;
    for_each_of_block(block_of(from), [&](std::size_t pack) { own.store(pack, results(peers.rank)[pack]); });
  }
  finish(peers);
}

// ---- by copies --------------------------------------------------------------------------------------------------

/// Averages packs of this rank's share, from its own values and those that copies have brought. The marks of other
/// operations are not used here, because the streams wait for each other before and after.
template <class T>
__global__ void __launch_bounds__(kThreads)
    average_copied(const __grid_constant__ Peers peers, const __grid_constant__ PeerAverage what, Range packs) {
  using P = Pack<T, kPackBytes>;
  const auto values_of = [&](int rank) -> Own<T, P> {
    T* const own = static_cast<T*>(what.values);
    const std::size_t before = packs.begin * P::kElements;  // counted in all values, not in the share
    T* const values = rank == peers.rank ? own : reinterpret_cast<T*>(share_memory(peers, peers.rank, rank)) - before;
    return {values, what.elements, what.factors[rank], true};
  };
  const Own<T, P> own = values_of(peers.rank);
  for_each_of_grid(packs, [&](std::size_t pack) {
    Combined<T, P, true> total;
    total.begin(values_of(0).load(pack));
    for (int rank = 1; rank < peers.size; ++rank) total.add(values_of(rank).load(pack), Reduction::sum);
    own.store(pack, total.rounded());
    return true;
  });
}

// ---- choosing -------------------------------------------------------------------------------------------------

template <std::size_t kBytes, class T>
Own<T, Pack<T, kBytes>> own_values(void* values, std::size_t elements, double factor) {
  return {static_cast<T*>(values), elements, factor, reinterpret_cast<std::uintptr_t>(values) % kBytes == 0};
}

/// The number is the same on every rank, because each block waits for the same block of the peers.
int blocks_for(std::size_t packs, Breadth breadth) {
  const int most = breadth == Breadth::few ? kFewBlocks : kMostBlocks;
  return static_cast<int>(std::clamp<std::size_t>((packs + kThreads - 1) / kThreads, 1, most));
}

/// Like with_type, for the types that these kernels reduce, which are those of NCCL. Sums of integers wrap around. So
/// sums of unsigned types have the same bits as those of signed types, and use the same kernels.
template <bool kSums, class F>
void with_reduced_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float16: return f(static_cast<__half*>(nullptr));
    case DType::bfloat16: return f(static_cast<__nv_bfloat16*>(nullptr));
    case DType::float32: return f(static_cast<float*>(nullptr));
    case DType::float64: return f(static_cast<double*>(nullptr));
    case DType::int8: return f(static_cast<std::int8_t*>(nullptr));
    case DType::int32: return f(static_cast<std::int32_t*>(nullptr));
    case DType::int64: return f(static_cast<std::int64_t*>(nullptr));
    case DType::uint8: return f(static_cast<std::conditional_t<kSums, std::int8_t, std::uint8_t>*>(nullptr));
    case DType::uint32: return f(static_cast<std::conditional_t<kSums, std::int32_t, std::uint32_t>*>(nullptr));
    case DType::uint64: return f(static_cast<std::conditional_t<kSums, std::int64_t, std::uint64_t>*>(nullptr));
    case DType::int16:
    case DType::uint16:
    case DType::boolean: return;  // refused before
  }
}

template <class T, bool kSums>
void launch(const Peers& peers, const PeerReduction& what, cudaStream_t stream) {
  const std::size_t bytes = what.elements * sizeof(T);
  if (bytes <= most_line_bytes(peers.size)) {
    const int blocks = blocks_for((bytes + kLineDataBytes - 1) / kLineDataBytes, what.breadth);
    reduce_by_lines<T, kSums><<<blocks, kThreads, 0, stream>>>(
        peers, what.reduction, own_values<kLineDataBytes, T>(what.values, what.elements, what.factor));
  } else {
    const int blocks = blocks_for(bytes / kPackBytes / static_cast<std::size_t>(peers.size), what.breadth);
    reduce_shares<T, kSums><<<blocks, kThreads, 0, stream>>>(
        peers, what.reduction, own_values<kPackBytes, T>(what.values, what.elements, what.factor));
  }
}

}  // namespace

std::size_t peer_memory_bytes(int ranks) noexcept { return layout_for(ranks).end; }

void load_peer_kernels() {
  const auto load = [](auto* kernel) {
    cudaFuncAttributes attributes{};
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "loading the kernels for all_reduce");
  };
  for (const DType dtype : {DType::float16, DType::bfloat16, DType::float32, DType::float64, DType::int8, DType::int32,
                            DType::int64, DType::uint8, DType::uint32, DType::uint64}) {
    with_reduced_type<true>(dtype, [&]<class T>(T*) {
      load(&reduce_by_lines<T, true>);
      load(&reduce_shares<T, true>);
    });
    with_reduced_type<false>(dtype, [&]<class T>(T*) {
      load(&reduce_by_lines<T, false>);
      load(&reduce_shares<T, false>);
    });
    with_floating_type(dtype, [&]<class T>(T*) { load(&average_copied<T>); });
  }
}

ByteRange share_of_bytes(std::size_t bytes, int rank, int ranks) noexcept {
  const Range packs = share({0, (bytes + kPackBytes - 1) / kPackBytes}, rank, ranks);
  return {packs.begin * kPackBytes, std::min(packs.end * kPackBytes, bytes)};
}

std::byte* place_of_share(const Peers& peers, int at, int from) noexcept { return share_memory(peers, at, from); }

std::byte* place_of_results(const Peers& peers, int at) noexcept {
  return peers.memory[at] + layout_for(peers.size).results_at;
}

void average_share(const Peers& peers, const PeerAverage& what, cudaStream_t stream) {
  const std::size_t bytes = what.elements * size_of(what.dtype);
  const Range packs = share({0, (bytes + kPackBytes - 1) / kPackBytes}, peers.rank, peers.size);
  if (packs.begin == packs.end) return;
  // Uses many blocks for a short time, because it takes multiprocessors from work that runs in parallel.
  const auto blocks = static_cast<unsigned>((packs.end - packs.begin + kThreads - 1) / kThreads);
  with_floating_type(what.dtype,
                     [&]<class T>(T*) { average_copied<T><<<blocks, kThreads, 0, stream>>>(peers, what, packs); });
  check_cuda(cudaGetLastError(), "an average");
}

void peer_all_reduce(const Peers& peers, const PeerReduction& what, cudaStream_t stream) {
  if (what.elements == 0) return;
  const bool sums = what.reduction == Reduction::sum || what.reduction == Reduction::avg;
  if (sums) {
    with_reduced_type<true>(what.dtype, [&]<class T>(T*) { launch<T, true>(peers, what, stream); });
  } else {
    with_reduced_type<false>(what.dtype, [&]<class T>(T*) { launch<T, false>(peers, what, stream); });
  }
  check_cuda(cudaGetLastError(), "an all_reduce");
}

}  // namespace syncrun::detail::worker::devices::cuda::kernels

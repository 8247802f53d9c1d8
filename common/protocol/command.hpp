#pragma once

// Commands: requests of the master to the workers. A command has a header, a payload that depends on its kind, and room
// for the arguments and outputs of a call. An offset is one in the segment.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <variant>

#include "common/protocol/comm_choice.hpp"
#include "common/protocol/rank_set.hpp"
#include "syncrun/detail/call.hpp"
#include "syncrun/options.hpp"

namespace syncrun::detail::protocol {

inline constexpr std::size_t kInboxSize = 32;  // commands of a rank that are in flight
inline constexpr std::size_t kInlineBytes = 1024;

enum class CollectiveKind : std::uint8_t {
  barrier,
  all_reduce,
  reduce,
  reduce_scatter,
  broadcast,
  all_gather,
  gather,
  scatter
};

enum class CommandKind : std::uint8_t {
  call,
  destroy,
  collective,
  transfer,
  move,
  files,
  free,
  memory,
  look,
  connect,
  unpin,
  unmap,
  close
};

/// A selection of rows, as in Rows. A list of indices is in the segment.
struct RowsSlot {
  Rows::Kind kind = Rows::Kind::all;
  std::int64_t begin = 0;
  std::int64_t end = 0;      // list: the number of indices (begin is 0)
  std::uint64_t offset = 0;  // list: the offset of the int64 indices
  std::int64_t count() const noexcept { return end - begin; }
};

struct ArgumentSlot {
  ArgumentKind kind{};
  DType dtype{};
  Reduction reduction{};
  std::uint8_t dimensions = 0;
  bool is_minibatch = false;                           // data: its rows are the rows of the batch
  std::uint64_t offset = 0;                            // data, values: of the bytes; variables: of the VariableEntry
  std::uint64_t bytes = 0;                             // values: the size of one
  std::uint64_t file = 0;                              // data: offset of the FileEntry; 0 if it is in the segment
  std::array<std::int64_t, kMaxDimensions> extents{};  // only for data
};

/// The part of a transfer that concerns one rank's copy of one variable. The values are in the segment.
struct TransferSlot {
  std::uint64_t variable;  // offset of the VariableEntry
  std::uint64_t offset;    // of the values; 0 if only the shape changes
  std::array<std::int64_t, kMaxDimensions> extents;
  bool takes_part;
  bool is_zero;  // there are no values: the worker fills the copy with zeros
};
enum class TransferDirection : std::uint8_t { to_variable, from_variable };

/// Text in the segment.
struct TextPlace {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Consecutive elements of a rank's copy of a variable, and their place in a file.
struct FilePiece {
  TextPlace name;         // of the file, in the folder of the command
  TextPlace front;        // only to write: what comes before the elements of the file
  std::uint64_t at;       // of the first byte, among the elements of the file
  std::uint64_t copy_at;  // of the first byte, in the copy
  std::uint64_t bytes;
};

/// The part of one rank in a command with files.
struct FilesSlot {
  std::uint64_t pieces;  // offset of the first FilePiece
  std::uint64_t pieces_count;
  std::array<std::int64_t, kMaxDimensions> extents;  // of the copy
};

/// What the ranks do.
enum class FilesAction : std::uint8_t {
  see,    ///< open the folder, and nothing else
  write,  ///< write pieces of their copies to files
  read,   ///< read pieces of files to memory beside their copies
  take,   ///< make what they have read their copies
  drop    ///< forget what they have read
};

/// One variable of a collective that the master calls.
struct CollectiveSlot {
  std::uint64_t variable;  // offset of the VariableEntry
  /// For all_gather and reduce_scatter: offset of the number of elements of each rank's part.
  std::uint64_t lengths;
  /// For reduce_scatter: offset at which the workers put the whole result, or 0 if it goes to the copies.
  std::uint64_t to;
  /// The extents of each copy after the collective. For reduce_scatter: the extents of all copies together.
  std::array<std::int64_t, kMaxDimensions> extents;
};

/// An earlier command on which a command depends: the command reads what the earlier one writes, or overwrites what it
/// reads or writes.
struct Dependency {
  static constexpr std::int32_t kOwnRank = -1;
  static constexpr std::uint64_t kOnlyReads = ~std::uint64_t{0};
  std::uint64_t id = 0;  // of the earlier command
  /// In which the earlier command is, or was. The command fails if the earlier one fails. kOnlyReads: the earlier
  /// command only reads, so its failure does not matter.
  std::uint64_t slot = 0;
  /// The command does not begin before this rank is done with the earlier one. kOwnRank: no wait is necessary, because
  /// a rank runs its commands in order.
  std::int32_t rank = kOwnRank;
};

/// The fields that every command has, besides its number and its ranks. The master writes them before it publishes the
/// command.
struct CommandHeader {
  std::uint64_t dependencies = 0;  // offset of the dependencies; 0 if there are none
  std::uint32_t dependencies_count = 0;
  CommandKind kind = CommandKind::call;
  bool has_comm = false;
  bool wants_vote = false;      // workers wait for all votes: it has updates, or collectives on GPUs
  CommChoice comm{};            // of calls and collectives
  std::int64_t timeout_ms = 0;  // 0 if there is no limit
};

/// A call of a function on rows, or the construction of a replicated object. Its arguments and outputs are in the
/// Command. Their numbers are here.
struct CallPayload {
  static constexpr CommandKind kKind = CommandKind::call;
  std::uint64_t function = 0;  // offset of the FunctionEntry
  std::uint64_t object = 0;    // id of the replicated object, 0 for none
  /// The function has not completed yet on all of these workers, so libraries may still load code that it needs.
  bool is_first = false;
  bool constructs = false;      // the call constructs the object
  bool rows_are_local = false;  // no argument is scattered: the rows are those of the sliced arguments
  bool is_measured = false;     // each rank reports the time of its own work (Outbox::own_ns); the shares are equal
  std::uint8_t arguments_count = 0;
  std::uint8_t outputs_count = 0;
  std::uint32_t wanted_outputs = kAllOutputs;  // one bit per output; without it, the output is not moved or reduced
  std::int64_t rows = -1;                      // of the call; -1 if no argument has rows
  std::int64_t slices = 1;
  RowsSlot batch;
  RowsSlot batch_s;  // the same for all ranks
  /// Offset of one RowsSlot per rank, or 0. The master also writes them if all rows are selected, and the shape of a copy
  /// may change before the call.
  std::uint64_t batch_s_by_rank = 0;
  /// If the ranks have weights: offset of where the share of each rank begins, by its position among the ranks of the
  /// call, and then the number of rows. 0 if the shares are equal. Not used if the rows are local.
  std::uint64_t share_begins = 0;
};

/// Destroys a replicated object.
struct DestroyPayload {
  static constexpr CommandKind kKind = CommandKind::destroy;
  std::uint64_t object = 0;  // its id
};

/// A collective on shared variables that the master calls.
struct CollectivePayload {
  static constexpr CommandKind kKind = CommandKind::collective;
  CollectiveKind collective = CollectiveKind::barrier;
  Route route{};
  Reduction reduction{};
  std::int32_t root = 0;
  std::uint32_t variables_count = 0;
  std::uint64_t variables = 0;  // offset of one CollectiveSlot per variable
};

/// Moves values to the copies of shared variables, or from them.
struct TransferPayload {
  static constexpr CommandKind kKind = CommandKind::transfer;
  TransferDirection direction{};
  std::uint32_t variables_count = 0;
  std::uint64_t parts = 0;  // offset of one TransferSlot per variable and rank
};

/// Copies the values of a variable from the copy of one rank to that of another. The ranks of the command are the
/// destination alone.
struct MovePayload {
  static constexpr CommandKind kKind = CommandKind::move;
  std::uint64_t variable = 0;  // offset of the VariableEntry
  std::int32_t from = 0;       // the rank that has the values
};

/// Moves rows of a variable between the copies and files. Each rank moves its own rows, on its node. So the rows do not
/// travel.
struct FilesPayload {
  static constexpr CommandKind kKind = CommandKind::files;
  FilesAction action{};
  std::uint64_t variable = 0;  // offset of the VariableEntry
  std::uint64_t slots = 0;     // offset of one FilesSlot per rank
  std::uint64_t reading = 0;   // tells what was read for one variable from what was read for another
  TextPlace folder;            // the path, which is the same on all nodes
  TextPlace id;                // of the folder (see SharedFolder)
  /// To write copies that should be equal: offset of two hashes for each rank. Each rank puts the hash of what it writes into
  /// the first half. Rank 0 puts the hashes of the same bytes of its own copy into the second half. 0: none are needed.
  std::uint64_t hashes = 0;
};

/// Frees the copies of variables. Each variable names the next one, so that freeing memory does not require any.
struct FreePayload {
  static constexpr CommandKind kKind = CommandKind::free;
  std::uint64_t first = 0;  // offset of the first VariableEntry
};

/// Tells the master how much memory the device has.
struct MemoryPayload {
  static constexpr CommandKind kKind = CommandKind::memory;
  std::uint64_t to = 0;  // offset of a MemorySize
};
struct MemorySize {
  std::uint64_t free_bytes;
  std::uint64_t total_bytes;
};

/// Each rank tells the master about a file of its node.
struct LookPayload {
  static constexpr CommandKind kKind = CommandKind::look;
  std::uint64_t question = 0;  // offset of a FileQuestion
  std::uint64_t answers = 0;   // offset of one FileFacts per rank
};

/// The ranks that lead their nodes connect to each other (CommChoice::linked_nodes).
struct ConnectPayload {
  static constexpr CommandKind kKind = CommandKind::connect;
  std::uint64_t answers = 0;          // offset of one ConnectAnswer per rank
  std::int64_t limit_ms = 0;          // how long this may take
  std::int64_t silence_ms = 0;        // how long a connection may be silent later, while a rank waits for it
  std::array<char, 16> interface {};  // the only one that is used; empty: any
};
struct ConnectAnswer {
  std::array<char, 512> problem;  // why some ranks are not connected; empty if all are
};

/// GPUs unpin the segment, so that the master can return free pages of its heap to the system.
struct UnpinPayload {
  static constexpr CommandKind kKind = CommandKind::unpin;
};

/// Workers unmap a file.
struct UnmapPayload {
  static constexpr CommandKind kKind = CommandKind::unmap;
  std::uint64_t file = 0;  // its id
};

struct ClosePayload {
  static constexpr CommandKind kKind = CommandKind::close;
};

/// The part of a command that every worker reads. begin() makes a new payload with the default values above. The
/// payload of another kind cannot be read.
struct alignas(64) CommandHead : CommandHeader {
  using Payload =
      std::variant<ClosePayload, CallPayload, DestroyPayload, CollectivePayload, TransferPayload, MovePayload,
                   FilesPayload, FreePayload, MemoryPayload, LookPayload, ConnectPayload, UnpinPayload, UnmapPayload>;

  /// The master makes this a command of the kind P.
  template <class P>
  P& begin() noexcept {
    static constexpr P kFresh{};  // a copy takes less time than new zeros
    kind = P::kKind;
    return payload.template emplace<P>(kFresh);
  }
  /// Throws std::bad_variant_access if the command is of another kind.
  template <class P>
  const P& as() const {
    return std::get<P>(payload);
  }
  const CallPayload& call() const { return as<CallPayload>(); }

  Payload payload;
  RankSet ranks;  // the ranks that run the command; the others skip it
};
static_assert(std::is_trivially_copyable_v<CommandHead>);

/// One slot of the pool of commands. Only calls use the outputs, arguments and bytes, with one exception (`arrived`).
struct Command : CommandHead {
  // The outputs begin a cache line. Otherwise, the compiler would put them into the padding at the end of the head,
  // which put_head overwrites.
  alignas(64) std::array<OutputType, kMaxOutputs> outputs;
  std::array<ArgumentSlot, kMaxArguments> arguments;
  alignas(16) std::array<std::byte, kInlineBytes> bytes;  // of small values
  /// By output, for outputs that stay on the device: offset of the VariableEntry that gets the memory.
  std::array<std::uint64_t, kMaxOutputs> kept;
  /// Set to the id of the command when it fails on a rank. Peers in a collective of the command then leave it.
  alignas(64) std::atomic<std::uint64_t> failed;
  /// The master sets it to the id of the command if a command on which it depends has failed.
  std::atomic<std::uint64_t> spoiled;
  /// If the ranks are on several nodes and votes are awaited: what the ranks of the other nodes have voted, as vote_word.
  /// The process that carries messages on this node writes it.
  std::atomic<std::uint64_t> vote_of_others;
  /// If the command is a move from another node: set to the id of the command when the values have come. Their place and
  /// their extents are in arguments[0]. The process that carries messages on this node writes both.
  std::atomic<std::uint64_t> arrived;
  /// The place of values that have come, but for which this node had no memory.
  static constexpr std::uint64_t kNoMemory = ~std::uint64_t{0};
  /// The number of the command. It is not in the head, so that a repeated call leaves the head as it is. A worker knows
  /// the number of its own command from its inbox, and mostly need not read this cache line.
  alignas(64) std::uint64_t id;
  /// By rank: the place of the command in the rank's inbox, which is also that of the rank's outbox. Only for the ranks
  /// of the command.
  std::array<std::uint8_t, kMaxWorldSize> places;
};

/// Writes a head into a slot, but only those cache lines that differ from what the slot already contains. Workers need
/// not fetch the other lines again: if a call is repeated, no line changes. The master calls it.
void put_head(Command& slot, const CommandHead& head) noexcept;

}  // namespace syncrun::detail::protocol

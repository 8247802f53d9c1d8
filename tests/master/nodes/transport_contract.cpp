#include "tests/master/nodes/transport_contract.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <source_location>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "syncrun/error.hpp"

namespace syncrun::test {
namespace {

using detail::master::nodes::Transport;
using detail::os::Clock;
using detail::os::Milliseconds;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = kKiB * kKiB;
constexpr auto kLimit = std::chrono::minutes(2);

void require(bool is_kept, const std::string& what, std::source_location where = std::source_location::current()) {
  if (!is_kept) throw std::logic_error("line " + std::to_string(where.line()) + ": " + what);
}

/// Bytes that differ from place to place, and from seed to seed.
Bytes pattern(std::size_t bytes, std::uint64_t seed) {
  Bytes result(bytes);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15U + 1;
  for (std::size_t at = 0; at < bytes; at += sizeof state) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    std::memcpy(result.data() + at, &state, std::min(sizeof state, bytes - at));
  }
  return result;
}

Bytes number_message(std::uint64_t number, std::size_t bytes = sizeof(std::uint64_t)) {
  Bytes message(std::max(bytes, sizeof number));
  std::memcpy(message.data(), &number, sizeof number);
  return message;
}

std::uint64_t number_in(const Bytes& message) {
  std::uint64_t number = 0;
  require(message.size() >= sizeof number, "a message is too short");
  std::memcpy(&number, message.data(), sizeof number);
  return number;
}

/// Waits for messages and tickets. Keeps the messages of other nodes until they are asked for.
class Post {
 public:
  explicit Post(Transport& transport) : transport_(transport) {}

  Bytes next_from(int node) {
    auto& waiting = waiting_[node];
    wait_until([&] { return !waiting.empty(); }, "no message from node " + std::to_string(node));
    Bytes message = std::move(waiting.front());
    waiting.pop_front();
    return message;
  }
  bool has_from(int node) { return !waiting_[node].empty(); }
  void wait_for(Transport::Ticket ticket) {
    wait_until([&] { return transport_.is_over(ticket); }, "a transfer does not end");
  }
  /// Receives for this time.
  void receive_for(Milliseconds time) {
    const auto end = Clock::now() + time;
    while (Clock::now() < end) receive();
  }
  /// Every node has arrived here before one goes on.
  void meet() {
    for (int node = 0; node < transport_.nodes(); ++node) {
      if (node != transport_.node()) transport_.send(node, {});
    }
    for (int node = 0; node < transport_.nodes(); ++node) {
      if (node != transport_.node()) require(next_from(node).empty(), "a message comes too early");
    }
  }

 private:
  void receive() {
    if (auto arrival = transport_.receive()) {
      waiting_[arrival->node].push_back(std::move(arrival->message));
    } else {
      std::this_thread::yield();
    }
  }
  template <class Condition>
  void wait_until(Condition&& condition, const std::string& otherwise) {
    const auto end = Clock::now() + kLimit;
    while (!condition()) {
      require(Clock::now() < end, otherwise);
      receive();
    }
  }

  Transport& transport_;
  std::map<int, std::deque<Bytes>> waiting_;
};

template <class Visit>
void for_each_other(Transport& transport, Visit&& visit) {
  for (int node = 0; node < transport.nodes(); ++node) {
    if (node != transport.node()) visit(node);
  }
}

/// The text of the Error (system) that comes while this node waits for the ticket of `begin`.
template <class Begin>
std::string error_of(Post& post, Begin&& begin) {
  try {
    post.wait_for(begin());
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::system, "the error is of another kind");
    return error.what();
  }
  return {};
}

void require_names_node(const std::string& error, int node) {
  const std::string name = "node " + std::to_string(node);
  require(error.find(name) != std::string::npos, "expected an error that names " + name + ", got '" + error + "'");
}

// ---- nodes and messages

void nodes_have_numbers(Transport& transport) {
  require(transport.nodes() == kContractNodes, "there are " + std::to_string(transport.nodes()) + " nodes");
  require(!transport.description().empty(), "the engine has no name");
  Post post(transport);
  for_each_other(transport, [&](int node) { transport.send(node, number_message(10U + transport.node())); });
  for_each_other(transport, [&](int node) {
    require(number_in(post.next_from(node)) == 10U + static_cast<unsigned>(node), "a message is from another node");
  });
}

/// Each node sends so many messages to each other one.
void cross_in_order(Transport& transport, std::uint64_t messages, std::size_t (*size_of)(std::uint64_t number)) {
  Post post(transport);
  for (std::uint64_t number = 0; number < messages; ++number) {
    for_each_other(transport, [&](int node) { transport.send(node, number_message(number, size_of(number))); });
  }
  for (std::uint64_t number = 0; number < messages; ++number) {
    for_each_other(transport, [&](int node) {
      const Bytes message = post.next_from(node);
      require(number_in(message) == number, "expected message " + std::to_string(number) + " from node " +
                                                std::to_string(node) + ", got " + std::to_string(number_in(message)));
      require(message.size() == size_of(number), "a message has another size");
    });
  }
}

void messages_of_a_node_arrive_in_order(Transport& transport) {
  cross_in_order(transport, 2000, [](std::uint64_t number) {
    return number % 50 == 7 ? 300 * kKiB : number % 10 == 3 ? 20 * kKiB : std::size_t{16};
  });
}

void many_small_messages_cross(Transport& transport) {
  cross_in_order(transport, 20'000, [](std::uint64_t) { return sizeof(std::uint64_t); });
}

void messages_of_all_sizes_arrive_whole(Transport& transport) {
  const std::size_t sizes[] = {0, 1, 4 * kKiB, 64 * kKiB, 64 * kKiB + 1, 10 * kMiB, 0};
  Post post(transport);
  std::uint64_t seed = 0;
  for (const std::size_t bytes : sizes) {
    ++seed;
    const auto seed_of = [seed](int node) { return seed + static_cast<std::uint64_t>(node) * 100; };
    for_each_other(transport, [&](int node) { transport.send(node, pattern(bytes, seed_of(transport.node()))); });
    for_each_other(transport, [&](int node) {
      require(post.next_from(node) == pattern(bytes, seed_of(node)),
              "a message of " + std::to_string(bytes) + " bytes has changed");
    });
  }
}

/// The most memory that this process has had.
std::size_t peak_bytes() {
  struct rusage usage {};
  require(::getrusage(RUSAGE_SELF, &usage) == 0, "getrusage() has failed");
  return static_cast<std::size_t>(usage.ru_maxrss) * kKiB;
}

/// A sender's copy, or a receiver's move to larger memory, takes seconds if a message has some GiB.
void large_messages_are_not_copied(Transport& transport) {
  constexpr std::size_t kBytes = 144 * kMiB;
  constexpr std::size_t kRoom = 64 * kMiB;
  Post post(transport);
  Bytes message = transport.node() == 0 ? pattern(kBytes, 1) : Bytes();
  post.meet();
  const std::size_t before = peak_bytes();
  if (transport.node() == 0) {
    transport.send(1, std::move(message));
    require(peak_bytes() < before + kRoom, "the message was copied before it left");
  } else if (transport.node() == 1) {
    message = post.next_from(0);
    require(peak_bytes() < before + kBytes + kRoom, "the message was moved to other memory while it came");
  }
  post.meet();
  if (transport.node() == 1) require(message == pattern(kBytes, 1), "the message has changed");
}

void threads_share_a_transport(Transport& transport) {
  constexpr std::uint64_t kMessages = 2000;
  Post post(transport);
  const auto send_all = [&](int node) {
    for (std::uint64_t number = 0; number < kMessages; ++number) transport.send(node, number_message(number));
  };
  std::vector<std::thread> senders;
  for_each_other(transport, [&](int node) { senders.emplace_back(send_all, node); });
  for_each_other(transport, [&](int node) {
    for (std::uint64_t number = 0; number < kMessages; ++number) {
      require(number_in(post.next_from(node)) == number, "out of order");
    }
  });
  for (std::thread& sender : senders) sender.join();
}

// ---- bulk

void bulk_crosses_both_ways(Transport& transport) {
  Post post(transport);
  if (transport.node() < 2) {
    const int other = 1 - transport.node();
    const Bytes mine = pattern(64 * kMiB, 1U + transport.node());
    Bytes theirs(mine.size());
    const auto out = transport.send_bulk(other, mine);
    const auto in = transport.receive_bulk(other, theirs);
    post.wait_for(out);
    post.wait_for(in);
    require(theirs == pattern(64 * kMiB, 1U + static_cast<unsigned>(other)), "bulk has changed");
  }
  post.meet();
}

void bulk_arrives_in_the_order_of_its_names(Transport& transport) {
  const std::size_t sizes[] = {1000, 0, 160 * kMiB, 8, 3 * kMiB};
  Post post(transport);
  std::vector<Bytes> memory;
  std::vector<Transport::Ticket> tickets;
  for (std::uint64_t i = 0; i < std::size(sizes); ++i) {
    if (transport.node() == 0) {
      tickets.push_back(transport.send_bulk(1, memory.emplace_back(pattern(sizes[i], i))));
    } else if (transport.node() == 1) {
      tickets.push_back(transport.receive_bulk(0, memory.emplace_back(sizes[i])));
    }
  }
  for (const auto ticket : tickets) {
    require(ticket != 0, "a transfer has no ticket");
    post.wait_for(ticket);
  }
  for (std::uint64_t i = 0; i < tickets.size(); ++i) {
    require(memory[i] == pattern(sizes[i], i), "bulk " + std::to_string(i) + " has changed");
  }
  post.meet();
}

void messages_pass_bulk_that_waits(Transport& transport) {
  Post post(transport);
  const Bytes bulk = pattern(4 * kMiB, 5);
  if (transport.node() == 0) {
    const auto ticket = transport.send_bulk(1, bulk);
    transport.send(1, number_message(77));
    post.wait_for(ticket);
  } else if (transport.node() == 1) {
    // The message tells the receiver what comes.
    require(number_in(post.next_from(0)) == 77, "another message");
    Bytes memory(bulk.size());
    post.wait_for(transport.receive_bulk(0, memory));
    require(memory == bulk, "bulk has changed");
  }
  post.meet();
}

void too_much_bulk_is_an_error(Transport& transport) {
  static const Bytes bulk(kMiB);
  Post post(transport);
  if (transport.node() == 0) {
    transport.send_bulk(1, bulk);
  } else if (transport.node() == 1) {
    Bytes memory(1000);
    require_names_node(error_of(post, [&] { return transport.receive_bulk(0, memory); }), 0);
  }
}

/// The sizes are such that an implementation may send the transfer in pieces.
void large_bulk_of_another_size_is_an_error(Transport& transport) {
  static const Bytes bulk(100 * kMiB);
  Post post(transport);
  const int me = transport.node();
  if (me == 0) {
    for (const int node : {1, 2}) transport.send_bulk(node, bulk);
  } else {
    const std::size_t expected = me == 1 ? 70 * kMiB : 10 * kKiB;
    Bytes memory(expected);
    require_names_node(error_of(post, [&] { return transport.receive_bulk(0, memory); }), 0);
  }
}

// ---- abandoned nodes, and the end

void abandoned_nodes_are_silent(Transport& transport) {
  Post post(transport);
  static const Bytes bulk(kMiB);
  static Bytes memory(kMiB);
  if (transport.node() == 2) {
    transport.send(0, number_message(1));
    transport.send(1, number_message(2));
    require(number_in(post.next_from(1)) == 3, "another message");
    post.receive_for(Milliseconds(100));
    require(!post.has_from(0), "a message of the node that has abandoned this one");
    return;
  }
  if (transport.node() == 1) {
    require(number_in(post.next_from(2)) == 2, "another message");
    transport.send(0, number_message(4));  // node 2 has sent its message to node 0
    require(number_in(post.next_from(0)) == 5, "another message");
    transport.send(2, number_message(3));
    transport.send(0, number_message(6));
    // Node 2 ends the test on its own. With some engines, nobody may leave before that.
    post.receive_for(Milliseconds(500));
    return;
  }
  std::vector<Transport::Ticket> tickets{transport.send_bulk(2, bulk), transport.receive_bulk(2, memory)};
  transport.abandon(2);
  for (const auto ticket : tickets) require(transport.is_over(ticket), "a transfer with the abandoned node goes on");
  require(transport.is_over(transport.send_bulk(2, bulk)), "a transfer to an abandoned node begins");
  require(transport.is_over(transport.receive_bulk(2, memory)), "a transfer from an abandoned node begins");
  transport.send(2, number_message(8));
  transport.abandon(2);
  require(number_in(post.next_from(1)) == 4, "another message");
  transport.send(1, number_message(5));
  require(number_in(post.next_from(1)) == 6, "another message");
  post.receive_for(Milliseconds(300));
  require(!post.has_from(2), "a message of an abandoned node");
  require(!transport.close(Milliseconds(1000)), "close() says that all nodes left in order");
}

void close_drops_what_nobody_received(Transport& transport) {
  static const Bytes bulk(2 * kMiB);
  static Bytes memory(bulk.size());
  for_each_other(transport, [&](int node) {
    for (std::uint64_t number = 0; number < 200; ++number) transport.send(node, number_message(number));
    transport.send(node, pattern(kMiB, 1));
    transport.send_bulk(node, bulk);
    transport.send(node, number_message(201));
  });
  // Node 1 names memory for what node 0 has sent, and for more.
  if (transport.node() == 1) {
    transport.receive_bulk(0, memory);
    transport.receive_bulk(0, memory);
  }
}

void close_ends_although_a_node_stays(Transport& transport) {
  Post post(transport);
  post.meet();
  if (transport.node() == 2) {
    std::this_thread::sleep_for(Milliseconds(4500));
    return;
  }
  const auto before = Clock::now();
  require(!transport.close(Milliseconds(300)), "close() says that all nodes left in order");
  require(Clock::now() - before < Milliseconds(4000), "close() took longer than its grace");
}

constexpr auto kCloses = TransportPromise::End::closes;
constexpr auto kDoesNotClose = TransportPromise::End::does_not_close;
constexpr TransportPromise kContract[] = {
    {"NodesHaveNumbers", nodes_have_numbers, kCloses},
    {"MessagesOfANodeArriveInOrder", messages_of_a_node_arrive_in_order, kCloses},
    {"ManySmallMessagesCross", many_small_messages_cross, kCloses},
    {"MessagesOfAllSizesArriveWhole", messages_of_all_sizes_arrive_whole, kCloses},
    {"LargeMessagesAreNotCopied", large_messages_are_not_copied, kCloses},
    {"ThreadsShareATransport", threads_share_a_transport, kCloses},
    {"BulkCrossesBothWays", bulk_crosses_both_ways, kCloses},
    {"BulkArrivesInTheOrderOfItsNames", bulk_arrives_in_the_order_of_its_names, kCloses},
    {"MessagesPassBulkThatWaits", messages_pass_bulk_that_waits, kCloses},
    {"TooMuchBulkIsAnError", too_much_bulk_is_an_error, kCloses},
    {"LargeBulkOfAnotherSizeIsAnError", large_bulk_of_another_size_is_an_error, kCloses},
    {"AbandonedNodesAreSilent", abandoned_nodes_are_silent, kDoesNotClose},
    {"CloseDropsWhatNobodyReceived", close_drops_what_nobody_received, kCloses},
    {"CloseEndsAlthoughANodeStays", close_ends_although_a_node_stays, kDoesNotClose},
};

}  // namespace

std::span<const TransportPromise> transport_contract() { return kContract; }

}  // namespace syncrun::test

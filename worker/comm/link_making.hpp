#pragma once

// Makes the connections between the leaders of nodes (LeaderLinks). Each leader listens, and the leaders tell each other where
// through the processes that carry messages, which have connections already:
//
//   listen | offers travel to all leaders | each leader calls those before it, and answers those after it | outcomes travel
//
// A caller shows the token that the one who listens has offered, and gets the token that it has offered itself. Nobody else
// has them. All addresses of a leader are called at once, and the first one that answers is used.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/os/file_descriptor.hpp"
#include "worker/comm/leader_links.hpp"
#include "worker/process/interruption.hpp"

namespace syncrun::detail::worker::comm {

/// The address at which a leader listens. The leaders send it to each other as bytes.
struct LinkOffer {
  static constexpr std::size_t kMostAddresses = 8;
  using Token = std::array<std::byte, 16>;
  Token token;
  std::int32_t rank;
  std::uint16_t port;  // in network order
  std::uint16_t addresses_count;
  std::array<std::uint32_t, kMostAddresses> addresses;  // IPv4, in network order
  std::array<char, 64> host;
  std::array<char, 128> problem;  // why nobody can call this leader; empty if others can
  /// "rank 2 (n2)"
  std::string who() const;
};

class LinkMaker {
 public:
  /// Listens, if the system lets it. With a name of an interface, only its addresses are offered.
  LinkMaker(int rank, std::string_view interface);

  const LinkOffer& offer() const noexcept { return offer_; }
  /// Connects this leader to all others. `offers` are those of all leaders, in order, with its own. Returns why that was not
  /// possible within the limit, or an empty text. Throws what interrupts the wait.
  std::string connect(std::span<const LinkOffer> offers, std::chrono::milliseconds limit,
                      const process::Interruption& interruption);
  /// The connections that connect() has made.
  std::vector<LeaderLink> take_links() { return std::move(links_); }

 private:
  /// What a caller says first, and the answer.
  struct Greeting {
    std::uint64_t magic;
    std::int32_t rank;  // of the sender
    std::int32_t padding;
    LinkOffer::Token token;  // of the receiver
  };
  struct Call {
    const LinkOffer* to;
    os::FileDescriptor socket;
    bool is_connected = false;
    std::size_t got = 0;  // of the answer
    Greeting answer{};
  };
  struct Caller {
    os::FileDescriptor socket;
    std::size_t got = 0;
    Greeting greeting{};
  };

  bool is_own_address(const LinkOffer& offer, std::uint32_t address) const noexcept;
  void call_all(const LinkOffer& offer);
  bool progress(Call& call);
  bool progress(Caller& caller, std::span<const LinkOffer> awaited);
  void accept();
  bool is_linked_to(int rank) const noexcept;
  void add_link(const LinkOffer& offer, os::FileDescriptor socket);
  void await_something() const;

  LinkOffer offer_{};
  std::string last_error_;
  os::FileDescriptor listener_;
  bool can_accept_ = true;  // false for a moment if the system has refused a descriptor
  std::vector<Call> calls_;
  std::vector<Caller> callers_;
  std::vector<LeaderLink> links_;
};

}  // namespace syncrun::detail::worker::comm

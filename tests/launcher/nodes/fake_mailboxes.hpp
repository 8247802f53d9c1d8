#pragma once

// Mailboxes of several nodes in one process. The test decides when a message arrives.

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launcher/nodes/mailbox.hpp"
#include "syncrun/error.hpp"

namespace syncrun::test {

class FakeMailboxes {
 public:
  class Box final : public detail::Mailbox {
   public:
    Box(FakeMailboxes& all, int node) : all_(all), node_(node) {}
    void send(int node, std::vector<std::byte> message) override {
      ++sent;
      bytes_sent += message.size();
      most_bytes = std::max(most_bytes, message.size());
      all_.boxes_[static_cast<std::size_t>(node)].arrivals_.push_back({node_, std::move(message)});
    }
    std::optional<Received> receive() override {
      if (is_held_back || arrivals_.empty()) return std::nullopt;
      Received next = std::move(arrivals_.front());
      arrivals_.pop_front();
      return next;
    }

    Ticket send_bulk(int node, std::span<const std::byte> from) override {
      Box& to = all_.boxes_[static_cast<std::size_t>(node)];
      to.bulk_[node_].push_back({std::vector<std::byte>(from.begin(), from.end())});
      return 0;
    }
    Ticket receive_bulk(int node, std::span<std::byte> to) override {
      expected_.push_back({node, to});
      return expected_.size();
    }
    bool is_over(Ticket ticket) override {
      for (std::size_t i = 0; i < expected_.size() && !is_held_back; ++i) {
        auto& [node, to] = expected_[i];
        auto& from = bulk_[node];
        if (to.empty() || from.empty()) continue;
        if (from.front().size() != to.size()) throw Error(ErrorKind::system, "bulk of another size");
        std::copy(from.front().begin(), from.front().end(), to.begin());
        from.pop_front();
        to = {};
      }
      return ticket == 0 || expected_[ticket - 1].second.empty();
    }

    bool is_held_back = false;  // messages and bulk wait
    int sent = 0;
    std::size_t bytes_sent = 0;
    std::size_t most_bytes = 0;  // of one message

   private:
    friend class FakeMailboxes;
    FakeMailboxes& all_;
    int node_;
    std::deque<Received> arrivals_;
    std::map<int, std::deque<std::vector<std::byte>>> bulk_;     // by sender
    std::deque<std::pair<int, std::span<std::byte>>> expected_;  // by ticket
  };

  explicit FakeMailboxes(int nodes) {
    for (int node = 0; node < nodes; ++node) boxes_.emplace_back(*this, node);
  }
  Box& at(int node) { return boxes_[static_cast<std::size_t>(node)]; }

 private:
  std::deque<Box> boxes_;
};

}  // namespace syncrun::test

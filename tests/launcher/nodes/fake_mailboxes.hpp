#pragma once

// Mailboxes of several nodes in one process. The test decides when a message arrives.

#include <deque>
#include <map>
#include <optional>
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
      all_.boxes_[static_cast<std::size_t>(node)].arrivals_.push_back({node_, std::move(message)});
    }
    std::optional<Received> receive() override {
      if (is_held_back || arrivals_.empty()) return std::nullopt;
      Received next = std::move(arrivals_.front());
      arrivals_.pop_front();
      return next;
    }

    bool is_held_back = false;  // messages wait
    int sent = 0;
    std::size_t bytes_sent = 0;

   private:
    friend class FakeMailboxes;
    FakeMailboxes& all_;
    int node_;
    std::deque<Received> arrivals_;
  };

  explicit FakeMailboxes(int nodes) {
    for (int node = 0; node < nodes; ++node) boxes_.emplace_back(*this, node);
  }
  Box& at(int node) { return boxes_[static_cast<std::size_t>(node)]; }

 private:
  std::deque<Box> boxes_;
};

}  // namespace syncrun::test

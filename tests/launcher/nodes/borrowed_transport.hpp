#pragma once

// A transport that the test owns, for a NodeGroup, which owns its transport.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launcher/nodes/transport.hpp"

namespace syncrun::test {

class BorrowedTransport final : public detail::Transport {
 public:
  explicit BorrowedTransport(detail::Transport& other) : other_(other) {}
  void open() override { other_.open(); }
  int node() const noexcept override { return other_.node(); }
  int nodes() const noexcept override { return other_.nodes(); }
  std::string description() const override { return other_.description(); }
  void send(int node, std::vector<std::byte> message) override {
    if (on_send) on_send(message);
    other_.send(node, std::move(message));
  }
  std::optional<Received> receive() override { return other_.receive(); }
  Ticket send_bulk(int node, std::span<const std::byte> from) override { return other_.send_bulk(node, from); }
  Ticket receive_bulk(int node, std::span<std::byte> to) override { return other_.receive_bulk(node, to); }
  bool is_over(Ticket ticket) override { return other_.is_over(ticket); }
  std::uint64_t pieces_from(int node) noexcept override { return other_.pieces_from(node); }
  void abandon(int node) noexcept override { other_.abandon(node); }
  bool close(detail::Milliseconds grace) noexcept override { return other_.close(grace); }

  /// Called with each message before it is sent, by the thread that sends it.
  std::function<void(std::span<const std::byte>)> on_send;

 private:
  detail::Transport& other_;
};

}  // namespace syncrun::test

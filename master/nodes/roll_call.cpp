#include "master/nodes/roll_call.hpp"

#include <string>
#include <utility>
#include <vector>

#include "master/nodes/answers.hpp"
#include "master/nodes/start_messages.hpp"

namespace syncrun::detail::master::nodes {

namespace {

/// Collects what the agents say they are.
class Hellos final : public Answers {
 public:
  explicit Hellos(int nodes) : identities_(static_cast<std::size_t>(nodes)), has_(static_cast<std::size_t>(nodes)) {}
  void set(int node, NodeIdentity identity) {
    identities_[static_cast<std::size_t>(node)] = std::move(identity);
    has_[static_cast<std::size_t>(node)] = true;
    if (missing().empty()) finish();
  }
  void on_message(int node, MessageReader& message) override {
    if (message.kind() == MessageKind::hello) set(node, get_identity(message));
  }

  std::string missing() const {
    std::string nodes;
    for (std::size_t node = 0; node < has_.size(); ++node) {
      if (!has_[node]) nodes += (nodes.empty() ? "" : ", ") + std::to_string(node);
    }
    return nodes;
  }
  std::string present() const {
    std::string nodes;
    for (std::size_t node = 0; node < has_.size(); ++node) {
      if (has_[node]) nodes += (nodes.empty() ? "" : ", ") + std::to_string(node) + " (" + identities_[node].host + ")";
    }
    return nodes;
  }
  const std::vector<NodeIdentity>& identities() const noexcept { return identities_; }

 private:
  std::vector<NodeIdentity> identities_;
  std::vector<bool> has_;
};

}  // namespace

void RollCall::require(os::Milliseconds limit) {
  if (failure_) throw Error(*failure_);
  if (is_complete_) return;
  try {
    await_hellos(limit);
    is_complete_ = true;
  } catch (const Error& error) {
    failure_ = error;
    throw;
  }
}

void RollCall::await_hellos(os::Milliseconds limit) {
  Hellos hellos(group_.nodes());
  hellos.set(kMasterNode, own_identity(group_.transport_name()));
  if (!hellos.await(group_, limit)) {
    throw Error(ErrorKind::timeout, "no word from node " + hellos.missing() + " within " +
                                        std::to_string(limit.count()) + " ms; these are there: " + hellos.present() +
                                        " (--start-timeout sets another limit)");
  }
  const auto& identities = hellos.identities();
  for (std::size_t node = 1; node < identities.size(); ++node)
    check_identity(identities.front(), identities[node], static_cast<int>(node));
  check_distinct(identities);
  group_.set_names(names_of_nodes(identities));
}

}  // namespace syncrun::detail::master::nodes

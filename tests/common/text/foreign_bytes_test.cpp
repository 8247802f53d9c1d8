// Bytes from another process contain lengths. Syncrun checks the lengths before it uses them.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "common/protocol/channel.hpp"
#include "common/protocol/helper_spec.hpp"
#include "syncrun/detail/construct.hpp"

namespace {

using namespace syncrun::detail;
using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kFrameMagic = 0x53594e43;
constexpr std::uint64_t kEndless = ~std::uint64_t{0};

/// The kind of error that `take` throws, or nothing if it does not throw.
template <class Take>
std::optional<syncrun::ErrorKind> refusal_of(Take take) {
  try {
    take();
  } catch (const syncrun::Error& error) {
    return error.kind();
  }
  return std::nullopt;
}

template <class T>
std::optional<syncrun::ErrorKind> refusal_of_argument(const Bytes& bytes) {
  std::span<const std::byte> left = bytes;
  return refusal_of([&] { take_argument<T>(left); });
}

TEST(Argument, ComesBackAsItWasPut) {
  Bytes bytes;
  put_argument(bytes, std::string("text"));
  put_argument(bytes, std::vector<int>{1, 2, 3});
  put_argument(bytes, 2.5);
  std::span<const std::byte> left = bytes;
  EXPECT_EQ(take_argument<std::string>(left), "text");
  EXPECT_EQ(take_argument<std::vector<int>>(left), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(take_argument<double>(left), 2.5);
  EXPECT_TRUE(left.empty());
}

TEST(Argument, IsRefusedWhereItIsCutShort) {
  const auto refused = syncrun::ErrorKind::system;
  EXPECT_EQ(refusal_of_argument<double>(Bytes(7)), refused);
  EXPECT_EQ(refusal_of_argument<std::string>(Bytes(7)), refused);
  Bytes five;
  put_argument(five, std::uint64_t{5});
  five.resize(five.size() + 4);
  EXPECT_EQ(refusal_of_argument<std::string>(five), refused);
  EXPECT_EQ(refusal_of_argument<std::vector<int>>(five), refused);
  Bytes overflowing;
  put_argument(overflowing, std::uint64_t{1} << 62U);
  overflowing.resize(overflowing.size() + 4);
  EXPECT_EQ(refusal_of_argument<std::vector<int>>(overflowing), refused);
}

TEST(Frame, TakesMemoryForWhatArrivesAndNotForWhatItSays) {
  auto [from, to] = Channel::make_ends();
  const struct {
    std::uint32_t magic = kFrameMagic;
    FrameKind kind = FrameKind::message;
    std::uint64_t bytes = kEndless;
    std::array<std::byte, 100> arrived{};
  } sent;
  ASSERT_EQ(::send(from.get(), &sent, sizeof(sent), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(sent)));
  from.reset();
  Channel channel(std::move(to));
  Patience patience(10s);
  Frame frame{};
  EXPECT_EQ(channel.receive(frame, patience), Channel::Outcome::closed);
}

TEST(Frame, ArrivesWholeHoweverLargeItIs) {
  auto [from, to] = Channel::make_ends();
  Channel sender(std::move(from));
  Channel receiver(std::move(to));
  Bytes sent((std::size_t{5} << 20U) + 3);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 >> 3U);
  std::thread sending([&] {
    Patience patience(60s);
    EXPECT_EQ(sender.send(FrameKind::message, sent, patience), Channel::Outcome::done);
    EXPECT_EQ(sender.send(FrameKind::result, {}, patience), Channel::Outcome::done);
  });
  Patience patience(60s);
  Frame frame{};
  EXPECT_EQ(receiver.receive(frame, patience), Channel::Outcome::done);
  EXPECT_EQ(frame.bytes, sent);
  EXPECT_EQ(receiver.receive(frame, patience), Channel::Outcome::done);
  EXPECT_EQ(frame.kind, FrameKind::result);
  EXPECT_TRUE(frame.bytes.empty());
  sending.join();
}

TEST(Order, IsRefusedWhereItSaysMoreThanItsFileHolds) {
  HelperSpec order{};
  order.magic = kMagic;
  for (const std::uint64_t bytes : {std::uint64_t{9}, kEndless}) {
    order.arguments_bytes = bytes;
    const FileDescriptor file(::memfd_create("order", MFD_CLOEXEC));
    ASSERT_EQ(::write(file.get(), &order, sizeof(order)), static_cast<ssize_t>(sizeof(order)));
    ASSERT_EQ(::write(file.get(), "8 bytes.", 8), 8);
    EXPECT_EQ(refusal_of([&] { read_spec(file); }), syncrun::ErrorKind::system);
  }
}

}  // namespace

// Collectives that a body calls.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <random>

#include "tests/api/element_types.hpp"
#include "tests/support/on_workers.hpp"

namespace {

class CommShares : public OnWorkers {};
INSTANTIATE_ON_WORKERS(CommShares, 1, 4);

constexpr sr::Reduction kReductions[] = {sr::Reduction::avg, sr::Reduction::sum, sr::Reduction::min, sr::Reduction::max,
                                         sr::Reduction::prod};

/// The memory in which the values and this rank's part lie, for reduce_scatter and all_gather. `started`: in a shared
/// variable, and the collectives are started and joined.
enum class Place { own_memory, shared_variable, in_place, started };

// Compares reduce_scatter and then all_gather with all_reduce, bit by bit.
// Element i of rank r is (i % 97 + r) % 11 + 1.
template <class T>
void compare_with_all_reduce(sr::CpuWorker& worker, sr::Comm& comm, sr::Local<T, 1> own, sr::Reduction reduction,
                             Place place) {
  for (std::int64_t i = 0; i < own.size(); ++i) own[i] = T(static_cast<float>((i % 97 + worker.rank()) % 11 + 1));
  std::vector<T> expected(own.begin(), own.end());
  comm.all_reduce(std::span<T>(expected), reduction);

  std::vector<T> copy(own.begin(), own.end());
  const sr::Share share = comm.share(own.size());
  std::vector<T> separate(static_cast<std::size_t>(share.count));
  std::span<T> values = place == Place::own_memory ? std::span<T>(copy) : own.span();
  const std::span<T> in_place =
      values.subspan(static_cast<std::size_t>(share.begin), static_cast<std::size_t>(share.count));
  const std::span<T> part = place == Place::in_place ? in_place : std::span<T>(separate);
  if (place == Place::started) comm.start_reduce_scatter(values, part, reduction).join();
  else comm.reduce_scatter(values, part, reduction);
  for (std::int64_t i = 0; i < share.count; ++i) {
    const T got = part[static_cast<std::size_t>(i)];
    const T want = expected[static_cast<std::size_t>(share.begin + i)];
    if (static_cast<double>(got) != static_cast<double>(want)) {
      throw std::runtime_error("reduce_scatter differs at element " + std::to_string(share.begin + i) + " of " +
                               std::to_string(own.size()));
    }
  }
  if (place == Place::started) comm.start_all_gather(part, values).join();
  else comm.all_gather(part, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (static_cast<double>(values[i]) == static_cast<double>(expected[i])) continue;
    throw std::runtime_error("all_gather differs at element " + std::to_string(i) + " of " +
                             std::to_string(own.size()));
  }
}

template <class T>
void check_type(sr::Session& session, const std::vector<std::int64_t>& sizes) {
  const auto f = session.function(compare_with_all_reduce<T>);
  auto own = session.shared<T, 1>("own");
  for (const auto size : sizes) {
    own.broadcast(std::vector<T>(static_cast<std::size_t>(size)));
    for (const auto reduction : kReductions) {
      if (reduction == sr::Reduction::avg && !sr::FloatingElement<T>) continue;
      for (const auto place : {Place::own_memory, Place::shared_variable, Place::in_place, Place::started})
        f(own, reduction, place);
    }
  }
}

TEST_P(CommShares, ReduceScatterAndAllGatherMakeAnAllReduceForEveryTypeAndReduction) {
  std::mt19937 random(static_cast<unsigned>(7 + world_size()));
  const auto some = [&random](std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(random);
  };
  // These sizes are fewer elements than ranks, few enough for one meeting, and more than a buffer takes at once.
  check_type<float>(session(), {0, 1, world_size(), some(20), some(3000), 600'000 + some(2000)});
  const std::vector<std::int64_t> small{1, some(20), some(5000)};
  for_arithmetic_types([&]<class T> { check_type<T>(session(), small); });
}

// Rank r's part has the value r.
void gather_into_pages(sr::CpuWorker& worker, sr::Comm& comm, sr::Local<int, 1> part, bool is_mapped) {
  const auto check = [](bool right, const char* what) {
    if (!right) throw std::runtime_error(what);
  };
  std::fill(part.begin(), part.end(), worker.rank());
  const auto size = static_cast<std::size_t>(part.size());
  const std::size_t all = size * static_cast<std::size_t>(worker.world_size());
  void* const pages = ::mmap(nullptr, all * sizeof(int), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(pages != MAP_FAILED, "no pages");
  auto* const values = static_cast<int*>(pages);
  sr::detail::start_gather_into_pages(comm, {part.data(), size, sizeof(int)}, {pages, all}).join();
  for (std::size_t i = 0; i < all; ++i) check(values[i] == static_cast<int>(i / size), "another value");
  comm.barrier();
  part[0] = -1;  // this is forbidden, and shows who has a copy
  comm.barrier();
  for (std::size_t i = 0; i < all; i += size) {
    check(values[i] == (is_mapped ? -1 : static_cast<int>(i / size)), "mapped or copied");
    values[i + 1] = 99;
  }
  comm.barrier();
  check(part[1] == worker.rank(), "a write to the pages changed the part");
  ::munmap(pages, all * sizeof(int));
}

TEST_P(CommShares, AreMappedIfTheyAreWholePagesOfAVariable) {
  const auto f = session().function(gather_into_pages);
  const auto page = static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE) / sizeof(int));
  for (const std::int64_t size : {20 * page, 20 * page + 2, page}) {
    const auto part = session().shared("part", std::vector<int>(static_cast<std::size_t>(size)));
    f(part, world_size() > 1 && size == 20 * page);
  }
}

TEST_P(CommShares, AreTheRowsThatScatterGives) {
  const auto f = session().function([](sr::Comm& comm, sr::Scattered<const int, 1> x, std::int64_t rows) {
    const sr::Share share = comm.share(rows);
    if (share.begin != x.first_row() || share.count != x.rows()) throw std::runtime_error("another share");
    if (comm.share(rows, comm.world_size() - 1).begin + comm.share(rows, comm.world_size() - 1).count != rows) {
      throw std::runtime_error("the last share does not end at the end");
    }
  });
  for (const std::int64_t rows : {1, 2, 7, 64, 101}) {
    f(session().data(std::vector<int>(static_cast<std::size_t>(rows))), rows);
  }
}

TEST_P(CommShares, AveragesWeightRanksByTheirRows) {
  const auto f =
      session().function([](sr::CpuWorker&, sr::Comm& comm, sr::Scattered<const double, 1> x) -> sr::Max<double> {
        const double mean = x.rows() == 0 ? std::numeric_limits<double>::quiet_NaN()
                                          : std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.rows());
        std::vector<double> values(10, mean);
        std::vector<double> part(static_cast<std::size_t>(comm.share(10).count));
        comm.reduce_scatter(std::span(values), std::span(part), sr::Reduction::avg);
        comm.all_gather(part, std::span(values));
        return *std::max_element(values.begin(), values.end());
      });
  EXPECT_NEAR(f(session().data(counting<double>(500))), 249.5, 1e-12);
  EXPECT_NEAR(f(session().data(counting<double>(2))), 0.5, 1e-15) << "ranks without rows do not count";
}

TEST_P(CommShares, GatherAlsoWhatHasNoArithmetic) {
  const auto f = session().function([](sr::Comm& comm) {
    const sr::Share share = comm.share(11);
    const std::vector<std::uint8_t> bytes(static_cast<std::size_t>(share.count), 1);
    const std::span<const bool> part(reinterpret_cast<const bool*>(bytes.data()), bytes.size());
    std::array<bool, 11> all{};
    comm.all_gather(part, all);
    if (!std::all_of(all.begin(), all.end(), [](bool flag) { return flag; })) throw std::runtime_error("lost one");
  });
  f();
}

// Gathers at the root, scatters from there, and gathers on every rank. Rank r has lengths[r] elements.
template <class T>
void gather_and_scatter(sr::CpuWorker& worker, sr::Comm& comm, sr::Local<T, 1> own, sr::Local<T, 1> all, int root,
                        bool pass_lengths) {
  const auto check = [](bool right, const char* what) {
    if (!right) throw std::runtime_error(std::string(what) + " went wrong");
  };
  const std::vector<T> before(own.begin(), own.end());
  const std::vector<std::int64_t> lengths = comm.lengths(own.size());
  check(lengths[static_cast<std::size_t>(worker.rank())] == own.size(), "lengths");
  const std::int64_t begin = std::accumulate(lengths.begin(), lengths.begin() + worker.rank(), std::int64_t{0});
  const auto total = static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));

  const bool is_root = worker.rank() == root;
  const std::span<T> whole = is_root ? all.span().first(total) : std::span<T>();
  if (pass_lengths) comm.gather(own, whole, root, lengths);
  else comm.gather(own, whole, root);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    check(static_cast<double>(whole[i]) == static_cast<double>(T(static_cast<float>(i % 101))), "gather");
  }

  std::fill(own.begin(), own.end(), T(1.0F));
  std::vector<T> back(static_cast<std::size_t>(own.size()));  // not in shared memory
  if (pass_lengths) comm.scatter(whole, std::span<T>(back), root, lengths);
  else comm.scatter(whole, own, root);
  const std::span<T> got = pass_lengths ? std::span<T>(back) : own.span();
  check(std::equal(got.begin(), got.end(), before.begin(), before.end()), "scatter");

  std::vector<T> everything(total);
  comm.all_gather(before, std::span<T>(everything), lengths);
  check(std::equal(before.begin(), before.end(), everything.begin() + begin), "all_gather");
  for (std::size_t i = 0; i < total; ++i) {
    check(static_cast<double>(everything[i]) == static_cast<double>(T(static_cast<float>(i % 101))), "all_gather");
  }
}

template <class T>
void check_lengths_of(sr::Session& session, std::int64_t most, std::mt19937& random) {
  const int n = session.world_size();
  auto own = session.shared<T, 1>("own");
  auto all = session.shared<T, 1>("all");
  all.broadcast(std::vector<T>(static_cast<std::size_t>(most * n)));
  const auto f = session.function(gather_and_scatter<T>);
  for (int round = 0; round < 2; ++round) {
    std::int64_t begin = 0;
    for (int rank = 0; rank < n; ++rank) {
      const std::int64_t length = rank == 1 ? 0 : std::uniform_int_distribution<std::int64_t>(0, most)(random);
      std::vector<T> values;
      for (std::int64_t i = 0; i < length; ++i) values.push_back(T(static_cast<float>((begin + i) % 101)));
      own.set(rank, values, {length});
      begin += length;
    }
    f(own, all, round % n, false);
    f(own, all, n - 1, true);
  }
}

TEST_P(CommShares, GatherAndScatterPartsOfAnyLength) {
  std::mt19937 random(static_cast<unsigned>(100 + world_size()));
  check_lengths_of<float>(session(), 5, random);
  check_lengths_of<float>(session(), 500'000, random);
  for_arithmetic_types([&]<class T> { check_lengths_of<T>(session(), 5000, random); });
}

TEST_P(CommShares, ReduceToOneRank) {
  const auto f = session().function(
      [](sr::CpuWorker& worker, sr::Comm& comm, sr::Local<double, 1> own, sr::Reduction reduction, int root) {
        std::vector<double> mine(own.begin(), own.end());
        std::vector<double> expected(own.begin(), own.end());
        comm.all_reduce(std::span(expected), reduction);
        comm.reduce(own, reduction, root);
        comm.reduce(std::span(mine), reduction, root);
        if (worker.rank() != root) return;
        if (!std::equal(own.begin(), own.end(), expected.begin()) || mine != expected) {
          throw std::runtime_error("reduce differs from all_reduce");
        }
      });
  auto own = session().shared<double, 1>("own");
  for (const std::int64_t size : {0, 1, 100, 5000, 300'001}) {
    for (const auto reduction : kReductions) {
      for (int rank = 0; rank < world_size(); ++rank) {
        std::vector<double> values;
        for (std::int64_t i = 0; i < size; ++i) values.push_back(1 + 0.125 * static_cast<double>((i + rank) % 3));
        own.set(rank, values, {size});
      }
      f(own, reduction, static_cast<int>(size % world_size()));
    }
  }
}

TEST_P(CommShares, RefuseLengthsThatMakeNoSense) {
  const auto too_much = session().function([](sr::CpuWorker& worker, sr::Comm& comm) {
    const std::vector<float> part(2);
    std::vector<float> all(worker.rank() == 0 ? 1 : 0);
    comm.gather(part, std::span(all), 0);
  });
  EXPECT_ERROR(too_much(), sr::ErrorKind::function, "gather: the whole array has 1 elements on rank 0");
  const auto too_little = session().function([](sr::CpuWorker& worker, sr::Comm& comm) {
    std::vector<float> part(2);
    const std::vector<float> all(worker.rank() == 0 ? 100 : 0);
    comm.scatter(all, std::span(part), 0);
  });
  EXPECT_ERROR(too_little(), sr::ErrorKind::function, "scatter: the whole array has 100 elements on rank 0");
  const auto no_root = session().function([](sr::Comm& comm, int root) {
    std::vector<float> part(2);
    comm.reduce(std::span(part), sr::Reduction::sum, root);
  });
  EXPECT_ERROR(no_root(world_size()), sr::ErrorKind::function, "reduce: root is a rank from 0 to");
  EXPECT_ERROR(no_root(-1), sr::ErrorKind::function, "got -1");
  const auto too_few = session().function([](sr::Comm& comm) {
    std::vector<float> part(1);
    std::vector<float> all(static_cast<std::size_t>(comm.world_size()));
    const std::vector<std::int64_t> lengths(static_cast<std::size_t>(comm.world_size() + 1), 1);
    comm.all_gather(part, std::span(all), lengths);
  });
  EXPECT_ERROR(too_few(), sr::ErrorKind::function, "lengths has one for each rank");
  if (world_size() == 1) return;
  const auto other_lengths = session().function([](sr::CpuWorker& worker, sr::Comm& comm) {
    std::vector<std::int64_t> lengths(static_cast<std::size_t>(comm.world_size()), 4);
    if (worker.rank() == 0) lengths[1] = 5;
    std::vector<float> part(4);
    std::vector<float> all(static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})));
    comm.all_gather(part, std::span(all), lengths);
  });
  EXPECT_ERROR(other_lengths(), sr::ErrorKind::function, "ranks disagree in a collective");
  const auto other_root = session().function([](sr::CpuWorker& worker, sr::Comm& comm) {
    std::vector<float> part(2);
    comm.reduce(std::span(part), sr::Reduction::sum, worker.rank() == 0 ? 0 : 1);
  });
  EXPECT_ERROR(other_root(), sr::ErrorKind::function, "with root");
}

TEST_P(CommShares, RefuseWhatMakesNoSense) {
  const auto wrong_length = session().function([](sr::Comm& comm) {
    std::vector<float> values(10);
    std::vector<float> part(static_cast<std::size_t>(comm.share(10).count + 1));
    comm.reduce_scatter(std::span(values), std::span(part), sr::Reduction::sum);
  });
  EXPECT_ERROR(wrong_length(), sr::ErrorKind::function, "share of 10 elements is");
  const auto wrong_gather = session().function([](sr::Comm& comm) {
    std::vector<float> all(10);
    const std::vector<float> part(static_cast<std::size_t>(comm.share(10).count + 1));
    comm.all_gather(part, std::span(all));
  });
  EXPECT_ERROR(wrong_gather(), sr::ErrorKind::function, "all_gather: rank ");
  const auto no_operation = session().function([](sr::Comm& comm) {
    std::vector<int> values(10);
    std::vector<int> part(static_cast<std::size_t>(comm.share(10).count));
    comm.reduce_scatter(std::span(values), std::span(part), sr::Reduction::avg);
  });
  EXPECT_ERROR(no_operation(), sr::ErrorKind::function, "reduce_scatter: int32 has no avg");
  if (world_size() == 1) return;
  const auto overlap = session().function([](sr::Comm& comm) {
    std::vector<float> values(static_cast<std::size_t>(2 * comm.world_size()));
    comm.reduce_scatter(std::span(values), std::span(values).subspan(1, 2), sr::Reduction::sum);
  });
  EXPECT_ERROR(overlap(), sr::ErrorKind::function, "overlaps the whole array");
  const auto disagree = session().function([](sr::CpuWorker& worker, sr::Comm& comm) {
    std::vector<float> values(static_cast<std::size_t>(5000 * (worker.rank() + 1)));
    std::vector<float> part(static_cast<std::size_t>(comm.share(static_cast<std::int64_t>(values.size())).count));
    comm.reduce_scatter(std::span(values), std::span(part), sr::Reduction::sum);
  });
  EXPECT_ERROR(disagree(), sr::ErrorKind::function, "ranks disagree in a collective: rank 0 calls reduce_scatter of");
  const auto still =
      session().function([](sr::Comm& comm) -> sr::Max<int> { return comm.all_reduce(1, sr::Reduction::sum); });
  EXPECT_EQ(still(), world_size());
}

TEST_P(CommShares, ARankThatLeavesWithoutOneIsAnErrorAndNotPairedWithALaterCall) {
  if (world_size() == 1) GTEST_SKIP() << "one rank has no other to disagree with";
  const auto f = session().function([](sr::CpuWorker& worker, sr::Comm& comm, bool all) -> sr::Max<int> {
    if (!all && worker.rank() != 0) return 0;
    return comm.all_reduce(all ? 100 : 1, sr::Reduction::sum);
  });
  EXPECT_ERROR(f(false), sr::ErrorKind::function, "has left the call");
  auto first = f.async(false);
  auto second = f.async(true);
  EXPECT_ERROR(first.get(), sr::ErrorKind::function, "has left the call");
  EXPECT_EQ(second.get(), 100 * world_size());
  EXPECT_EQ(f(true), 100 * world_size());
}

}  // namespace

#include "master/api/verified_values.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

namespace syncrun {

std::string_view to_string(VerifyReason reason) noexcept {
  switch (reason) {
    case VerifyReason::none: return "none";
    case VerifyReason::random_numbers: return "random_numbers";
    case VerifyReason::kept_state: return "kept_state";
    case VerifyReason::not_finite: return "not_finite";
    case VerifyReason::failed: return "failed";
    case VerifyReason::is_sum: return "is_sum";
    case VerifyReason::is_counted_often: return "is_counted_often";
    case VerifyReason::which_rank: return "which_rank";
    case VerifyReason::number_of_ranks: return "number_of_ranks";
    case VerifyReason::number_of_slices: return "number_of_slices";
    case VerifyReason::rows_together: return "rows_together";
  }
  return "?";
}

namespace detail {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
// If all values on rank 0 are zero, there is nothing to divide by. A difference below this is a rounding error of float32.
constexpr double kNothing = 1e-7;

template <class T>
void append_numbers(std::vector<double>& numbers, const void* elements, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, static_cast<const std::byte*>(elements) + i * sizeof(T), sizeof(T));
    if constexpr (std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>)
      numbers.push_back(static_cast<double>(static_cast<float>(value)));
    else numbers.push_back(static_cast<double>(value));
  }
}

/// The number with six digits.
std::string short_text(double number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.begin(), text.end(), number, std::chars_format::general, 6).ptr};
}

bool is_finite(std::span<const double> numbers) {
  return std::ranges::all_of(numbers, [](double number) { return std::isfinite(number); });
}

/// The factor k that makes `found` = k `expected` within the tolerance, if there is one.
std::optional<double> factor_of(std::span<const double> expected, std::span<const double> found, double tolerance) {
  double product = 0;
  double square = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    product += expected[i] * found[i];
    square += expected[i] * expected[i];
  }
  if (square == 0 || !std::isfinite(product) || !std::isfinite(square)) return std::nullopt;
  const double factor = product / square;
  std::vector<double> scaled(expected.begin(), expected.end());
  for (double& each : scaled) each *= factor;
  if (factor == 0 || relative_difference(scaled, found) > tolerance) return std::nullopt;
  return factor;
}

/// Names the parameter of the gradient that differs most.
std::string worst_part(const VerifiedValues& expected, const VerifiedValues& found, std::span<const NamedPart> parts) {
  const NamedPart* worst = nullptr;
  double largest = 0;
  for (const NamedPart& part : parts) {
    const auto begin = static_cast<std::size_t>(part.begin);
    const auto count = static_cast<std::size_t>(part.end - part.begin);
    if (begin + count > expected.numbers.size()) return {};
    const double relative = relative_difference(std::span(expected.numbers).subspan(begin, count),
                                                std::span(found.numbers).subspan(begin, count));
    if (worst != nullptr && !(relative > largest)) continue;
    worst = &part;
    largest = relative;
  }
  return worst == nullptr ? "" : "most in '" + worst->name + "' (" + short_text(largest) + ")";
}

std::string detail_of(const VerifiedValues& expected, const VerifiedValues& found, std::span<const NamedPart> parts) {
  if (expected.is_gradient) {
    if (std::string worst = worst_part(expected, found, parts); !worst.empty()) return worst;
  }
  std::size_t at = 0;
  double largest = -1;
  for (std::size_t i = 0; i < expected.numbers.size(); ++i) {
    const double difference = std::abs(expected.numbers[i] - found.numbers[i]);
    if (std::isnan(difference) && std::isnan(largest)) continue;
    if (!std::isnan(difference) && !(difference > largest)) continue;
    at = i;
    largest = difference;
    if (std::isnan(difference)) break;
  }
  if (expected.numbers.empty()) return {};
  const std::string values = short_text(found.numbers[at]) + " in place of " + short_text(expected.numbers[at]);
  return expected.numbers.size() == 1 ? values : values + " at element " + std::to_string(at);
}

/// Which of the runs differ, by their kinds.
class Findings {
 public:
  Findings(std::span<const VerifiedRun> runs, const VerifyOptions& options) : runs_(runs), options_(options) {}

  bool has(VerifiedRun::Kind kind) const {
    return std::ranges::any_of(runs_, [&](const VerifiedRun& run) { return run.kind == kind; });
  }
  /// Whether the run differs from the first one in something that is compared.
  bool differs(const VerifiedRun& run) const {
    if (!run.failure.empty()) return true;
    const VerifiedRun& first = runs_.front();
    for (std::size_t i = 0; i < first.values.size(); ++i) {
      if (is_compared(first.values[i], run.values[i]) && distance(first.values[i], run.values[i]) > options_.tolerance)
        return true;
    }
    return false;
  }
  bool differs(VerifiedRun::Kind kind) const {
    return std::ranges::any_of(runs_, [&](const VerifiedRun& run) { return run.kind == kind && differs(run); });
  }
  /// The factor of all that differs in a run, if it is the same everywhere within the tolerance.
  std::optional<double> common_factor(const VerifiedRun& run, double tolerance) const {
    std::optional<double> common;
    const VerifiedRun& first = runs_.front();
    if (!run.failure.empty()) return std::nullopt;
    for (std::size_t i = 0; i < first.values.size(); ++i) {
      const VerifiedValues& expected = first.values[i];
      if (!is_compared(expected, run.values[i]) || distance(expected, run.values[i]) <= options_.tolerance) continue;
      const auto factor = factor_of(expected.numbers, run.values[i].numbers, tolerance);
      if (!factor || (common && std::abs(*factor - *common) > tolerance * std::abs(*common))) return std::nullopt;
      common = factor;
    }
    return common;
  }

  static bool is_compared(const VerifiedValues& expected, const VerifiedValues& found) {
    return !expected.is_gathered || expected.extents == found.extents;
  }
  static double distance(const VerifiedValues& expected, const VerifiedValues& found) {
    if (found.is_same) return 0;
    if (expected.extents != found.extents || expected.numbers.size() != found.numbers.size()) return kInfinite;
    return relative_difference(expected.numbers, found.numbers);
  }

 private:
  std::span<const VerifiedRun> runs_;
  const VerifyOptions& options_;
};

bool has_failed(std::span<const VerifiedRun> runs) {
  return std::ranges::any_of(runs, [](const VerifiedRun& run) { return !run.failure.empty(); });
}

bool turns_infinite(std::span<const VerifiedRun> runs) {
  const VerifiedRun& first = runs.front();
  for (const VerifiedRun& run : runs) {
    if (run.failure.find("not finite") != std::string::npos) return true;
    for (std::size_t i = 0; run.failure.empty() && i < first.values.size(); ++i) {
      if (!run.values[i].is_same && Findings::is_compared(first.values[i], run.values[i]) &&
          is_finite(first.values[i].numbers) != is_finite(run.values[i].numbers))
        return true;
    }
  }
  return false;
}

/// How the results of a run with several parts relate to those of the first one.
enum class Scale : std::uint8_t { of_one_part, of_each_part };

/// Whether all that differs in these runs is that of one part, or is that many times as large as there are parts. The parts
/// of a run differ by a row, and a mean of their sums, weighted by rows, is then not exactly the sum divided by the parts.
bool is_scaled(const Findings& findings, std::span<const VerifiedRun> runs, Scale scale, const VerifyOptions& options) {
  bool is_there = false;
  for (const VerifiedRun& run : runs) {
    if (run.parts < 2) continue;
    const double allowed = scale == Scale::of_one_part ? 0.05 : 10 * options.tolerance;
    const auto factor = findings.common_factor(run, allowed);
    if (!factor) return false;
    const double expected = scale == Scale::of_one_part ? 1.0 / run.parts : run.parts;
    if (std::abs(*factor / expected - 1) > allowed) return false;
    is_there = true;
  }
  return is_there;
}

VerifyReason reason_of(std::span<const VerifiedRun> runs, const VerifyOptions& options) {
  using Kind = VerifiedRun::Kind;
  const Findings findings(runs, options);
  const bool with_slices = findings.differs(Kind::slices);
  const bool with_ranks = findings.differs(Kind::all) || findings.differs(Kind::other_shares);
  if (findings.differs(Kind::one_again)) return VerifyReason::kept_state;
  if (turns_infinite(runs)) return VerifyReason::not_finite;
  if (findings.differs(Kind::other_random_numbers)) return VerifyReason::random_numbers;
  if (has_failed(runs)) return VerifyReason::failed;
  if (findings.differs(Kind::another_rank)) return VerifyReason::which_rank;
  if (is_scaled(findings, runs, Scale::of_one_part, options)) return VerifyReason::is_sum;
  if (is_scaled(findings, runs, Scale::of_each_part, options)) return VerifyReason::is_counted_often;
  if (with_ranks && !with_slices && findings.has(Kind::slices)) return VerifyReason::number_of_ranks;
  if (with_slices && !with_ranks && findings.has(Kind::all)) return VerifyReason::number_of_slices;
  return with_ranks || with_slices ? VerifyReason::rows_together : VerifyReason::none;
}

std::string list_of(std::span<const std::string> names) {
  constexpr std::size_t kMost = 3;
  std::string text;
  for (const std::string& name : names.first(std::min(names.size(), kMost))) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  if (names.size() > kMost) text.append(" and ").append(std::to_string(names.size() - kMost)).append(" more");
  return text;
}

std::string advice_of(VerifyReason reason, const ModuleFacts& facts, bool reads_whole_arrays) {
  switch (reason) {
    case VerifyReason::none: return {};
    case VerifyReason::random_numbers:
      return "random numbers: each rank draws others" +
             (facts.dropouts.empty() ? std::string() : " (" + list_of(facts.dropouts) + ")") +
             ". That is right for dropout. To check the rest, turn it off and verify again";
    case VerifyReason::kept_state:
      return "two equal calls on one rank differ: the body keeps something between calls (a static variable, or a "
             "member "
             "of its object), or draws random numbers that Syncrun does not know";
    case VerifyReason::not_finite:
      return "a NaN or an infinite number in some divisions of the rows: look for a division by the number of rows, or "
             "of "
             "targets, that can be 0 on a rank or in a slice";
    case VerifyReason::failed:
      return "the body fails in some divisions of the rows. The message of the failure says why";
    case VerifyReason::is_sum:
      return "the result is a sum over rows where a mean is expected, so it is smaller with more ranks or slices. "
             "Divide by "
             "the number of rows, or return a Sum (of LibTorch: lt::SummedLoss)";
    case VerifyReason::is_counted_often:
      return "the result has a term once for each rank and slice: look for a Sum, or an Update with sum, of something "
             "that "
             "each of them has whole, such as the original of the Update";
    case VerifyReason::which_rank:
      return "another rank computes other values from the same rows: its copy of a variable differs, or the body uses "
             "the "
             "number of its rank or something of its machine";
    case VerifyReason::number_of_ranks:
      return "the result depends on the number of ranks, and not on how rows are divided into slices: look for "
             "world_size(), "
             "for rank(), and for an all_reduce of something that all ranks have";
    case VerifyReason::number_of_slices:
      return "the result depends on the number of slices, and not on the number of ranks: look for slice(), and for a "
             "sum of something that all slices have, such as the original of an Update";
    case VerifyReason::rows_together: {
      std::string text = "the result depends on which rows are computed together";
      if (!facts.normalisations.empty())
        text += ": each rank normalises over its own rows (" + list_of(facts.normalisations) +
                "; lt::SyncBatchNorm normalises over all)";
      else if (reads_whole_arrays)
        text +=
            ": a Broadcast or a Local has the rows of the whole call, and row 0 of this rank is row first_row() there; "
            "or it is normalised over the rows";
      else text += ": it is normalised over the rows, or reads other rows than its own";
      return text +
             "; or it is a mean over something else than rows, such as targets that are not padding (of LibTorch: "
             "return lt::WeightedLoss, or use lt::cross_entropy)";
    }
  }
  return {};
}

/// Takes the first word of a line off.
std::string_view next_word(std::string_view& line) {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(line.size(), word.size() + 1));
  return word;
}
std::int64_t number_in(std::string_view word) {
  std::int64_t number = 0;
  std::from_chars(word.data(), word.data() + word.size(), number);
  return number;
}

}  // namespace

ModuleFacts module_facts_from(std::string_view text) {
  ModuleFacts facts;
  int modules = 0;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const std::string_view word = next_word(line);
    if (word == "module") ++modules;
    if (word == "normalisation") facts.normalisations.emplace_back(line);
    if (word == "random") facts.dropouts.emplace_back(line);
    if (word != "part") continue;
    const std::int64_t begin = number_in(next_word(line));
    const std::int64_t end = number_in(next_word(line));
    facts.parts.push_back({std::string(line), begin, end});
  }
  if (modules != 1) facts.parts.clear();
  return facts;
}

std::vector<double> numbers_of(DType dtype, const void* elements, std::size_t count) {
  std::vector<double> numbers;
  numbers.reserve(count);
  const auto append = [&]<class T>(T) { append_numbers<T>(numbers, elements, count); };
  switch (dtype) {
    case DType::float16: append(float16()); break;
    case DType::bfloat16: append(bfloat16()); break;
    case DType::float32: append(float()); break;
    case DType::float64: append(double()); break;
    case DType::int8: append(std::int8_t()); break;
    case DType::int16: append(std::int16_t()); break;
    case DType::int32: append(std::int32_t()); break;
    case DType::int64: append(std::int64_t()); break;
    case DType::uint8: append(std::uint8_t()); break;
    case DType::uint16: append(std::uint16_t()); break;
    case DType::uint32: append(std::uint32_t()); break;
    case DType::uint64: append(std::uint64_t()); break;
    case DType::boolean: append(std::uint8_t()); break;
  }
  return numbers;
}

double relative_difference(std::span<const double> expected, std::span<const double> found) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const bool is_same = expected[i] == found[i] || (std::isnan(expected[i]) && std::isnan(found[i]));
    if (!is_same) difference += (expected[i] - found[i]) * (expected[i] - found[i]);
    if (std::isfinite(expected[i])) norm += expected[i] * expected[i];
  }
  if (std::isnan(difference)) return kInfinite;
  if (difference == 0) return 0;
  if (norm == 0) return std::sqrt(difference) < kNothing ? 0 : kInfinite;
  return std::sqrt(difference / norm);
}

void drop_same(const VerifiedRun& first, VerifiedRun& run, const VerifyOptions& options) {
  if (!run.failure.empty()) return;
  for (std::size_t i = 0; i < first.values.size(); ++i) {
    VerifiedValues& values = run.values[i];
    values.is_same = Findings::is_compared(first.values[i], values) &&
                     Findings::distance(first.values[i], values) <= options.tolerance;
    if (values.is_same) values.numbers = {};
  }
}

Verification compare_runs(std::span<const VerifiedRun> runs, const ModuleFacts& facts, bool reads_whole_arrays,
                          const VerifyOptions& options) {
  Verification found;
  const VerifiedRun& first = runs.front();
  for (const VerifiedRun& run : runs.subspan(1)) {
    if (!run.failure.empty()) {
      found.differences.push_back({run.text, "the call", kInfinite, run.failure});
      continue;
    }
    for (std::size_t i = 0; i < first.values.size(); ++i) {
      const VerifiedValues& expected = first.values[i];
      const VerifiedValues& here = run.values[i];
      if (!Findings::is_compared(expected, here)) {
        const std::string note =
            expected.what + " was not compared " + run.text + ": it has another number of rows there";
        found.notes.push_back(note);
        continue;
      }
      const double relative = Findings::distance(expected, here);
      if (!(relative > options.tolerance)) continue;
      const bool is_alike = expected.numbers.size() == here.numbers.size();
      found.differences.push_back({run.text, expected.what, relative,
                                   is_alike ? detail_of(expected, here, facts.parts) : "it has another shape"});
    }
  }
  if (found.is_same()) return found;
  found.reason = reason_of(runs, options);
  found.advice = advice_of(found.reason, facts, reads_whole_arrays);
  return found;
}

}  // namespace detail

std::string Verification::to_string() const {
  std::string text = "verify: NOT the same as on rank 0\n";
  if (is_same())
    text = has_several_ranks ? "verify: the same on one rank and on many\n" : "verify: the same in slices\n";
  for (const VerifyDifference& each : differences) {
    text += "  " + each.what + " " + each.run + ": ";
    if (std::isfinite(each.relative)) text += "relative difference " + detail::short_text(each.relative) + ", ";
    text += each.detail + "\n";
  }
  if (!advice.empty()) text += "  likely reason: " + advice + "\n";
  for (const std::string& note : notes) text += "  note: " + note + "\n";
  return text;
}

}  // namespace syncrun

#include "demos/resnet/network/conv_plans.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace resnet {
namespace {

constexpr std::string_view kFirstLine = "syncrun-resnet plans 1";
constexpr std::string_view kLastLine = "end";
constexpr std::size_t kLongestName = 500;
constexpr std::size_t kLongestGpu = 200;
constexpr std::size_t kLongestVersion = 40;
constexpr std::size_t kMostInShape = std::size_t{1} << 40;  // of rows, channels or pixels
constexpr std::size_t kMostMultiprocessors = 1'000'000;

constexpr std::array<std::pair<std::string_view, ConvPass>, kConvPasses> kPasses{
    {{"forward", ConvPass::kForward},
     {"backward-input", ConvPass::kBackwardInput},
     {"backward-filter", ConvPass::kBackwardFilter}}};
constexpr std::array<std::pair<std::string_view, CudaMath>, 3> kTypes{
    {{"float32", CudaMath::kFloat32}, {"tf32", CudaMath::kTf32}, {"bfloat16", CudaMath::kBfloat16}}};

constexpr std::array<std::pair<std::string_view, std::size_t ConvShape::*>, 7> kExtents{
    {{"rows", &ConvShape::rows},
     {"in", &ConvShape::channels_in},
     {"out", &ConvShape::channels_out},
     {"size", &ConvShape::size_in},
     {"kernel", &ConvShape::kernel},
     {"stride", &ConvShape::stride},
     {"padding", &ConvShape::padding}}};

template <class Meaning, std::size_t N>
std::string_view word_of(const std::array<std::pair<std::string_view, Meaning>, N>& words, Meaning meaning) {
  const auto found = std::find_if(words.begin(), words.end(), [&](const auto& word) { return word.second == meaning; });
  return found->first;
}

bool is_alphanumeric(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

bool is_version(std::string_view text) {
  return !text.empty() && text.size() <= kLongestVersion &&
         std::all_of(text.begin(), text.end(), [](char c) { return is_alphanumeric(c) || c == '.' || c == '-'; });
}

bool is_gpu(std::string_view text) {
  return !text.empty() && text.size() <= kLongestGpu &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

/// Reads the lines of a text one after the other, and the words of each line.
class PlansText {
 public:
  explicit PlansText(std::string_view text) : text_(text) {}

  ConvPlans read() {
    if (next_line() != kFirstLine) fail(std::string("'").append(kFirstLine).append("'"));
    ConvPlans plans(read_place());
    while (next_line() != kLastLine) {
      if (next_word() != "convolution") fail("a line that begins with 'convolution', or 'end'");
      const PlanKey key = read_key();
      if (plans.find(key) != nullptr) fail("each convolution once");
      plans.set(key, read_choice());
      if (!is_line_done_) fail("nothing after 'workspace='");
    }
    if (!text_.empty()) fail("nothing after 'end'");
    return plans;
  }

 private:
  std::string_view next_line() {
    ++number_;
    const std::size_t end = text_.find('\n');
    if (end == std::string_view::npos) {
      line_ = text_;
      fail("a whole line, since the last one is 'end'");
    }
    line_ = rest_ = text_.substr(0, end);
    is_line_done_ = false;
    text_.remove_prefix(end + 1);
    return line_;
  }

  /// The text up to the next space, or to the end of the line.
  std::string_view next_word() {
    const std::size_t end = rest_.find(' ');
    const std::string_view word = rest_.substr(0, end);
    is_line_done_ = end == std::string_view::npos;
    rest_.remove_prefix(is_line_done_ ? rest_.size() : end + 1);
    return word;
  }

  /// The text after "NAME=" in the next word.
  std::string_view value_of(std::string_view name) {
    const std::string_view word = next_word();
    if (!word.starts_with(name) || word.substr(name.size(), 1) != "=") fail(std::string("'").append(name).append("='"));
    return word.substr(name.size() + 1);
  }

  /// The text after "NAME " in the next line.
  std::string_view line_of(std::string_view name) {
    next_line();
    if (next_word() != name || is_line_done_) fail(std::string("'").append(name).append(" ...'"));
    return rest_;
  }

  std::size_t number(std::string_view name, std::string_view text, std::size_t most) {
    std::size_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    const bool is_plain = text.size() == 1 || !text.starts_with('0');  // text() writes no leading zeros
    if (error != std::errc{} || stop != end || value > most || !is_plain)
      fail("a whole number up to " + std::to_string(most) + " as '" + std::string(name) + "'");
    return value;
  }

  template <class Meaning, std::size_t N>
  Meaning word(std::string_view name, const std::array<std::pair<std::string_view, Meaning>, N>& words) {
    const std::string_view text = value_of(name);
    std::string expected;
    for (const auto& [known, meaning] : words) {
      if (known == text) return meaning;
      expected.append(expected.empty() ? "'" : ", '").append(known).append("'");
    }
    fail("one of " + expected + " as '" + std::string(name) + "'");
  }

  PlanPlace read_place() {
    PlanPlace place;
    place.gpu = line_of("gpu");
    if (!is_gpu(place.gpu)) fail("the name of a GPU");
    place.multiprocessors = number("multiprocessors", line_of("multiprocessors"), kMostMultiprocessors);
    place.cudnn = line_of("cudnn");
    if (!is_version(place.cudnn)) fail("a version of cuDNN");
    place.frontend = line_of("cudnn-frontend");
    if (!is_version(place.frontend)) fail("a version of cudnn-frontend");
    return place;
  }

  PlanKey read_key() {
    PlanKey key{};
    key.pass = word("pass", kPasses);
    key.math = word("type", kTypes);
    if (value_of("layout") != "nhwc") fail("'layout=nhwc'");
    if (value_of("epilogue") != "none") fail("'epilogue=none'");
    for (const auto& [name, extent] : kExtents) key.shape.*extent = number(name, value_of(name), kMostInShape);
    return key;
  }

  PlanChoice read_choice() {
    const std::string_view name = value_of("plan");
    if (!is_plan_name(name)) fail("the name of a plan");
    return {std::string(name), number("workspace", value_of("workspace"), kMostWorkspaceBytes)};
  }

  [[noreturn]] void fail(const std::string& expected) const {
    constexpr std::size_t kShown = 200;
    std::string found(line_.substr(0, kShown));
    std::replace_if(
        found.begin(), found.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    throw PlansError("line " + std::to_string(number_) + ": expected " + expected + ", found '" + found + "'");
  }

  std::string_view text_;
  std::string_view line_;
  std::string_view rest_;
  bool is_line_done_ = false;
  std::size_t number_ = 0;
};

}  // namespace

bool is_plan_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName && std::all_of(name.begin(), name.end(), [](char c) {
    return is_alphanumeric(c) || std::string_view("_=-.:").find(c) != std::string_view::npos;
  });
}

std::string describe(const PlanPlace& place) {
  return place.gpu + " (" + std::to_string(place.multiprocessors) + " multiprocessors), cuDNN " + place.cudnn +
         ", cudnn-frontend " + place.frontend;
}

ConvPlans ConvPlans::parse(std::string_view text) { return PlansText(text).read(); }

std::string ConvPlans::text() const {
  std::string text(kFirstLine);
  text += "\ngpu " + place_.gpu + "\nmultiprocessors " + std::to_string(place_.multiprocessors) + "\ncudnn " +
          place_.cudnn + "\ncudnn-frontend " + place_.frontend + "\n";
  for (const auto& [key, choice] : choices_) {
    text.append("convolution pass=").append(word_of(kPasses, key.pass));
    text.append(" type=").append(word_of(kTypes, key.math)).append(" layout=nhwc epilogue=none");
    for (const auto& [name, extent] : kExtents)
      text.append(" ").append(name).append("=").append(std::to_string(key.shape.*extent));
    text += " plan=" + choice.name + " workspace=" + std::to_string(choice.workspace_bytes) + "\n";
  }
  return text.append(kLastLine).append("\n");
}

const PlanChoice* ConvPlans::find(const PlanKey& key) const {
  const auto found = choices_.find(key);
  return found == choices_.end() ? nullptr : &found->second;
}

void ConvPlans::set(const PlanKey& key, const PlanChoice& choice) {
  if (!is_plan_name(choice.name)) throw PlansError("expected the name of a plan, got '" + choice.name + "'");
  choices_.insert_or_assign(key, choice);
}

void ConvPlans::fill_from(const ConvPlans& other) { choices_.insert(other.choices_.begin(), other.choices_.end()); }

std::size_t count_differences(const ConvPlans& one, const ConvPlans& other) {
  return static_cast<std::size_t>(std::count_if(one.choices().begin(), one.choices().end(), [&](const auto& entry) {
    const PlanChoice* const found = other.find(entry.first);
    return found != nullptr && found->name != entry.second.name;
  }));
}

}  // namespace resnet

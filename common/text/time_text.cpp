#include "common/text/time_text.hpp"

namespace syncrun::detail::text {

namespace {

/// Appends the number with at least this many digits.
void append_number(std::string& to, long long number, int digits) {
  const std::string text = std::to_string(number);
  const auto missing = static_cast<std::ptrdiff_t>(digits) - static_cast<std::ptrdiff_t>(text.size());
  if (missing > 0) to.append(static_cast<std::size_t>(missing), '0');
  to += text;
}

}  // namespace

std::string utc_text(std::chrono::system_clock::time_point time) {
  const auto whole = std::chrono::floor<std::chrono::milliseconds>(time);
  const auto day = std::chrono::floor<std::chrono::days>(whole);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(whole - day);
  std::string text;
  append_number(text, static_cast<int>(date.year()), 4);
  append_number(text += '-', static_cast<unsigned>(date.month()), 2);
  append_number(text += '-', static_cast<unsigned>(date.day()), 2);
  append_number(text += 'T', clock.hours().count(), 2);
  append_number(text += ':', clock.minutes().count(), 2);
  append_number(text += ':', clock.seconds().count(), 2);
  append_number(text += '.', clock.subseconds().count(), 3);
  return text += 'Z';
}

}  // namespace syncrun::detail::text

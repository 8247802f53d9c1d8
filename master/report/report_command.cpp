#include "master/report/report_command.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include "common/os/file_descriptor.hpp"
#include "common/text/errors.hpp"
#include "master/process/output_file.hpp"
#include "master/report/draw_profile.hpp"

namespace syncrun::detail::master::report {

namespace {

constexpr const char* kReportUsage = "expected syncrun report FILE.json [-o PAGE.html]";
/// A profile of 1,000 functions on 1,000 ranks has about 500 MB, so this is no profile that anyone reads.
constexpr std::size_t kMostBytes = std::size_t{256} << 20U;

struct ReportWords {
  std::string profile;
  std::string page;
};

ReportWords parse_words(std::span<char* const> words) {
  ReportWords parsed;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "-o") {
      if (i + 1 == words.size() || *words[i + 1] == '\0')
        text::throw_usage(std::string("syncrun report -o: expected a file; ") + kReportUsage);
      parsed.page = words[++i];
    } else if (!parsed.profile.empty() || word.empty() || word.front() == '-') {
      text::throw_usage("syncrun report: " + std::string(kReportUsage) + ", got '" + std::string(word) + "'");
    } else {
      parsed.profile = word;
    }
  }
  if (parsed.profile.empty()) text::throw_usage(std::string("syncrun report: ") + kReportUsage);
  if (parsed.page.empty()) parsed.page = std::filesystem::path(parsed.profile).replace_extension(".html").string();
  std::error_code error;  // one of them does not exist
  if (parsed.page == parsed.profile || std::filesystem::equivalent(parsed.page, parsed.profile, error))
    text::throw_usage("syncrun report: the page would replace the profile " + parsed.profile +
                      "; name another with -o");
  return parsed;
}

std::string read_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    text::throw_usage("syncrun report: cannot read " + path + ": " + why);
  };
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) refuse("it is a folder");
  const os::FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_open()) refuse(std::strerror(errno));
  std::string text;
  constexpr std::size_t kPart = std::size_t{1} << 16U;
  for (;;) {
    const std::size_t before = text.size();
    text.resize(before + kPart);
    const auto count = ::read(fd.get(), text.data() + before, kPart);
    if (count < 0 && errno != EINTR) refuse(std::strerror(errno));
    text.resize(before + static_cast<std::size_t>(count < 0 ? 0 : count));
    if (count == 0) return text;
    if (text.size() > kMostBytes) refuse("it has more than " + std::to_string(kMostBytes >> 20U) + " MiB");
  }
}

}  // namespace

int run_report(std::span<char* const> words) {
  const ReportWords files = parse_words(words);
  const ReportedProfile profile = parse_profile(read_file(files.profile), files.profile);
  const std::string title = std::filesystem::path(files.profile).filename().string();
  const std::string text = draw_profile(profile, title);
  if (files.page == "-") {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) return 1;
  } else {
    process::OutputFile page(files.page, "the report");
    page.write(text);
    page.close();
    std::printf("%s\n", files.page.c_str());
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace syncrun::detail::master::report

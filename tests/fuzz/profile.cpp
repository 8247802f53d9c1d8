// Profiles that `syncrun report` reads.

#include "master/report/draw_profile.hpp"
#include "tests/fuzz/fuzzing.hpp"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace syncrun::detail::master::report;
  fuzzing::accepts(syncrun::ErrorKind::usage, [&] {
    const std::string page = draw_profile(parse_profile(fuzzing::text_of(data, size), "a profile"), "a profile");
    fuzzing::expect(page.ends_with("</html>\n"), "a page has an end");
  });
  return 0;
}

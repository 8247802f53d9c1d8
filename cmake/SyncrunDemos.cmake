# CLI11, which the demos require for their command lines. Without it, the demos, their tests and their benchmarks are
# not built. The library does not require it.

find_package(CLI11 QUIET)
# CLI11 may be a package or only headers. The headers are in CLI11_ROOT, or in the folder where scripts/lib/setup.sh
# puts them if CLI11 cannot be installed.
if(NOT TARGET CLI11::CLI11)
  find_path(CLI11_INCLUDE_DIR CLI/CLI.hpp HINTS ${CLI11_ROOT} $ENV{CLI11_ROOT} ${PROJECT_SOURCE_DIR}/.cache/cli11
    PATH_SUFFIXES include DOC "Where CLI/CLI.hpp of CLI11 is")
  mark_as_advanced(CLI11_INCLUDE_DIR)
  if(CLI11_INCLUDE_DIR)
    add_library(CLI11::CLI11 INTERFACE IMPORTED)
    target_include_directories(CLI11::CLI11 INTERFACE ${CLI11_INCLUDE_DIR})
  endif()
endif()
if(NOT TARGET CLI11::CLI11)
  message(WARNING "The demos are not built: they require CLI11, which was not found. Install libcli11-dev (Debian, Ubuntu), "
    "set CLI11_ROOT to a folder that has include/CLI/CLI.hpp, or set SYNCRUN_DEMOS=OFF")
  set(SYNCRUN_DEMOS OFF)
endif()

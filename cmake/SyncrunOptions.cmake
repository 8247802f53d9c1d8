# Settings of every target of the project: the language, the warnings, the sanitizers.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# By default, ccache does not keep objects that were compiled with a precompiled header. ccache saves more time than the
# precompiled headers do, so they are off with ccache.
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache" AND NOT DEFINED CMAKE_DISABLE_PRECOMPILE_HEADERS)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()

# Hides the symbols of a target whose objects become a part of the libraries. Only declarations with SYNCRUN_EXPORT
# (detail/export.hpp) are visible to programs.
function(syncrun_hide_symbols target)
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()
# Limits the symbols that a library exports to those in exported.map.
set(SYNCRUN_EXPORTED_MAP ${CMAKE_CURRENT_LIST_DIR}/exported.map)
function(syncrun_limit_exports library)
  target_link_options(${library} PRIVATE LINKER:--version-script=${SYNCRUN_EXPORTED_MAP})
  set_property(TARGET ${library} APPEND PROPERTY LINK_DEPENDS ${SYNCRUN_EXPORTED_MAP})
endfunction()

# Most of the compile time of a source is for the headers that it includes. Sources of one target that are compiled
# together take a third to a half of the time. This is off with ccache, which helps when one changed source is compiled
# again and again.
set(unity_by_default ON)
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
  set(unity_by_default OFF)
endif()
option(SYNCRUN_UNITY "Compile sources of a target together" ${unity_by_default})

# Compiles the sources of a target together if SYNCRUN_UNITY is on. The names in their anonymous namespaces must differ.
# Each source must still include what it uses: scripts/lint.sh checks every source of the library separately.
# All sources of a target are one unit. In smaller units, the options and the order of the sources would decide which
# names meet. So some configurations would not compile.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 0)
function(syncrun_compile_together target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SYNCRUN_UNITY})
  # From CMake 3.31 on, unity builds also combine kernels. But the same names occur in several files of kernels, and
  # nvcc takes long for each of them alone. So they are compiled separately.
  get_target_property(kernels ${target} SOURCES)
  list(FILTER kernels INCLUDE REGEX "[.]cu$")
  set_source_files_properties(${kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(SYNCRUN_UNITY)
    # g++ treats a source that another source includes as a header. It then warns about types whose members have a type
    # from an anonymous namespace. In a header, these would be a mistake.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# Makes a target whose precompiled header is <syncrun/syncrun.hpp>, with these compile options. A program that includes this
# header compiles twice as fast if it shares it:
#   target_precompile_headers(program REUSE_FROM syncrun_public_headers)
# The program must include <syncrun/syncrun.hpp> itself, and must be compiled with the same options.
function(syncrun_add_public_headers target)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp CONTENT "int main() {}\n")
  add_executable(${target} EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_compile_options(${target} PRIVATE ${ARGN})
  target_precompile_headers(${target} PRIVATE <syncrun/syncrun.hpp>)
endfunction()

add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Wall> $<$<COMPILE_LANGUAGE:C,CXX>:-Wextra>)

# Users compile the public headers and the documented samples, so these cause no warnings even with more options. The
# optimizer is on, because some warnings depend on it. Warnings are errors with the compilers that were tested. Others
# may have further warnings.
set(strict_by_default OFF)
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^1[23][.]")
   OR (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^16[.]"))
  set(strict_by_default ON)
endif()
option(SYNCRUN_STRICT_WARNINGS "Warnings in public headers and samples are errors" ${strict_by_default})
set(SYNCRUN_STRICT_OPTIONS -Wall -Wextra -Wshadow -Wconversion)
if(SYNCRUN_STRICT_WARNINGS)
  list(APPEND SYNCRUN_STRICT_OPTIONS -Werror)
endif()
# The same options for the host compiler of nvcc.
list(JOIN SYNCRUN_STRICT_OPTIONS "," SYNCRUN_STRICT_HOST_OPTIONS)
set(SYNCRUN_STRICT_HOST_OPTIONS "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${SYNCRUN_STRICT_HOST_OPTIONS}>")
if(NOT SYNCRUN_SANITIZER AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  list(APPEND SYNCRUN_STRICT_OPTIONS -O2)
endif()
list(TRANSFORM SYNCRUN_STRICT_OPTIONS REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:\\1>")
# Clang checks that members are used only under their mutexes (common/os/mutex.hpp).
add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wthread-safety>")
if(SYNCRUN_STRICT_WARNINGS)
  add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Werror=thread-safety>")
endif()
if(SYNCRUN_PACKAGES)
  # Two builds of a commit give the same bytes, also in two folders. The loader finds the library without a run path.
  set(map -ffile-prefix-map=${PROJECT_BINARY_DIR}=/build -ffile-prefix-map=${PROJECT_SOURCE_DIR}=/source)
  list(JOIN map "," host_map)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${map}>" "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${host_map}>")
  set(CMAKE_SKIP_RPATH ON)
endif()
# Workers find functions by build id, so every image must have one.
add_link_options(-Wl,--build-id=sha1)

if(SYNCRUN_SANITIZER)
  # A report shows only lines and functions. More debug information, or more than -O1 (see the presets), would double
  # the time of these builds.
  add_compile_options(-fsanitize=${SYNCRUN_SANITIZER} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  if(SYNCRUN_SANITIZER MATCHES undefined)
    # The address sanitizer, which is on too, reports the use of a null pointer or of a dead object. To check for them at each
    # pointer takes an eighth of the compile time.
    add_compile_options(-fno-sanitize=null,vptr)
  endif()
  add_link_options(-fsanitize=${SYNCRUN_SANITIZER})
  # The code uses these definitions where something does not work under a sanitizer, or is invisible to it.
  if(SYNCRUN_SANITIZER MATCHES address)
    add_compile_definitions(SYNCRUN_ADDRESS_SANITIZER)
  elseif(SYNCRUN_SANITIZER MATCHES thread)
    add_compile_definitions(SYNCRUN_THREAD_SANITIZER)
  endif()
endif()
if(SYNCRUN_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "SYNCRUN_FUZZ needs clang, got ${CMAKE_CXX_COMPILER_ID}")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

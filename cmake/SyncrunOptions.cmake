# Settings of every target of the project: the language, the warnings, the sanitizers.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# ccache keeps nothing that was compiled with a precompiled header unless it is told to be sloppy, and is worth more.
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache" AND NOT DEFINED CMAKE_DISABLE_PRECOMPILE_HEADERS)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()

# For all that goes into the libraries: what a program is to find there says so (SYNCRUN_EXPORT, detail/export.hpp).
function(syncrun_hide_symbols target)
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()
# For the libraries themselves.
set(SYNCRUN_EXPORTED_MAP ${CMAKE_CURRENT_LIST_DIR}/exported.map)
function(syncrun_limit_exports library)
  target_link_options(${library} PRIVATE LINKER:--version-script=${SYNCRUN_EXPORTED_MAP})
  set_property(TARGET ${library} APPEND PROPERTY LINK_DEPENDS ${SYNCRUN_EXPORTED_MAP})
endfunction()

# Most of the time that a source takes is that of the headers it includes: sources of one target that are compiled together take
# a third to a half of it. Off with ccache, which is for those who compile one changed source again and again.
set(unity_by_default ON)
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
  set(unity_by_default OFF)
endif()
option(SYNCRUN_UNITY "Compile sources of a target together" ${unity_by_default})

# Compiles sources of a target together, where SYNCRUN_UNITY says so. Names in their anonymous namespaces have to differ, and
# each still includes what it uses: scripts/lint.sh looks at every source of the library by itself.
function(syncrun_compile_together target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SYNCRUN_UNITY} UNITY_BUILD_BATCH_SIZE 16)
  # From CMake 3.31 on that is so for kernels too, whose names repeat from file to file; they take nvcc long by themselves.
  get_target_property(kernels ${target} SOURCES)
  list(FILTER kernels INCLUDE REGEX "[.]cu$")
  set_source_files_properties(${kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(SYNCRUN_UNITY)
    # g++ takes a source that another one includes for a header, where a type with an anonymous member would be a mistake.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-Wall> $<$<COMPILE_LANGUAGE:C,CXX>:-Wextra>)

# What users compile, the public headers and the documented samples, is free of warnings also with more of them, and with the
# optimizer, of which some depend. Errors with the compilers that this was tried with; others may have warnings of their own.
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
# Of what nvcc gives its host compiler.
list(JOIN SYNCRUN_STRICT_OPTIONS "," SYNCRUN_STRICT_HOST_OPTIONS)
set(SYNCRUN_STRICT_HOST_OPTIONS "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${SYNCRUN_STRICT_HOST_OPTIONS}>")
if(NOT SYNCRUN_SANITIZER AND NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
  list(APPEND SYNCRUN_STRICT_OPTIONS -O2)
endif()
list(TRANSFORM SYNCRUN_STRICT_OPTIONS REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:\\1>")
# Functions are found again by build id: make sure that there is one, and that messages can name functions.
add_link_options(-Wl,--build-id=sha1)

if(SYNCRUN_SANITIZER)
  # Lines and functions are all that a report shows; more debug information, and more than -O1 (see the presets), would
  # double the time that these builds take.
  add_compile_options(-fsanitize=${SYNCRUN_SANITIZER} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${SYNCRUN_SANITIZER})
  # For what cannot be done, or seen, under one of them.
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

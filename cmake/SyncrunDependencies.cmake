# The dependencies of the library: Boost's headers (Process, Interprocess), spdlog and threads.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(spdlog REQUIRED)

# libdw is optional. It reads the native stacks of workers that hang. The build requires only its header: Syncrun loads
# libdw when a deadline passes or LibTorch reports an error. So programs do not link it, and it does not slow down their start.
find_path(SYNCRUN_LIBDW_INCLUDE_DIR elfutils/libdwfl.h DOC "Where elfutils/libdwfl.h of libdw is")
mark_as_advanced(SYNCRUN_LIBDW_INCLUDE_DIR)
set(SYNCRUN_HAVE_LIBDW OFF)
if(SYNCRUN_LIBDW_INCLUDE_DIR)
  set(SYNCRUN_HAVE_LIBDW ON)
endif()

# hwloc is optional too. It describes the cores for --bind-to. The build requires only its header, of version 2: Syncrun
# loads the library when it is needed.
find_path(SYNCRUN_HWLOC_INCLUDE_DIR hwloc/cpukinds.h DOC "Where hwloc.h of hwloc 2.4 or later is")
mark_as_advanced(SYNCRUN_HWLOC_INCLUDE_DIR)
set(SYNCRUN_HAVE_HWLOC OFF)
if(SYNCRUN_HWLOC_INCLUDE_DIR)
  set(SYNCRUN_HAVE_HWLOC ON)
endif()
# toml++ is optional. With it, `syncrun` reads configuration files. It is headers alone.
find_package(tomlplusplus QUIET)

# Include folders, definitions and libraries for every part of the library. Not installed: users see only include/.
add_library(syncrun_internal INTERFACE)
target_include_directories(syncrun_internal INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(syncrun_internal INTERFACE SYNCRUN_VERSION="${PROJECT_VERSION}"
  SYNCRUN_SOVERSION="${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}"
  SYNCRUN_LIBRARY_FOLDER="${CMAKE_INSTALL_LIBDIR}")
target_link_libraries(syncrun_internal INTERFACE Boost::boost Threads::Threads ${CMAKE_DL_LIBS})

# Settings for the targets whose objects become a part of the library.
function(syncrun_add_library_part target)
  syncrun_hide_symbols(${target})
  syncrun_compile_together(${target})
endfunction()

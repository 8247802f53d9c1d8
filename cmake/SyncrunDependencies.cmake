# What the library needs: Boost's headers (Process, Interprocess), spdlog, threads.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(spdlog REQUIRED)

# Optional: native stacks of workers that hang. Only its header is needed here: it is loaded when a deadline passes, so that
# no program links it or starts slower for it.
find_path(SYNCRUN_LIBDW_INCLUDE_DIR elfutils/libdwfl.h DOC "Where elfutils/libdwfl.h of libdw is")
mark_as_advanced(SYNCRUN_LIBDW_INCLUDE_DIR)
set(SYNCRUN_HAVE_LIBDW OFF)
if(SYNCRUN_LIBDW_INCLUDE_DIR)
  set(SYNCRUN_HAVE_LIBDW ON)
endif()

# What every part of the library compiles against. Not installed: users see include/ only.
add_library(syncrun_internal INTERFACE)
target_include_directories(syncrun_internal INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(syncrun_internal INTERFACE SYNCRUN_VERSION="${PROJECT_VERSION}"
  SYNCRUN_SOVERSION="${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}")
target_link_libraries(syncrun_internal INTERFACE Boost::boost Threads::Threads ${CMAKE_DL_LIBS})

# For targets whose objects the library is made of.
function(syncrun_add_library_part target)
  syncrun_hide_symbols(${target})
  syncrun_compile_together(${target})
endfunction()

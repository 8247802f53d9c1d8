# The MPIs that carry messages between nodes: Open MPI and MPICH. Each is found by its compiler wrapper, so both can be
# found. With SYNCRUN_MPI=AUTO, the transport is built for each one that is found. With ON, it is an error if neither is
# found. With OFF, this file does not look for them. Sets SYNCRUN_MPIS (of openmpi and mpich) and SYNCRUN_HAVE_MPI, and
# defines the targets syncrun_mpi_openmpi and syncrun_mpi_mpich.
#
# SYNCRUN_OPENMPI_WRAPPER and SYNCRUN_MPICH_WRAPPER choose a wrapper (mpicxx) that is not on PATH.

set(SYNCRUN_MPIS "")

# The wrapper of this name may belong to the other MPI. `marker` is a macro of the right one's mpi.h.
function(syncrun_find_mpi name marker)
  string(TOUPPER ${name} upper)
  set(wrapper_variable SYNCRUN_${upper}_WRAPPER)
  find_program(${wrapper_variable} NAMES mpicxx.${name} mpicxx DOC "The compiler wrapper of ${name}")
  mark_as_advanced(${wrapper_variable})
  if(NOT ${wrapper_variable})
    return()
  endif()
  execute_process(COMMAND ${${wrapper_variable}} -show OUTPUT_VARIABLE command RESULT_VARIABLE code ERROR_QUIET
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT code EQUAL 0)
    return()
  endif()
  separate_arguments(words UNIX_COMMAND "${command}")
  set(include_folders "")
  set(library_folders "")
  set(library_names "")
  foreach(word IN LISTS words)
    if(word MATCHES "^-I(.+)")
      list(APPEND include_folders ${CMAKE_MATCH_1})
    elseif(word MATCHES "^-L(.+)")
      list(APPEND library_folders ${CMAKE_MATCH_1})
    elseif(word MATCHES "^-l(mpi|mpich)$")
      list(APPEND library_names ${CMAKE_MATCH_1})
    endif()
  endforeach()

  find_path(SYNCRUN_${upper}_INCLUDE_DIR mpi.h PATHS ${include_folders} NO_DEFAULT_PATH)
  find_library(SYNCRUN_${upper}_LIBRARY NAMES ${library_names} PATHS ${library_folders} NO_DEFAULT_PATH)
  mark_as_advanced(SYNCRUN_${upper}_INCLUDE_DIR SYNCRUN_${upper}_LIBRARY)
  set(include_folder ${SYNCRUN_${upper}_INCLUDE_DIR})
  if(NOT include_folder OR NOT SYNCRUN_${upper}_LIBRARY)
    return()
  endif()
  file(STRINGS ${include_folder}/mpi.h found REGEX "^#[ \t]*define[ \t]+${marker}[ \t]" LIMIT_COUNT 1)
  if(NOT found)
    return()
  endif()
  add_library(syncrun_mpi_${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(syncrun_mpi_${name} INTERFACE ${include_folder})
  target_link_libraries(syncrun_mpi_${name} INTERFACE ${SYNCRUN_${upper}_LIBRARY})
  # The C++ bindings, which were removed from MPI, are not used.
  target_compile_definitions(syncrun_mpi_${name} INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  set(SYNCRUN_MPIS ${SYNCRUN_MPIS} ${name} PARENT_SCOPE)
endfunction()

if(SYNCRUN_MPI STREQUAL "AUTO" OR SYNCRUN_MPI)
  syncrun_find_mpi(openmpi OPEN_MPI)
  syncrun_find_mpi(mpich MPICH_VERSION)
  if(SYNCRUN_MPIS)
    message(STATUS "Transport between nodes over MPI: ${SYNCRUN_MPIS}")
  elseif(SYNCRUN_MPI STREQUAL "AUTO")
    message(STATUS "Without a transport between nodes: neither Open MPI nor MPICH was found")
  else()
    message(FATAL_ERROR "SYNCRUN_MPI=${SYNCRUN_MPI}, but neither Open MPI nor MPICH was found. Install libopenmpi-dev or "
      "libmpich-dev, put mpicxx on PATH, or choose SYNCRUN_MPI=OFF for sessions on one node only")
  endif()
endif()
set(SYNCRUN_HAVE_MPI OFF)
if(SYNCRUN_MPIS)
  set(SYNCRUN_HAVE_MPI ON)
endif()

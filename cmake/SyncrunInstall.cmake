# The installed package. It provides find_package(Syncrun) and Syncrun::syncrun, from a prefix that can be moved. This
# file is included before the demos, so that the library is installed first.
#
# `cmake --install` installs what was built. Only the library is required. For each other target that was not built, it
# prints a line and leaves the target out.

include(CMakePackageConfigHelpers)

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Syncrun)

function(syncrun_report_if_left_out target)
  install(CODE "
    if(NOT EXISTS \"$<TARGET_FILE:${target}>\")
      message(STATUS \"Left out, since it was not built: $<TARGET_FILE_NAME:${target}>\")
    endif()")
endfunction()

function(syncrun_install_if_built target)
  install(TARGETS ${target}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} OPTIONAL)
  syncrun_report_if_left_out(${target})
endfunction()

# Installs a program that links the library. The folders of the demos install the other files that their programs
# require (demos/mnist, demos/resnet).
function(syncrun_install_demo target)
  file(RELATIVE_PATH from_bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/${from_bin_to_lib}")
  syncrun_install_if_built(${target})
endfunction()

install(TARGETS syncrun EXPORT SyncrunTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set_target_properties(syncrun PROPERTIES INSTALL_RPATH "$ORIGIN")
syncrun_install_if_built(syncrun_command)
if(TARGET syncrun_cuda)
  syncrun_install_if_built(syncrun_cuda)
endif()
foreach(name IN LISTS SYNCRUN_MPIS)
  syncrun_install_if_built(syncrun_${name})
endforeach()

if(TARGET syncrun_torch)
  install(TARGETS syncrun_torch EXPORT SyncrunTorchTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  syncrun_report_if_left_out(syncrun_torch)
  if(TARGET syncrun_torch_cuda)
    syncrun_install_if_built(syncrun_torch_cuda)
  endif()
  install(EXPORT SyncrunTorchTargets NAMESPACE Syncrun:: DESTINATION ${config_folder})
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/SyncrunFindTorch.cmake DESTINATION ${config_folder})
endif()

install(EXPORT SyncrunTargets NAMESPACE Syncrun:: DESTINATION ${config_folder})
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/SyncrunConfig.cmake.in ${PROJECT_BINARY_DIR}/SyncrunConfig.cmake
  INSTALL_DESTINATION ${config_folder} NO_SET_AND_CHECK_MACRO)
# Before 1.0, a new minor version may be incompatible.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/SyncrunConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/SyncrunConfig.cmake ${PROJECT_BINARY_DIR}/SyncrunConfigVersion.cmake
  DESTINATION ${config_folder})

# The installed package: find_package(Syncrun) and Syncrun::syncrun from a prefix that can be moved. Included last, when
# all targets are there.

include(CMakePackageConfigHelpers)

set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Syncrun)
file(RELATIVE_PATH from_bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})

install(TARGETS syncrun EXPORT SyncrunTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET syncrun_cuda)
  install(TARGETS syncrun_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(TARGETS syncrun_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
set_target_properties(syncrun PROPERTIES INSTALL_RPATH "$ORIGIN")
# The demos install themselves, the digits (demos/mnist) and what packs images (demos/resnet).
foreach(demo syncrun_mnist syncrun_resnet)
  if(TARGET ${demo})
    set_target_properties(${demo} PROPERTIES INSTALL_RPATH "$ORIGIN/${from_bin_to_lib}")
  endif()
endforeach()

install(EXPORT SyncrunTargets NAMESPACE Syncrun:: DESTINATION ${config_folder})
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/SyncrunConfig.cmake.in ${PROJECT_BINARY_DIR}/SyncrunConfig.cmake
  INSTALL_DESTINATION ${config_folder} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may break its users.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/SyncrunConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/SyncrunConfig.cmake ${PROJECT_BINARY_DIR}/SyncrunConfigVersion.cmake
  DESTINATION ${config_folder})

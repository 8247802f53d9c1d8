# A port for the checkout in which it is: vcpkg install syncrun --overlay-ports=packaging/vcpkg/ports
vcpkg_check_linkage(ONLY_DYNAMIC_LIBRARY)
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../../.." ABSOLUTE)

# Without hwloc, `syncrun --bind-to core` and `--bind-to socket` are errors.
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DSYNCRUN_TESTS=OFF
    -DSYNCRUN_BENCH=OFF
    -DSYNCRUN_DEMOS=OFF
    -DSYNCRUN_CUDA=OFF
    -DSYNCRUN_MPI=OFF
    -DSYNCRUN_TORCH=OFF
    -DSYNCRUN_LIBDW_INCLUDE_DIR=OFF
    -DSYNCRUN_HWLOC_INCLUDE_DIR=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME Syncrun CONFIG_PATH lib/cmake/Syncrun)
vcpkg_fixup_pkgconfig()
vcpkg_copy_tools(TOOL_NAMES syncrun AUTO_CLEAN)
# `syncrun doctor` looks for its probe beside itself.
vcpkg_copy_tools(TOOL_NAMES syncrun-probe SEARCH_DIR "${CURRENT_PACKAGES_DIR}/libexec/syncrun")
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/libexec" "${CURRENT_PACKAGES_DIR}/debug/libexec"
  "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")

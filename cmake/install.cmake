# What `cmake --install` gives: header, library, tool, pkg-config file, CMake package.
include(CMakePackageConfigHelpers)

string(REPLACE ";" " " MLA_PC_OPENMP "${OpenMP_C_FLAGS}")
# What is installed finds itself wherever `cmake --install --prefix` or a package put it.
set(MLA_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  set(MLA_PC_PREFIX "\${pcfiledir}/${up}")
endif()
configure_file(cmake/libmla.pc.in libmla.pc @ONLY)
configure_package_config_file(cmake/mla-config.cmake.in mla-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/mla)
write_basic_package_version_file(mla-config-version.cmake COMPATIBILITY SameMinorVersion)

install(TARGETS mla EXPORT mla-targets)
install(FILES include/mla.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT mla-targets NAMESPACE mla:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/mla)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/mla-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/mla-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/mla)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/libmla.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(TARGET mla_tool)
  if(NOT IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
    file(RELATIVE_PATH up /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
    set_target_properties(mla_tool PROPERTIES INSTALL_RPATH "\$ORIGIN/${up}")
  endif()
  install(TARGETS mla_tool)
endif()

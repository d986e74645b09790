# libkeel for other training programs: all rooms but the trainer, and the assembly that wires them. No MPI in it. Nothing is exported but KEEL_API.
set(rooms probe configs collectors analyzers)
set(objects)
set(libraries)
foreach(room IN LISTS rooms)
  list(APPEND objects $<TARGET_OBJECTS:keel_${room}>)
  get_target_property(uses keel_${room} LINK_LIBRARIES)
  list(FILTER uses EXCLUDE REGEX "^keel_")
  list(APPEND libraries ${uses})
endforeach()
list(REMOVE_DUPLICATES libraries)

add_library(keel_shared SHARED tools/assemble.c ${objects})
target_link_libraries(keel_shared PRIVATE keel_flags ${libraries})
target_include_directories(keel_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/keel>)
set_target_properties(keel_shared PROPERTIES OUTPUT_NAME keel EXPORT_NAME keel
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
if(NOT KEEL_SANITIZE) # the sanitizers' own symbols come with the program
  target_link_options(keel_shared PRIVATE -Wl,--no-undefined)
endif()

install(TARGETS keel_shared EXPORT keelTargets LIBRARY)
install(TARGETS keel keel-train RUNTIME)
if(TARGET keel-bench)
  install(TARGETS keel-bench RUNTIME)
endif()

# Headers keep their place in the tree, so that "probe/keel.h" means the same to users as to us: the include path is include/keel.
# probe/keel.h and tools/assemble.h with all that they include.
set(public_headers
  probe/dtype.h probe/frame.h probe/keel.h probe/schedule.h probe/site.h probe/stats.h probe/status.h
  probe/stats_fields.def probe/stats_ops.def
  configs/yaml.h configs/monitor_config.h tools/assemble.h)
foreach(header IN LISTS public_headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/keel/${folder})
endforeach()

file(GLOB presets CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/configs/*.yaml)
install(FILES ${presets} DESTINATION ${CMAKE_INSTALL_DATADIR}/keel)
install(DIRECTORY configs/lab DESTINATION ${CMAKE_INSTALL_DATADIR}/keel)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Both kinds of package find the prefix from where they lie, so that an installed tree can be moved.
file(RELATIVE_PATH KEEL_PC_PREFIX /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
configure_file(cmake/keel.pc.in keel.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/keel.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/keel)
configure_package_config_file(cmake/keelConfig.cmake.in keelConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(keelConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/keelConfig.cmake ${CMAKE_BINARY_DIR}/keelConfigVersion.cmake DESTINATION ${package_dir})
install(EXPORT keelTargets NAMESPACE keel:: DESTINATION ${package_dir})

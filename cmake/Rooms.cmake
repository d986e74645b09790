# A room is a folder and a static library of all its sources. What a room may use is what it links; tests/ checks the includes.
add_library(keel_flags INTERFACE)
target_include_directories(keel_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
target_compile_definitions(keel_flags INTERFACE _GNU_SOURCE KEEL_VERSION="${PROJECT_VERSION}")
target_compile_options(keel_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wconversion -Werror -fno-math-errno)
if(KEEL_SANITIZE)
  target_compile_options(keel_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(keel_flags INTERFACE -fsanitize=address,undefined)
endif()

# keel_room(NAME DIRS dir... USES lib...): library keel_NAME from all *.c of the folders (relative to the caller).
function(keel_room name)
  cmake_parse_arguments(ROOM "" "" "DIRS;USES" ${ARGN})
  set(sources)
  foreach(dir IN LISTS ROOM_DIRS)
    file(GLOB found CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${dir}/*.c)
    list(APPEND sources ${found})
  endforeach()
  add_library(keel_${name} STATIC ${sources})
  target_link_libraries(keel_${name} PUBLIC keel_flags ${ROOM_USES})
endfunction()

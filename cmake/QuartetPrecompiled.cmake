# Precompiled headers and less optimisation for tests: less than half of a whole build's time. Off by default, so that
# the ordinary build proves that every file includes what it uses.
option(QUARTET_PRECOMPILED "Share precompiled headers between targets and compile tests with -O1" OFF)
if(QUARTET_PRECOMPILED)
  add_compile_options(-pthread)  # some libraries ask for it, and it changes what a header says
  # GCC 12 no longer sees that these lines stand in a system header (https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105651).
  add_compile_options(-Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
endif()

set(quartet_common_headers
  <algorithm> <array> <cmath> <cstdint> <cstring> <functional> <map> <memory> <mutex> <optional> <random> <set> <span>
  <string> <string_view> <thread> <utility> <variant> <vector>
  <absl/container/flat_hash_map.h> <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
  <absl/strings/str_format.h> <absl/time/time.h>)

# quartet_precompile(TARGET library|program|test): a library's code is compiled as -fPIC and a program's as -fPIE, which
# cannot share one; tests also have GoogleTest.
function(quartet_precompile target kind)
  if(NOT QUARTET_PRECOMPILED)
    return()
  endif()
  if(kind STREQUAL "test")
    target_compile_options(${target} PRIVATE -O1)
  endif()
  set(shared quartet_precompiled_${kind})
  if(NOT TARGET ${shared})
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${shared}.cc CONTENT "int main() { return 0; }\n")
    if(kind STREQUAL "library")
      add_library(${shared} OBJECT ${CMAKE_BINARY_DIR}/${shared}.cc)
    else()
      add_executable(${shared} ${CMAKE_BINARY_DIR}/${shared}.cc)
    endif()
    set(headers ${quartet_common_headers})
    target_link_libraries(${shared} PRIVATE absl::flat_hash_map absl::statusor absl::str_format absl::time)
    if(kind STREQUAL "test")
      list(APPEND headers <gmock/gmock.h> <gtest/gtest.h>)
      target_link_libraries(${shared} PRIVATE GTest::gmock)
      target_compile_options(${shared} PRIVATE -O1)
    endif()
    target_precompile_headers(${shared} PRIVATE ${headers})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${shared})
endfunction()

include(QuartetPrecompiled)

# quartet_library(NAME SRCS a.cc ... DEPS target ...): a static library whose warnings are errors.
function(quartet_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  if(ARG_SRCS)
    add_library(${name} STATIC ${ARG_SRCS})
    target_link_libraries(${name} PUBLIC ${ARG_DEPS})
    quartet_precompile(${name} library)
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

# quartet_binary(NAME SRCS ... DEPS ...)
function(quartet_binary name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  quartet_precompile(${name} program)
endfunction()

# quartet_test(NAME LABEL unit SRCS ... DEPS ... [TIMEOUT s] [ARGS ...]): one GoogleTest program, one CTest entry. CTest
# begins with those that may take longest.
# Test data is found through the macro QUARTET_SOURCE_DIR; built programs through QUARTET_BINARY_DIR.
function(quartet_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SRCS;DEPS;ARGS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  # Instrumented programs are several times slower.
  if(QUARTET_SANITIZE)
    math(EXPR ARG_TIMEOUT "4 * ${ARG_TIMEOUT}")
  endif()
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE
    QUARTET_SOURCE_DIR="${PROJECT_SOURCE_DIR}" QUARTET_BINARY_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  if(QUARTET_SANITIZE)
    target_compile_definitions(${name} PRIVATE QUARTET_SANITIZED)
  endif()
  quartet_precompile(${name} test)
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT})
endfunction()

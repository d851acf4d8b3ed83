# hotlease_add_functions(<target> <source>...)
#
# Builds a function library: a shared library whose bytes a client sends to its workers. Only the functions that
# <hotlease/function.h> exports are visible, no symbol is left unresolved (a worker would refuse to load the library),
# and a build without a CMAKE_BUILD_TYPE is optimised, too. Link other libraries that the functions need with
# target_link_libraries(<target> PRIVATE ...); they must be installed where the workers run. Sources in Fortran can use
# the module hotlease_functions; their procedures with bind(C) are exported.
function(hotlease_add_functions target)
  if(NOT ARGN)
    message(FATAL_ERROR "hotlease_add_functions(${target}): name at least one source file")
  endif()
  add_library(${target} MODULE ${ARGN})
  target_link_libraries(${target} PRIVATE hotlease::function)
  set_target_properties(${target} PROPERTIES
    POSITION_INDEPENDENT_CODE ON
    C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${target} PRIVATE $<$<CONFIG:>:-O2>)
  target_link_options(${target} PRIVATE -Wl,-z,defs)
  set(fortran ${ARGN})
  list(FILTER fortran INCLUDE REGEX "\\.[fF](90|95|03|08|18|or|pp)?$")
  if(fortran)
    if(NOT TARGET hotlease::fortran_functions)
      message(FATAL_ERROR "hotlease_add_functions(${target}): enable Fortran before find_package(hotlease)")
    endif()
    target_link_libraries(${target} PRIVATE hotlease::fortran_functions)
    # gfortran has no hidden visibility.
    target_link_options(${target} PRIVATE
      "-Wl,--version-script=${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../../../include/hotlease/fortran/exports.map")
  endif()
endfunction()

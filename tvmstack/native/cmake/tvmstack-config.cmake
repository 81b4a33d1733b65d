# find_package(tvmstack CONFIG PATHS <package folder>) gives the target tvmstack::tvmstack. The folder may be moved.
get_filename_component(_tvmstack_root "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET tvmstack::tvmstack)
  add_library(tvmstack::tvmstack SHARED IMPORTED)
  set_target_properties(tvmstack::tvmstack PROPERTIES
    IMPORTED_LOCATION "${_tvmstack_root}/lib/libtvmstack.so"
    IMPORTED_SONAME "libtvmstack.so"
    IMPORTED_LINK_DEPENDENT_LIBRARIES ""
    INTERFACE_INCLUDE_DIRECTORIES "${_tvmstack_root}/include"
    # A cross linker doesn't follow $ORIGIN to TVM's two libraries.
    INTERFACE_LINK_OPTIONS "-Wl,-rpath-link,${_tvmstack_root}/lib")
endif()
unset(_tvmstack_root)

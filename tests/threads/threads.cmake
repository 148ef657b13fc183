# SPDX-License-Identifier: Apache-2.0
# The tests under the thread sanitizer: what is left out (excluded, which says why).
set(threads_dir ${CMAKE_CURRENT_LIST_DIR})
file(STRINGS ${threads_dir}/excluded threads_excluded REGEX "^(folder|test|case) ")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${threads_dir}/excluded)

file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/races)

# threads_keep_parts(LIST): without the folders that are left out.
function(threads_keep_parts list)
  set(kept ${${list}})
  foreach(line IN LISTS threads_excluded)
    if(line MATCHES "^folder ([a-z]+)")
      list(FILTER kept EXCLUDE REGEX "/${CMAKE_MATCH_1}/tests\\.cmake$")
    endif()
  endforeach()
  set(${list} ${kept} PARENT_SCOPE)
endfunction()

# threads_leave_out(): tests and cases, of the directory that it is called in.
function(threads_leave_out)
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(line IN LISTS threads_excluded)
    if(line MATCHES "^test ([^ ]+)")
      set(found ${tests})
      list(FILTER found INCLUDE REGEX "${CMAKE_MATCH_1}")
      if(NOT found)
        message(FATAL_ERROR "tests/threads/excluded names a test that is none: ${line}")
      endif()
      set_tests_properties(${found} PROPERTIES DISABLED TRUE)
    elseif(line MATCHES "^case ([^ ]+) ([^ ]+)")
      set_property(TEST ${CMAKE_MATCH_1} APPEND PROPERTY ENVIRONMENT "RUNNER_WITHOUT= ${CMAKE_MATCH_2} ")
    endif()
  endforeach()
endfunction()

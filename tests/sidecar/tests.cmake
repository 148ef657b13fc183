# SPDX-License-Identifier: Apache-2.0
# heddle-worker: its parts as Criterion programs, the program itself case by case.
set(sidecar_export_with ${CMAKE_SOURCE_DIR}/worker/sidecar_lock.c)
foreach(part hook export seen)
  heddle_test(sidecar_${part} SOURCES ${CMAKE_CURRENT_LIST_DIR}/${part}.c ${CMAKE_SOURCE_DIR}/worker/sidecar_${part}.c ${sidecar_${part}_with} LINK heddle_worker)
endforeach()
execute_process(COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/run --list OUTPUT_VARIABLE cases OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REPLACE "\n" ";" cases "${cases}")
foreach(case IN LISTS cases)
  add_test(NAME sidecar_${case} COMMAND bash ${CMAKE_CURRENT_LIST_DIR}/run ${case})
  heddle_test_properties(sidecar_${case} process 60)
endforeach()

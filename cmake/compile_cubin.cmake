# Compiles one .cu file to a cubin and fails on what costs speed silently: spills and other local
# memory, wgmmas that ptxas serialises, register counts it does not set, and kernels above their
# budget. A debugging build, one with DEFINES, may do all that. tests/check_cubin_budget.sh breaks
# each of the rules.
# Variables: NVCC, SOURCE, OUTPUT; lists: INCLUDES, DEFINES, BUDGET (registers, static shared bytes).
foreach(folder ${INCLUDES})
  list(APPEND flags -I${folder})
endforeach()
foreach(define ${DEFINES})
  list(APPEND flags -D${define})
endforeach()
execute_process(
  COMMAND ${NVCC} -cubin -gencode arch=compute_90a,code=sm_90a -std=c++17 -O3 -Xptxas -v ${flags}
          -o ${OUTPUT} ${SOURCE}
  RESULT_VARIABLE result
  OUTPUT_VARIABLE report
  ERROR_VARIABLE report)
set(costly "Potential Performance Loss|serialized|[1-9][0-9]* bytes (spill|stack frame)")
string(REGEX MATCHALL "[^\n]*(${costly})[^\n]*" slow "${report}")
list(GET BUDGET 0 most_registers)
list(GET BUDGET 1 most_smem)
string(REGEX MATCHALL "Used [0-9]+ registers[^\n]*" kernels "${report}")
foreach(kernel ${kernels})
  string(REGEX MATCH "Used ([0-9]+)" registers "${kernel}")
  if(CMAKE_MATCH_1 GREATER most_registers)
    list(APPEND slow "${kernel}: the budget is ${most_registers} registers")
  endif()
  if(kernel MATCHES "([0-9]+) bytes smem" AND CMAKE_MATCH_1 GREATER most_smem)
    list(APPEND slow "${kernel}: the budget is ${most_smem} bytes of shared memory")
  endif()
endforeach()
# Without a line for each kernel nothing was held to its budget: ptxas then words its report anew.
if(NOT kernels)
  list(APPEND slow "no kernel in ptxas's report")
endif()
if(NOT result EQUAL 0 OR (slow AND NOT DEFINES))
  file(REMOVE ${OUTPUT})
  message(FATAL_ERROR "${SOURCE}: ${slow}\n${report}")
endif()
file(WRITE ${OUTPUT}.log "${report}")

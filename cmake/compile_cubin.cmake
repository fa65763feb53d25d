# Compiles one .cu file to a cubin and fails on what costs speed silently: spills, and wgmmas that
# ptxas serialises (a debugging build, one with DEFINES, may). Variables: NVCC, SOURCE, OUTPUT, INCLUDES, DEFINES (lists).
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
string(REGEX MATCHALL "[^\n]*(C75(07|1[0-9]|20)\\)[^\n]*serialized|[1-9][0-9]* bytes spill)[^\n]*"
       slow "${report}")
if(NOT result EQUAL 0 OR (slow AND NOT DEFINES))
  file(REMOVE ${OUTPUT})
  message(FATAL_ERROR "${SOURCE}:\n${report}")
endif()
file(WRITE ${OUTPUT}.log "${report}")

# quartet_cuda_images(TARGET SOURCES a.cu b.cu ...): compiles kernel sources, device code only, and
# makes a library that holds them as bytes (kernels/cuda/images.h):
#   - by nvcc for QUARTET_CUDA_ARCHS, one fat binary a source. An nvcc that still knows Volta makes
#     sm_70 code here too.
#   - by clang to PTX for sm_70, where QUARTET_CUDA_CLANG names one. ptxas then checks it, and
#     refuses any instruction above sm_70.
set(QUARTET_CUDA_ARCHS "90" CACHE STRING "Architectures that nvcc compiles kernels for, such as 70;80;90")
find_program(QUARTET_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin REQUIRED)
find_program(QUARTET_CUDA_CLANG NAMES clang++-22 clang++-21 clang++-20)
find_program(QUARTET_PTXAS ptxas HINTS /usr/local/cuda/bin)
get_filename_component(QUARTET_CUDA_ROOT ${QUARTET_NVCC} REALPATH)
get_filename_component(QUARTET_CUDA_ROOT ${QUARTET_CUDA_ROOT} DIRECTORY)
get_filename_component(QUARTET_CUDA_ROOT ${QUARTET_CUDA_ROOT} DIRECTORY)

function(quartet_cuda_images target)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${target})
  file(MAKE_DIRECTORY ${folder})
  set(gencode)
  foreach(arch ${QUARTET_CUDA_ARCHS})
    list(APPEND gencode -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
  set(assembler ".section .rodata\n")
  set(table "#include \"kernels/cuda/images.h\"\n\nextern \"C\" {\n")
  set(native "")
  set(sm70 "")
  set(outputs)

  macro(embed symbol file)
    string(APPEND assembler ".balign 64\n.global ${symbol}\n${symbol}:\n.incbin \"${file}\"\n.byte 0\n"
      ".global ${symbol}_end\n${symbol}_end:\n")
    string(APPEND table "extern const unsigned char ${symbol}[], ${symbol}_end[];\n")
    list(APPEND outputs ${file})
  endmacro()

  foreach(source ${ARG_SOURCES})
    get_filename_component(name ${source} NAME_WE)
    set(path ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    add_custom_command(OUTPUT ${folder}/${name}.fatbin
      COMMAND ${QUARTET_NVCC} -std=c++20 -O3 -fatbin ${gencode} -I${PROJECT_SOURCE_DIR} -Werror all-warnings
        --expt-relaxed-constexpr -MD -MF ${folder}/${name}.fatbin.d ${path} -o ${folder}/${name}.fatbin
      DEPENDS ${path} DEPFILE ${folder}/${name}.fatbin.d COMMENT "nvcc ${source}" VERBATIM)
    embed(quartet_native_${name} ${folder}/${name}.fatbin)
    string(APPEND native
      "    {\"${name}\", quartet_native_${name}, size_t(quartet_native_${name}_end - quartet_native_${name})},\n")
    if(QUARTET_CUDA_CLANG AND QUARTET_PTXAS)
      add_custom_command(OUTPUT ${folder}/${name}.sm_70.ptx
        COMMAND ${QUARTET_CUDA_CLANG} -x cuda -std=c++20 --cuda-gpu-arch=sm_70 --cuda-path=${QUARTET_CUDA_ROOT}
          -I${QUARTET_CUDA_ROOT}/include/cccl -I${PROJECT_SOURCE_DIR} --cuda-device-only -S -O3
          -Wno-unknown-cuda-version -Wno-pass-failed -MD -MF ${folder}/${name}.sm_70.d -MT ${folder}/${name}.sm_70.ptx ${path}
          -o ${folder}/${name}.sm_70.ptx
        COMMAND ${QUARTET_PTXAS} -arch=sm_75 ${folder}/${name}.sm_70.ptx -o ${folder}/${name}.sm_70.check
        DEPENDS ${path} DEPFILE ${folder}/${name}.sm_70.d COMMENT "clang (sm_70) ${source}" VERBATIM)
      embed(quartet_sm70_${name} ${folder}/${name}.sm_70.ptx)
      string(APPEND sm70
        "    {\"${name}\", quartet_sm70_${name}, size_t(quartet_sm70_${name}_end - quartet_sm70_${name})},\n")
    endif()
  endforeach()

  string(APPEND table "}\n\nnamespace quartet::cuda {\n\nstd::span<const KernelImage> NativeImages() {\n"
    "  static const KernelImage images[] = {\n${native}  };\n  return images;\n}\n\n"
    "std::span<const KernelImage> Sm70Images() {\n")
  if(sm70)
    string(APPEND table "  static const KernelImage images[] = {\n${sm70}  };\n  return images;\n}\n")
  else()
    string(APPEND table "  return {};\n}\n")
  endif()
  string(APPEND table "\n}  // namespace quartet::cuda\n")
  string(APPEND assembler ".section .note.GNU-stack,\"\",%progbits\n")
  file(CONFIGURE OUTPUT ${folder}/images.S CONTENT "${assembler}" @ONLY)
  file(CONFIGURE OUTPUT ${folder}/images.cc CONTENT "${table}" @ONLY)
  set_source_files_properties(${folder}/images.S PROPERTIES OBJECT_DEPENDS "${outputs}")
  add_library(${target} STATIC ${folder}/images.S ${folder}/images.cc)
endfunction()

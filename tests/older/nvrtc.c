/* nvrtc.c - NVRTC with PTX in place of cubins: see older.h. */
#include "older.h"

static void *real_library(void) {
  static void *real;
  if (!real) real = open_real("OLDER_NVRTC");
  return real;
}

#define NVRTC(name, parameters, arguments, real_name)                          \
  SHOWN int nvrtc##name parameters;                                            \
  int nvrtc##name parameters {                                                 \
    int(*real) parameters =                                                    \
        must_find(real_library(), "nvrtc" real_name);                          \
    return real arguments;                                                     \
  }
NVRTC(Version, (int *major, int *minor), (major, minor), "Version")
NVRTC(CreateProgram,
      (void **program, const char *source, const char *name, int count,
       const char *const *text, const char *const *names),
      (program, source, name, count, text, names), "CreateProgram")
NVRTC(CompileProgram, (void *program, int count, const char *const *option),
      (program, count, option), "CompileProgram")
NVRTC(GetProgramLogSize, (void *program, size_t *size), (program, size),
      "GetProgramLogSize")
NVRTC(GetProgramLog, (void *program, char *text), (program, text),
      "GetProgramLog")
NVRTC(GetCUBINSize, (void *program, size_t *size), (program, size),
      "GetPTXSize")
NVRTC(GetCUBIN, (void *program, char *text), (program, text), "GetPTX")
NVRTC(DestroyProgram, (void **program), (program), "DestroyProgram")

SHOWN const char *nvrtcGetErrorString(int code);
const char *nvrtcGetErrorString(int code) {
  const char *(*real)(int) = must_find(real_library(), "nvrtcGetErrorString");
  return real(code);
}

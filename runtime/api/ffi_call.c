/* ffi_call.c - functions that only a description knows: the one user of libffi.
 *
 * In: an address, its types as letters, its arguments. Out: what it returns.
 * Nothing is made executable: calls go out, none come back. */
#include "ffi_call.h"
#include "runtime/base/status.h"
#include <assert.h>
#include <ffi.h>
#include <string.h>

static ffi_type *type_of(char letter) {
  static const struct {
    char letter;
    ffi_type *type;
  } types[] = {{'p', &ffi_type_pointer}, {'w', &ffi_type_sint32},
               {'l', &ffi_type_sint64},  {'d', &ffi_type_double},
               {'v', &ffi_type_void}};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (types[i].letter == letter) return types[i].type;
  return NULL;
}

dil_status call_function(void *function, char result, const char *parameters,
                         void **arguments, void *out) {
  ffi_type *type[CALL_MAX];
  ffi_cif cif;
  ffi_arg room = 0; /* libffi widens what is narrower than a register */
  void *to = result == 'w' ? &room : out;
  size_t count = strlen(parameters);
  assert(count <= CALL_MAX);
  for (size_t i = 0; i < count; i++) {
    type[i] = type_of(parameters[i]);
    assert(type[i] && parameters[i] != 'v');
  }
  if (ffi_prep_cif(&cif, FFI_DEFAULT_ABI, (unsigned)count, type_of(result),
                   type) != FFI_OK)
    return dil_fail(DIL_INTERNAL, "libffi does not know the form of a call");
  ffi_call(&cif, FFI_FN(function), to, arguments);
  if (result == 'w') *(int32_t *)out = (int32_t)room;
  return DIL_OK;
}

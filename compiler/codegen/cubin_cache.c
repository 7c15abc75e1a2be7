/* cubin_cache.c - the cubin cache, keyed by source and options: see
 * gpu_cubin_cache in gpu/gpu.h.
 *
 * In: options and source, as NVRTC gets them. Out: the cubin and the report
 * that NVRTC made of them for any plan, in this process or another. A hash of
 * the back end's file, which holds the included templates, is in the key too.
 * NVRTC's file is the dependency of the value. The gate in nvrtc.c checks each
 * cubin again. */
#include "cubin_cache.h"
#include "code_cache.h"
#include "runtime/cache/cache.h"
#include <stdlib.h>
#include <string.h>

/* A value: the path of the NVRTC that made the cubin and the report, each with
 * its terminating 0, then the cubin. */
static bool cubin_cache_read(const cache_value *kept, const char **origin,
                      gpu_made *made) {
  const char *at = kept->bytes, *end = at + kept->size;
  const char *log = memchr(at, 0, kept->size);
  const char *cubin = log ? memchr(log + 1, 0, (size_t)(end - log - 1)) : NULL;
  if (!cubin) return false;
  *origin = at;
  cubin++;
  *made = (gpu_made){.log = strdup(log + 1),
                     .cubin = malloc((size_t)(end - cubin) + 1),
                     .size = (size_t)(end - cubin)};
  if (made->log && made->cubin) {
    memcpy(made->cubin, cubin, made->size);
    return true;
  }
  free(made->log);
  free(made->cubin);
  *made = (gpu_made){0};
  return false;
}

/* Malloced; NULL: no memory. */
static char *cubin_cache_write(const char *origin, const gpu_made *made,
                        size_t *size) {
  size_t path = strlen(origin) + 1, log = strlen(made->log) + 1;
  *size = path + log + made->size;
  char *bytes = malloc(*size);
  if (!bytes) return NULL;
  memcpy(bytes, origin, path);
  memcpy(bytes + path, made->log, log);
  memcpy(bytes + path + log, made->cubin, made->size);
  return bytes;
}

static char *cubin_cache_key(const source_text *of, size_t *size) {
  char *bytes;
  FILE *out = code_cache_open_key(MODULE_GPU, &bytes, size);
  if (!out) return NULL;
  fprintf(out, "cubin ");
  fwrite(of->text, 1, of->length, out);
  bool whole = !ferror(out);
  if (fclose(out) == 0 && whole) return bytes;
  free(bytes);
  return NULL;
}

static bool cubin_cache_find(void *context, const source_text *of,
                             gpu_made *made) {
  cubin_cache *s = context;
  dil_cache *cache;
  cache_value kept;
  const char *origin;
  size_t size;
  char *key =
      dil_context_cache(s->context, &cache) ? NULL : cubin_cache_key(of, &size);
  bool found = key && dil_cache_get(cache, key, size, &kept);
  free(key);
  if (!found) return false;
  found = cubin_cache_read(&kept, &origin, made);
  bool other = found && s->origin[0] && strcmp(origin, s->origin);
  if (other) { /* another NVRTC made it */
    free(made->log);
    free(made->cubin);
    *made = (gpu_made){0};
    found = false;
  } else if (found && !s->origin[0]) {
    snprintf(s->origin, sizeof s->origin, "%s", origin);
  }
  free(kept.bytes);
  return found;
}

static void cubin_cache_put(void *context, const source_text *of,
                            const char *label, const gpu_made *made,
                            double seconds) {
  const cubin_cache *s = context;
  dil_cache *cache;
  size_t key_size, size;
  if (!s->origin[0] || dil_context_cache(s->context, &cache)) return;
  char *key = cubin_cache_key(of, &key_size);
  char *bytes = key ? cubin_cache_write(s->origin, made, &size) : NULL;
  if (bytes)
    dil_cache_put(cache, key, key_size,
                  &(cache_value){.bytes = bytes,
                                 .size = size,
                                 .seconds = seconds,
                                 .label = label,
                                 .witness = {s->origin}});
  free(bytes);
  free(key);
}

void cubin_cache_open(cubin_cache *s, dil_context *context, bool only,
                     const char *origin) {
  *s = (cubin_cache){.calls = {.context = s,
                              .only = only,
                              .find = cubin_cache_find,
                              .put = cubin_cache_put},
                    .context = context};
  if (origin && !code_cache_absolute(origin, s->origin)) s->origin[0] = 0;
}

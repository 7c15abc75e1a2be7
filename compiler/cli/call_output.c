/* call_output.c - o and lse of a call: memory, or mapped files that get their
 * names at the end. A streamed run with a checkpoint resumes with those files.
 * In: options and sizes. Out: tensors of a call setup. */
#include "call_setup.h"
#include "runtime/base/module.h"
#include "runtime/base/status.h"
#include "runtime/stream/stream.h"
#include <string.h>
#include <sys/stat.h>

/* ---- paths --------------------------------------------------------------- */

/* Returns the file's name and its folder; *there: the folder exists. */
static const char *split_path(const char *path, struct stat *folder,
                              bool *there) {
  char text[DIL_PATH_MAX];
  const char *slash = strrchr(path, '/');
  int length = snprintf(text, sizeof text, "%.*s",
                        slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
  *there = length < (int)sizeof text && !stat(text, folder);
  return slash ? slash + 1 : path;
}

/* Returns whether two paths name one regular file, which need not exist yet. */
static bool is_same_file(const char *path, const char *other) {
  struct stat a, b;
  bool there = !stat(path, &a), other_there = !stat(other, &b);
  if (there != other_there || (there && !S_ISREG(a.st_mode))) return false;
  if (!there) {
    const char *name = split_path(path, &a, &there);
    if (strcmp(name, split_path(other, &b, &other_there))) return false;
  }
  return there && other_there && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* A file that an option names; `name` is that of the option. */
typedef struct named_file {
  const char *name, *path;
} named_file;
enum { NAMED_FILES_MAX = 64 };

typedef struct named_files {
  named_file file[NAMED_FILES_MAX];
  int32_t count;
} named_files;

static void add_named_file(named_files *to, const char *name,
                           const char *path) {
  if (path && to->count < NAMED_FILES_MAX)
    to->file[to->count++] = (named_file){name, path};
}

static void add_named_pairs(named_files *to, arena *a, const char *name,
                            const settings *list) {
  for (int32_t i = 0; i < list->count; i++)
    add_named_file(to, arena_print(a, "%s %s", name, list->pair[i].name),
                   list->pair[i].value);
}

static named_files files_read(arena *a, const options *o) {
  named_files all = {.count = 0};
  add_named_file(&all, "q", o->array[0]);
  add_named_file(&all, "k", o->array[1]);
  add_named_file(&all, "v", o->array[2]);
  add_named_file(&all, "lengths", o->lengths);
  add_named_file(&all, "offsets", o->offsets);
  add_named_file(&all, "key-offsets", o->key_offsets);
  add_named_file(&all, "pages", call_pages_of_file(o) ? o->pages : NULL);
  add_named_file(&all, "do", o->d_o);
  add_named_file(&all, "dlse", o->dlse);
  add_named_pairs(&all, a, "input", &o->input);
  return all;
}

static named_files files_written(arena *a, const options *o) {
  named_files all = {.count = 0};
  add_named_file(&all, "out", o->out);
  add_named_file(&all, "lse", o->lse);
  for (int cols = 0; o->selection && cols < 2; cols++)
    add_named_file(&all, "selection",
                   call_choice_file(a, o->selection, NULL, cols));
  add_named_file(&all, "dq", o->gradient[0]);
  add_named_file(&all, "dk", o->gradient[1]);
  add_named_file(&all, "dv", o->gradient[2]);
  add_named_pairs(&all, a, "grad", &o->grad);
  return all;
}

static dil_status check_output(const named_file *output,
                               const named_files *read, bool begun) {
  for (int32_t i = 0; i < read->count; i++)
    if (is_same_file(output->path, read->file[i].path))
      return dil_fail(DIL_USAGE,
                      "--%s would take the place of '%s', the file "
                      "of --%s",
                      output->name, read->file[i].path, read->file[i].name);
  return begun ? DIL_OK : dil_npy_probe(output->path);
}

dil_status call_outputs_check(arena *a, const options *o) {
  named_files read = files_read(a, o), written = files_written(a, o);
  bool begun = o->seen[OPTION_STREAM]; /* the call setup creates it before */
  dil_status status = DIL_OK;
  for (int32_t i = 0; i < written.count; i++)
    for (int32_t k = i + 1; k < written.count; k++)
      if (is_same_file(written.file[i].path, written.file[k].path))
        return dil_fail(DIL_USAGE, "--%s and --%s are one file, '%s'",
                        written.file[i].name, written.file[k].name,
                        written.file[k].path);
  for (int32_t i = 0; i < written.count && !status; i++)
    status = check_output(&written.file[i], &read, begun);
  return status;
}

/* ---- the outputs --------------------------------------------------------- */

/* Creates or resumes PREFIX.o.npy or PREFIX.lse.npy of a run with a
 * checkpoint. */
static dil_status keep_output(const call_setup *b, const char *path,
                              const char *name, const dil_tensor *tensor,
                              dil_npy_output *output) {
  char part[DIL_PATH_MAX];
  const options *o = b->options;
  int length = snprintf(part, sizeof part, "%s.%s.npy", o->state, name);
  if (length >= (int)sizeof part)
    return dil_fail(DIL_USAGE, "--state '%s' is too long", o->state);
  return dil_npy_create_at(path, part, o->resume, DIL_F32, tensor->rank,
                           tensor->shape, output);
}

static dil_status make_output(call_setup *b, const char *path, const char *name,
                              dil_npy_output *output, dil_tensor *tensor) {
  const options *o = b->options;
  dil_status status;
  if (!o->seen[OPTION_STREAM] || (!path && !o->state))
    return call_tensor_new(b, tensor->dtype, tensor->rank, tensor->shape,
                           tensor);
  status = o->state ? keep_output(b, path, name, tensor, output)
                    : dil_npy_create(path, DIL_F32, tensor->rank,
                                     tensor->shape, output);
  *tensor = output->tensor;
  return status;
}

/* Checks the checkpoint that the run resumes, or deletes one that it does not
 * resume. */
static dil_status open_state(const options *o) {
  stream_chunks cuts;
  if (!o->seen[OPTION_STREAM] || !o->state) return DIL_OK;
  if (o->resume) return stream_checkpoint_chunks(o->state, &cuts);
  stream_checkpoint_remove(o->state);
  return DIL_OK;
}

dil_status call_outputs_make(call_setup *b) {
  const options *o = b->options;
  if (call_is_sparse(b)) return call_sparse_map(b);
  dil_status status = open_state(o);
  if (!status) status = make_output(b, o->out, "o", &b->out, &b->call.o);
  if (!status && pattern_has_lse(b->pattern))
    status = make_output(b, o->lse, "lse", &b->lse, &b->call.lse);
  else if (!status && o->lse)
    status = dil_fail(DIL_INPUT,
                      "pattern '%s' has no lse: its branches are "
                      "normalised each by itself",
                      b->pattern->name);
  if (!status) call_setup_wipe(b);
  return status;
}

void call_outputs_discard(call_setup *b) {
  const options *o = b->options; /* NULL: call_setup_open did not run */
  bool goes_on = o && o->state && stream_has_checkpoint(o->state);
  b->out.kept &= goes_on;
  b->lse.kept &= goes_on;
  dil_npy_discard(&b->out);
  dil_npy_discard(&b->lse);
}

/* The checkpoint goes last, so that a run that dies before can still resume.
 * call_outputs_discard deletes files that no option asked for. */
dil_status call_setup_publish(call_setup *b) {
  dil_status status = b->out.path ? dil_npy_publish(&b->out) : DIL_OK;
  if (!status && b->lse.path) status = dil_npy_publish(&b->lse);
  if (!status && b->options->state) stream_checkpoint_remove(b->options->state);
  return status;
}

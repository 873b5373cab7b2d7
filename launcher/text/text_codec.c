#include "launcher/text/text_codec.h"

#include "runtime/base/check.h"
#include "runtime/base/paths.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

// ---- The child

static int spawn(const char *script, int input, int output) {
  char *words[] = {"python3", (char *)script, "--serve", NULL};
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t none;
  pid_t process = 0;
  sigemptyset(&none);
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  // A group of its own: a terminal's interrupt is for the run, which stops the child when it ends.
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setsigmask(&attributes, &none);
  if (posix_spawnp(&process, words[0], &actions, &attributes, words, environ) != 0) process = 0;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return process;
}

void fsdp_text_codec_start(fsdp_text_codec *codec) {
  int to[2], from[2];
  *codec = (fsdp_text_codec){.script = FSDP_PREPARE_DATA};
  if (pipe2(to, O_CLOEXEC) != 0) return;
  if (pipe2(from, O_CLOEXEC) != 0) {
    close(to[0]), close(to[1]);
    return;
  }
  codec->process = spawn(codec->script, to[0], from[1]);
  close(to[0]), close(from[1]);
  codec->to = fdopen(to[1], "w");
  codec->from = fdopen(from[0], "r");
  FSDP_NEED_MEMORY(codec->to && codec->from, "the pipes of a child");
}

void fsdp_text_codec_stop(fsdp_text_codec *codec) {
  if (codec->to) fclose(codec->to); // the end of its input ends it
  if (codec->from) fclose(codec->from);
  if (codec->process) waitpid(codec->process, NULL, 0);
  for (int i = 0; i < codec->end_text_count; i++) free(codec->end_texts[i]);
  free(codec->end_texts);
  free(codec->ends);
  *codec = (fsdp_text_codec){0};
}

static fsdp_status fail_ended(fsdp_text_codec *codec, fsdp_error *error) {
  return fsdp_fail(
      error, FSDP_ERR_PEER,
      "%s --serve, which makes tokens of a prompt, %s: run python3 %s --help to see why, or give "
      "--prompt-tokens",
      codec->script, codec->process ? "ended without an answer" : "could not be started", codec->script);
}

// Takes `question`. The caller frees *answer.
static fsdp_status ask(fsdp_text_codec *codec, json_t *question, json_t **answer, fsdp_error *error) {
  *answer = NULL;
  char *text = json_dumps(question, JSON_COMPACT), *line = NULL;
  size_t line_bytes = 0;
  json_decref(question);
  FSDP_NEED_MEMORY(text, "a question");
  // If the child has ended, writing must fail and not kill this process.
  void (*before)(int) = signal(SIGPIPE, SIG_IGN);
  bool asked = codec->process && fprintf(codec->to, "%s\n", text) > 0 && fflush(codec->to) == 0;
  signal(SIGPIPE, before);
  free(text);
  if (asked && getline(&line, &line_bytes, codec->from) > 0) *answer = json_loads(line, 0, NULL);
  free(line);
  if (!*answer) return fail_ended(codec, error);
  const char *wrong = json_string_value(json_object_get(*answer, "error"));
  if (!wrong) return FSDP_OK;
  int status = (int)json_integer_value(json_object_get(*answer, "status"));
  const bool known = status == FSDP_ERR_INPUT || status == FSDP_ERR_OPTION;
  fsdp_fail(error, known ? (fsdp_status)status : FSDP_ERR_PEER, "%s", wrong);
  json_decref(*answer);
  *answer = NULL;
  return error->status;
}

void fsdp_text_add_end(fsdp_text_codec *codec, int64_t token) {
  codec->ends = fsdp_realloc(codec->ends, (size_t)(codec->end_count + 1) * sizeof *codec->ends);
  codec->ends[codec->end_count++] = token;
}

static void take_ends(fsdp_text_codec *codec, const json_t *answer) {
  const json_t *texts = json_object_get(answer, "end_texts"), *value;
  size_t i;
  json_array_foreach(json_object_get(answer, "ends"), i, value)
      fsdp_text_add_end(codec, json_integer_value(value));
  codec->end_texts = fsdp_alloc((json_array_size(texts) + 1) * sizeof *codec->end_texts);
  json_array_foreach(texts, i, value) codec->end_texts[codec->end_text_count++] =
      fsdp_strdup(json_string_value(value), "the end of a text");
}

fsdp_status fsdp_text_codec_open(fsdp_text_codec *codec, const fsdp_text_form *form, fsdp_error *error) {
  json_t *answer;
  const bool chats = strcmp(form->chat_template, "plain") != 0;
  codec->first = form->first == FSDP_TEXT_OWN ? -1 : form->first;
  if (!form->tokenizer && !chats) {
    if (form->last != -1) fsdp_text_add_end(codec, form->last == FSDP_TEXT_OWN ? 0 : form->last);
    return FSDP_OK;
  }
  if (!codec->process) return fail_ended(codec, error);
  json_t *known = form->known ? json_stringn(form->known, (size_t)form->known_bytes) : json_null();
  json_t *question = json_pack("{s:s?, s:s, s:o, s:s?, s:I, s:I}", "tokenizer", form->tokenizer, "template",
                               form->chat_template, "known", known, "folder", form->folder, "first",
                               (json_int_t)form->first, "last", (json_int_t)form->last);
  if (!question)
    return fsdp_fail(error, FSDP_ERR_INPUT, "a path or a chat template is not UTF-8: convert it");
  fsdp_status status = ask(codec, question, &answer, error);
  if (status != FSDP_OK) return status;
  codec->opened = form->tokenizer != NULL;
  codec->chats = chats;
  codec->could_chat = !chats && json_is_true(json_object_get(answer, "chats"));
  take_ends(codec, answer);
  json_decref(answer);
  return FSDP_OK;
}

// ---- Text

static fsdp_status encode_bytes(int64_t first, const char *text, int32_t **tokens, int64_t *count) {
  const int64_t bytes = (int64_t)strlen(text);
  *count = 0;
  *tokens = fsdp_alloc((size_t)(bytes + 1) * sizeof **tokens);
  if (first >= 0) (*tokens)[(*count)++] = (int32_t)first;
  for (int64_t i = 0; i < bytes; i++) (*tokens)[(*count)++] = (unsigned char)text[i];
  return FSDP_OK;
}

fsdp_status fsdp_text_encode(fsdp_text_codec *codec, const char *text, int32_t **tokens, int64_t *count,
                             fsdp_error *error) {
  json_t *answer, *value;
  size_t i;
  if (!codec->opened && !codec->chats) return encode_bytes(codec->first, text, tokens, count);
  json_t *prompt = json_string(text);
  if (!prompt) return fsdp_fail(error, FSDP_ERR_OPTION, "--prompt is not UTF-8: convert it");
  fsdp_status status = ask(codec, json_pack("{s:o}", "encode", prompt), &answer, error);
  if (status != FSDP_OK) return status;
  json_t *list = json_object_get(answer, "tokens");
  *count = (int64_t)json_array_size(list);
  *tokens = fsdp_alloc((size_t)(*count + 1) * sizeof **tokens);
  json_array_foreach(list, i, value)(*tokens)[i] = (int32_t)json_integer_value(value);
  json_decref(answer);
  return FSDP_OK;
}

bool fsdp_text_ends_with(const fsdp_text_codec *codec, int64_t token) {
  for (int i = 0; i < codec->end_count; i++)
    if (codec->ends[i] == token) return true;
  return false;
}

char *fsdp_text_find_end(const fsdp_text_codec *codec, char *text) {
  char *first = NULL;
  for (int i = 0; i < codec->end_text_count; i++) {
    char *found = strstr(text, codec->end_texts[i]);
    if (found && (!first || found < first)) first = found;
  }
  return first;
}

// The length of the UTF-8 character at `at`, of which `left` bytes are there; 0: it is none.
static int character(const char *at, int64_t left) {
  for (int length = 1; length <= 4 && length <= left; length++) {
    json_t *one = json_stringn(at, (size_t)length); // NULL: it is not UTF-8
    json_decref(one);
    if (one) return length;
  }
  return 0;
}

// As UTF-8, with U+FFFD for what is none and for byte 0.
static char *decode_bytes(const int32_t *tokens, int64_t count) {
  static const char replacement[] = "\xef\xbf\xbd";
  char *bytes = fsdp_alloc((size_t)count + 1);
  char *text = fsdp_alloc(3 * (size_t)count + 1), *out = text;
  for (int64_t i = 0; i < count; i++) bytes[i] = (char)(tokens[i] < 256 ? tokens[i] : 0);
  for (int64_t i = 0; i < count;) {
    int length = bytes[i] ? character(bytes + i, count - i) : 0;
    memcpy(out, length ? bytes + i : replacement, length ? (size_t)length : 3);
    out += length ? length : 3;
    i += length ? length : 1;
  }
  *out = 0;
  free(bytes);
  return text;
}

json_t *fsdp_text_list(const int32_t *tokens, int64_t count) {
  json_t *list = json_array();
  for (int64_t i = 0; i < count; i++) json_array_append_new(list, json_integer(tokens[i]));
  return list;
}

fsdp_status fsdp_text_decode(fsdp_text_codec *codec, const int32_t *tokens, int64_t behind_count,
                             int64_t count, char **text, fsdp_error *error) {
  json_t *answer;
  if (!codec->opened) {
    *text = decode_bytes(tokens + behind_count, count);
    return FSDP_OK;
  }
  json_t *question = json_pack("{s:o, s:o}", "decode", fsdp_text_list(tokens + behind_count, count), "behind",
                               fsdp_text_list(tokens, behind_count));
  fsdp_status status = ask(codec, question, &answer, error);
  if (status != FSDP_OK) return status;
  *text = fsdp_strdup(json_string_value(json_object_get(answer, "text")), "a text");
  json_decref(answer);
  return FSDP_OK;
}

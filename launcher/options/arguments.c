#include "launcher/options/arguments.h"

#include <string.h>

fsdp_status fsdp_arguments_read(int argc, char **argv, const struct option *rows, fsdp_argument_take take,
                                void *context, fsdp_arguments *arguments, fsdp_error *error) {
  *arguments = (fsdp_arguments){.help = false};
  opterr = 0;
  for (int option; (option = getopt_long(argc, argv, ":h", rows, NULL)) != -1;) {
    const char letter[] = {'-', (char)optopt, 0}, *word = argv[optind - 1];
    if (option == ':') return fsdp_fail(error, FSDP_ERR_OPTION, "%s needs a value: see --help", word);
    if (option == '?') // a letter may stand in a word with others
      return fsdp_fail(error, FSDP_ERR_OPTION, "%s is an unknown option: see --help",
                       optopt && strncmp(word, "--", 2) != 0 ? letter : word);
    arguments->help = option == 'h';
    arguments->version = option == 'v';
    if (arguments->help || arguments->version) return FSDP_OK;
    fsdp_status status = take(context, option, optarg, error);
    if (status != FSDP_OK) return status;
  }
  arguments->words = argv + optind;
  arguments->word_count = argc - optind;
  return FSDP_OK;
}

// Choices of communicators and of data, by their words in runtime/plan/text/option_table.c.
#pragma once

// What the user asks for: collectives' buffers known to the library, and how much of a GPU it takes.
typedef enum fsdp_nccl_register {
  FSDP_NCCL_REGISTER_OFF,
  FSDP_NCCL_REGISTER_AUTO, // as a symmetric window, or not at all
  FSDP_NCCL_REGISTER_ON    // at least as plain memory
} fsdp_nccl_register;
typedef enum fsdp_nccl_ctas { FSDP_NCCL_CTAS_DEFAULT, FSDP_NCCL_CTAS_AUTO } fsdp_nccl_ctas;

// How samples are made. AUTO: a best fit of data of which the loss counts parts of documents alone, as of
// conversations and instructions; else a stream.
typedef enum fsdp_packing_choice {
  FSDP_PACKING_AUTO,
  FSDP_PACKING_BEST_FIT,
  FSDP_PACKING_STREAM,
  FSDP_PACKING_OFF
} fsdp_packing_choice;

// What becomes of documents that are longer than a row.
typedef enum fsdp_long_documents { FSDP_LONG_SPLIT, FSDP_LONG_CUT, FSDP_LONG_DROP } fsdp_long_documents;

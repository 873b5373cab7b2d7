#include "runtime/plan/text/option_table.h"

#include "runtime/base/choices.h"

#include <stdio.h>
#include <string.h>

static const fsdp_choice inits[] = {
    {"weights", FSDP_INIT_WEIGHTS, NULL}, {"random", FSDP_INIT_RANDOM, NULL}, {NULL, 0, NULL}};
static const fsdp_choice schedules[] = {{"cosine", FSDP_LR_COSINE, NULL},
                                        {"linear", FSDP_LR_LINEAR, NULL},
                                        {"constant", FSDP_LR_CONSTANT, "constant_with_warmup"},
                                        {"wsd", FSDP_LR_WSD, "warmup_stable_decay"},
                                        {NULL, 0, NULL}};
static const fsdp_choice decays[] = {
    {"all", FSDP_DECAY_ALL, NULL}, {"matrices", FSDP_DECAY_MATRICES, NULL}, {NULL, 0, NULL}};
static const fsdp_choice router_auxes[] = {{"micro", FSDP_ROUTER_AUX_MICRO, NULL},
                                           {"sequence", FSDP_ROUTER_AUX_SEQUENCE, NULL},
                                           {"rank", FSDP_ROUTER_AUX_RANK, NULL},
                                           {NULL, 0, NULL}};
static const fsdp_choice router_dtypes[] = {
    {"model", FSDP_ROUTER_DTYPE_MODEL, NULL}, {"fp32", FSDP_ROUTER_DTYPE_F32, "float32"}, {NULL, 0, NULL}};
static const fsdp_choice nccl_registers[] = {{"auto", FSDP_NCCL_REGISTER_AUTO, NULL},
                                             {"on", FSDP_NCCL_REGISTER_ON, NULL},
                                             {"off", FSDP_NCCL_REGISTER_OFF, NULL},
                                             {NULL, 0, NULL}};
static const fsdp_choice multiprocessors[] = {{"auto", 0, NULL}, {NULL, 0, NULL}};
static const fsdp_choice nccl_ctas[] = {
    {"auto", FSDP_NCCL_CTAS_AUTO, NULL}, {"default", FSDP_NCCL_CTAS_DEFAULT, NULL}, {NULL, 0, NULL}};
static const fsdp_choice backends[] = {{"auto", FSDP_BACKEND_AUTO, NULL},
                                       {"cpu", FSDP_BACKEND_CPU, NULL},
                                       {"cuda", FSDP_BACKEND_CUDA, "gpu"},
                                       {NULL, 0, NULL}};

static const fsdp_choice attentions[] = {{"auto", FSDP_ATTENTION_AUTO, NULL},
                                         {"wgmma", FSDP_ATTENTION_WGMMA, NULL},
                                         {"mma", FSDP_ATTENTION_MMA, NULL},
                                         {"general", FSDP_ATTENTION_GENERAL, NULL},
                                         {NULL, 0, NULL}};

static const fsdp_choice asyncs[] = {{"auto", FSDP_CKPT_ASYNC_AUTO, NULL},
                                     {"on", FSDP_CKPT_ASYNC_ON, NULL},
                                     {"off", FSDP_CKPT_ASYNC_OFF, NULL},
                                     {NULL, 0, NULL}};

static const fsdp_choice packings[] = {{"auto", FSDP_PACKING_AUTO, NULL},
                                       {"best-fit", FSDP_PACKING_BEST_FIT, NULL},
                                       {"stream", FSDP_PACKING_STREAM, NULL},
                                       {"off", FSDP_PACKING_OFF, NULL},
                                       {NULL, 0, NULL}};

static const fsdp_choice long_documents[] = {{"split", FSDP_LONG_SPLIT, NULL},
                                             {"cut", FSDP_LONG_CUT, NULL},
                                             {"drop", FSDP_LONG_DROP, NULL},
                                             {NULL, 0, NULL}};
static const fsdp_choice loss_means[] = {
    {"tokens", FSDP_LOSS_MEAN_TOKENS, NULL}, {"documents", FSDP_LOSS_MEAN_DOCUMENTS, NULL}, {NULL, 0, NULL}};

static const fsdp_choice bests[] = {
    {"off", FSDP_CKPT_BEST_OFF, NULL}, {"eval_loss", FSDP_CKPT_BEST_EVAL_LOSS, NULL}, {NULL, 0, NULL}};

static const fsdp_choice comparisons[] = {
    {"contents", FSDP_COMPARE_CONTENTS, NULL}, {"sizes", FSDP_COMPARE_SIZES, NULL}, {NULL, 0, NULL}};

static const fsdp_choice helps[] = {{"off", FSDP_HELP_NONE, NULL},
                                    {"on", FSDP_HELP_TASKS, NULL},
                                    {"all", FSDP_HELP_ALL, NULL},
                                    {NULL, 0, NULL}};

static const fsdp_choice resume_schedules[] = {
    {"continue", FSDP_SCHEDULE_CONTINUE, NULL}, {"restart", FSDP_SCHEDULE_RESTART, NULL}, {NULL, 0, NULL}};

#define FIELD(field) .offset = offsetof(fsdp_options, field)
#define TEXT(field)  .kind = FSDP_OPTION_TEXT, FIELD(field)
#define LIST(field)  .kind = FSDP_OPTION_LIST, FIELD(field)
#define INT(field, from, to)                                                                                 \
  .kind = FSDP_OPTION_INT, FIELD(field), .low = (from), .high = (to), .argument = "N"
#define SIZE(field)                                                                                          \
  .kind = FSDP_OPTION_SIZE, FIELD(field), .low = 1, .high = INT64_C(1) << 60, .argument = "SIZE"
#define REAL(field, from, to)                                                                                \
  .kind = FSDP_OPTION_REAL, FIELD(field), .real_low = (from), .real_high = (to), .argument = "X"
#define SHARE(field)                                                                                         \
  .kind = FSDP_OPTION_SHARE, FIELD(field), .real_low = 0, .real_high = 1, .open_high = true, .argument = "P"
#define FLAG(field)         .kind = FSDP_OPTION_FLAG, FIELD(field), .argument = "on|off", .bare = "on"
#define CHOICE(field, list) .kind = FSDP_OPTION_CHOICE, FIELD(field), .choices = (list)

#define RANKS_MAX 1000000
// Steps are counted in fp32 on the device, which is exact up to here.
#define STEPS_MAX (1 << 24)

const fsdp_option_row fsdp_option_table[] = {
    {"model", 0, TEXT(model), .fallback = "tiny", .argument = "NAME|DIR",
     .help = "a preset, or a Hugging Face folder (config.json, *.safetensors)"},
    {"init", 0, CHOICE(init, inits), .argument = "weights|random",
     .help = "load the folder's weights or draw new ones (default: weights if present)"},
    {"data", 0, LIST(data), .argument = "PATH ...",
     .help = "text, .jsonl, Alpaca .json, or tokens: paths or patterns (\"train_*.bin\"), also separated by "
             "commas; PATH:WEIGHT of all of them mixes them (default: a built-in text)"},
    {"tokenizer", 0, TEXT(tokenizer), .argument = "FILE|bytes",
     .help =
         "tokenizer.json (default: the model folder's; bytes if it has none, no weights, and a vocabulary "
         "of 256)"},
    {"packing", 0, CHOICE(packing, packings), .fallback = "auto", .argument = "auto|best-fit|stream|off",
     .help =
         "rows of whole documents that fit best, the stream of all cut into rows, or a row for each document "
         "(auto: best-fit where only parts of documents are learned, as of conversations; else stream)"},
    {"long-documents", 0, CHOICE(long_documents, long_documents), .fallback = "split",
     .argument = "split|cut|drop",
     .help = "what becomes of documents longer than --seq-length, but in a stream"},
    {"document-mask", 0, FLAG(document_mask),
     .help = "attention and positions stay within a document (default: on where the data tells documents)"},
    {"document-separator", 0, .kind = FSDP_OPTION_INT, FIELD(document_separator), .low = -1,
     .high = INT32_MAX, .fallback = "-1", .argument = "TOKEN",
     .help = "the token that ends a document in a .bin (GPT-2's: 50256; -1: none does)"},
    {"loss-mean", 0, CHOICE(loss_mean, loss_means), .fallback = "tokens", .argument = "tokens|documents",
     .help = "what counts the same in the loss of a step: each learned token, or each document"},
    {"dropout", 0, TEXT(dropout), .argument = "P|config",
     .help = "drop elements in training at this rate, of the embedding, of attention's probabilities, and of "
             "what layers add to the residual stream; config: at the rates of a GPT-2 model's configuration "
             "(default: none)"},
    {"attention-dropout", 0, SHARE(attention_dropout),
     .help = "the rate for attention's probabilities alone (default: that of --dropout)"},
    {"resize-embeddings", 0, TEXT(resize_embeddings), .argument = "N|tokenizer", .bare = "tokenizer",
     .help =
         "give the model N tokens, or as many as its tokenizer has: new rows of embedding and head are the "
         "mean of the others"},
    {"verify-data", 0, FLAG(verify_data), .fallback = "on",
     .help = "read and check all tokens before the first step; the ranks of a node share the work"},
    {"eval-data", 0, LIST(eval_data), .argument = "PATH ...",
     .help = "separate evaluation data, used in full each time"},
    {"eval-split", 0, .kind = FSDP_OPTION_REAL, FIELD(eval_split), .real_low = 0, .real_high = 1e15,
     .argument = "FRACTION|COUNT",
     .help = "samples of --data to hold out for evaluation: a fraction if below 1, else a number"},
    {"eval-freq", 0, INT(eval_freq, 0, STEPS_MAX), .fallback = "0",
     .help = "evaluate every N steps, and at the end (0: only at the end)"},
    {"eval-at-start", 0, FLAG(eval_at_start), .programs = FSDP_PROGRAM_TRAIN | FSDP_PROGRAM_PLAN,
     .help = "evaluate before the first step too"},
    {"stop-after", 0, INT(stop_after, 0, STEPS_MAX), .programs = FSDP_PROGRAM_TRAIN | FSDP_PROGRAM_PLAN,
     .fallback = "0",
     .help = "end the run after N evaluations in a row that are no better than the best before (0: never)"},
    {"compare-files", 0, .knob = true, CHOICE(compare_files, comparisons), .fallback = "contents",
     .argument = "contents|sizes",
     .help = "how ranks on several nodes check that they read the same data and weights: in full, or by size "
             "and first 16 MiB"},
    {"batch-size", 'b', INT(batch, 1, 1000000), .fallback = "1",
     .help = "sequences per micro-batch and data-parallel rank"},
    {"seq-length", 's', INT(seq, 1, 1 << 24), .fallback = "1024", .help = "tokens per sequence"},
    {"grad-accum", 0, INT(grad_accum, 1, 1000000), .fallback = "1", .help = "micro-batches per step"},
    {"num-epochs", 0, REAL(num_epochs, 0, 1e9), .open_low = true, .fallback = "1",
     .help = "passes over the data, also a part of one, such as 0.5"},
    {"max-steps", 0, INT(max_steps, 1, STEPS_MAX), .help = "end after at most N steps (default: no limit)"},
    {"lr", 0, REAL(lr, 0, 1e6), .fallback = "3e-5", .help = "learning rate after the warm-up"},
    {"lr-schedule", 0, CHOICE(lr_schedule, schedules), .fallback = "cosine",
     .argument = "cosine|linear|constant|wsd",
     .help = "decay from --lr to --min-lr at the last step (wsd: warm-up, stable, and linear decay at the "
             "end)"},
    {"min-lr", 0, REAL(min_lr, 0, 1e6), .fallback = "0", .help = "learning rate at the end"},
    {"warmup-steps", 0, INT(warmup_steps, 0, STEPS_MAX), .fallback = "0", .help = "steps of linear warm-up",
     .otherwise = "--warmup-ratio takes a share of all steps"},
    {"warmup-ratio", 0, SHARE(warmup_ratio), .help = "share of all steps that are linear warm-up"},
    {"lr-decay-ratio", 0, .kind = FSDP_OPTION_SHARE, FIELD(lr_decay_ratio), .real_low = 0, .real_high = 1,
     .argument = "P", .fallback = "10%",
     .help = "with --lr-schedule wsd, share of all steps in which the learning rate decays"},
    {"seed", 0, INT(seed, 0, INT64_MAX), .fallback = "0",
     .help = "seed of new weights, data order, stochastic rounding and samples"},
    {"sample-every", 0, INT(sample_every, 0, STEPS_MAX), .fallback = "0",
     .help = "print a text that continues --prompt every N steps, and at the end (0: never)"},
    {"prompt", 0, TEXT(prompt), .argument = "TEXT", .help = "the text that samples continue"},
    {"prompt-tokens", 0, TEXT(prompt_tokens), .argument = "N,N,...",
     .help = "the same as tokens; what is sampled is then printed as tokens"},
    {"chat-template", 0, TEXT(chat_template), .fallback = "plain", .argument = "plain|auto|chatml|FILE",
     .help = "--prompt as it is, or as a user's message, which the model is to answer: by the chat template "
             "of the run's data, the model or its tokenizer, by ChatML or a file's"},
    {"max-new-tokens", 0, INT(max_new_tokens, 1, 1 << 24), .fallback = "64",
     .help = "tokens of a sample, at most"},
    {"temperature", 0, REAL(temperature, 0, 1e6), .fallback = "0",
     .help = "draw each token of a sample from its probabilities at this temperature (0: take the most "
             "probable)"},
    {"top-p", 0, REAL(top_p, 0, 1), .open_low = true, .fallback = "1",
     .help = "with --temperature, draw from the fewest tokens that have this probability together"},
    {"weight-decay", 0, REAL(weight_decay, 0, 1e6), .fallback = "0.01", .help = "AdamW's weight decay"},
    {"decay", 0, CHOICE(decay, decays), .fallback = "all", .argument = "all|matrices",
     .help = "what decays: every parameter, or none but matrices, so that norms and biases do not"},
    {"beta1", 0, REAL(beta1, 0, 1), .open_high = true, .fallback = "0.9", .help = "AdamW's first decay rate"},
    {"beta2", 0, REAL(beta2, 0, 1), .open_high = true, .fallback = "0.999",
     .help = "AdamW's second decay rate"},
    {"eps", 0, REAL(eps, 0, 1), .open_low = true, .fallback = "1e-8", .help = "AdamW's epsilon"},
    {"grad-clip", 0, REAL(grad_clip, 0, 1e30), .fallback = "1.0", .help = "largest gradient norm (0: off)"},
    {"skip-grad-norm", 0, REAL(skip_grad_norm, 0, 1e30), .open_low = true,
     .help = "skip the update of a step whose gradient norm is above X (default: only if it is not finite)"},
    {"max-skipped", 0, INT(max_skipped, 1, STEPS_MAX), .fallback = "3",
     .help = "end the run after N skipped steps in a row"},
    {"router-aux-coef", 0, REAL(router_aux_coef, 0, 1e6),
     .help = "of routed models, how much the loss counts that is least where all experts are used alike (0: "
             "none; default: as config.json says)"},
    {"aux-loss", 0, CHOICE(aux_loss, router_auxes), .argument = "micro|sequence|rank",
     .help = "over which rows that loss is taken: all of a micro-batch, each sequence's, or each "
             "rank's (default: micro)"},
    {"router-z-coef", 0, REAL(router_z_coef, 0, 1e6),
     .help = "how much the mean square of the logarithm of the router's softmax denominator counts"},
    {"router-bias-rate", 0, REAL(router_bias_rate, 0, 1), .fallback = "0",
     .help = "how far a step moves a router's correction bias towards even use of the experts (0: not)"},
    {"router-dtype", 0, CHOICE(router_dtype, router_dtypes), .fallback = "model", .argument = "model|fp32",
     .help = "what routers' logits are rounded to"},
    {"routing-record", 0, TEXT(routing_record), .argument = "FILE",
     .help = "write the experts that each token goes to into FILE, on CPU ranks"},
    {"routing-replay", 0, TEXT(routing_replay), .argument = "FILE",
     .help =
         "send each token to the experts that FILE of --routing-record has; their weights stay the model's "
         "own"},
    {"strategy", 0, CHOICE(strategy, fsdp_strategy_words), .fallback = "full",
     .argument = "full|grad_op|zero1|no|hybrid",
     .help = "what is sharded; also FULL_SHARD, zero3, SHARD_GRAD_OP, zero2, SHARD_OPTIMIZER, NO_SHARD, ddp, "
             "zero0, HYBRID_SHARD, hsdp"},
    {"wrap", 0, .kind = FSDP_OPTION_WRAP, FIELD(wrap), .fallback = "size",
     .argument = "size|block|none|module:NAME,...",
     .help = "which modules are gathered and freed as one unit"},
    {"numel-to-wrap", 0, INT(numel_to_wrap, 1, INT64_MAX), .fallback = "100_000_000",
     .help = "threshold of --wrap size"},
    {"mesh", 0, .kind = FSDP_OPTION_MESH, FIELD(mesh), .argument = "data=R,fsdp=F,...",
     .help =
         "axes with sizes, the last one fastest, or the sizes of fsdp and tensor alone (default: from the "
         "strategy)"},
    {"tensor-parallel", 0, INT(tensor_parallel, 1, RANKS_MAX), .fallback = "1",
     .help = "ranks that divide each layer's weights among them: the mesh's axis tensor"},
    {"sequence-parallel", 0, FLAG(sequence_parallel), .fallback = "on",
     .help = "with tensor parallelism, divide norms and the residual stream among these ranks too, by the "
             "sequence"},
    {"context-parallel", 0, INT(context_parallel, 1, RANKS_MAX), .fallback = "1",
     .help = "ranks that divide each sequence among them: the mesh's axis context"},
    {"expert-parallel", 0, INT(expert_parallel, 1, RANKS_MAX), .fallback = "1",
     .help = "ranks that divide each layer's routed experts among them, and gather each other's rows for "
             "these: the mesh's axis expert"},
    {"expert-blocks", 0, INT(expert_blocks, 1, 1 << 16), .fallback = "1",
     .help = "units that a layer's experts form, gathered one after the other: as many parts of the experts "
             "that a rank has"},
    {"expert-capacity", 0, REAL(expert_capacity, 0, 1e6), .fallback = "0",
     .help =
         "where experts are divided: rows planned for a rank's experts, as a multiple of those that it has "
         "if all get as many; the rest takes further waves (0: all that they can be sent, if that fits, or "
         "else 2, 1.25 or 1)"},
    {"imbalance", 0, REAL(imbalance, 1, 1e6), .fallback = "1", .programs = FSDP_PROGRAM_PLAN,
     .help = "for prices: rows of the rank whose experts get most, as a multiple of the mean"},
    {"sharding", 0, TEXT(sharding), .argument = "FILE|fsdp|fsdp-tp|fsdpv2",
     .help = "placements of weights and module outputs by name: a YAML file, every weight's first (fsdp) or "
             "largest (fsdpv2) dimension on fsdp, or tensor parallelism as well (fsdp-tp) (default: from the "
             "strategy)"},
    {"shard", 0, .kind = FSDP_OPTION_REPEAT, FIELD(shard), .argument = "NAME=SPEC",
     .help = "one more line of --sharding, or another one for its name; several times, or separated by ;"},
    {"extra-data-axis", 0, TEXT(extra_data_axis), .argument = "AXIS",
     .help = "with --sharding fsdp, fsdp-tp or fsdpv2: cut the batch over this axis too"},
    {"op-strategies", 0, TEXT(op_strategies), .argument = "FILE",
     .help = "slice counts of a few operators, from which those of all others and all placements follow: a "
             "YAML file"},
    {"cpu-offload", 0, FLAG(cpu_offload),
     .help = "keep parameters, gradients and optimizer state in host memory"},
    {"recompute", 0, TEXT(recompute), .fallback = "none", .argument = "none|block|block:K|OPS|auto",
     .help = "what the backward computes again: layers, the first K of them, or ops such as rmsnorm,swiglu"},
    {"offload-activations", 0, TEXT(offload_activations), .fallback = "none",
     .argument = "none|block_inputs|OPS|auto",
     .help = "saved activations that wait in host memory until their backward"},
    {"prefetch", 0, INT(prefetch, 0, 1000), .fallback = "1", .help = "modules gathered ahead (0: off)"},
    {"accumulate", 0, CHOICE(accumulate, fsdp_accumulate_words), .fallback = "reduce",
     .argument = "reduce|local",
     .help = "reduce every micro-batch's gradients, or keep them whole until the last (default under zero1: "
             "local)"},
    {"param-dtype", 0, CHOICE(param_dtype, fsdp_dtype_words), .argument = "bf16|fp32",
     .help = "dtype to compute and gather in (default: bf16 on a GPU, fp32 on a CPU)"},
    {"reduce-dtype", 0, CHOICE(reduce_dtype, fsdp_dtype_words), .fallback = "fp32", .argument = "bf16|fp32",
     .help =
         "dtype to reduce gradients in; bf16 with bf16 states also sums micro-batches in bf16 on one rank"},
    {"master-dtype", 0, CHOICE(master_dtype, fsdp_dtype_words), .fallback = "fp32", .argument = "fp32|bf16",
     .help = "dtype of master parameters; bf16 is rounded stochastically"},
    {"moment-dtype", 0, CHOICE(moment_dtype, fsdp_dtype_words), .fallback = "fp32", .argument = "fp32|bf16",
     .help = "dtype of AdamW's moments"},
    {"backend", 0, CHOICE(backend, backends), .fallback = "auto", .argument = "auto|cpu|cuda",
     .help = "the device to train on"},
    {"attention", 0, CHOICE(attention, attentions), .fallback = "auto", .argument = "auto|wgmma|mma|general",
     .help = "attention's kernel on a GPU: warpgroups (compute capability 9.0 alone), tensor cores, or what "
             "takes every shape (auto: the first of them that can run)"},
    {"allow-shared-gpu", 0, .knob = true, FLAG(allow_shared_gpu),
     .help = "let several ranks use one GPU, over sockets (tests only)"},
    {"nccl-register", 0, CHOICE(nccl_register, nccl_registers), .fallback = "auto", .argument = "auto|on|off",
     .help = "allocate the GPU's arena from NCCL and register it, from NCCL 2.28 on as a symmetric window "
             "(auto: only so, where all ranks are on one node)"},
    {"nccl-ctas", 0, .knob = true, CHOICE(nccl_ctas, nccl_ctas), .fallback = "auto",
     .argument = "auto|default",
     .help = "multiprocessors that collectives on registered buffers take (auto: for gathers none, in "
             "windows, and few for others; default: as NCCL decides)"},
    {"multiprocessors", 0, INT(multiprocessors, 0, 1024), .fallback = "0",
     .help = "multiprocessors for which attention's work is cut into blocks (0: the GPU's, or the profile's; "
             "without either an H100's)"},
    {"gemm-multiprocessors", 0, .knob = true, .kind = FSDP_OPTION_INT, FIELD(gemm_multiprocessors), .low = 0,
     .high = 1024, .choices = multiprocessors, .fallback = "auto", .argument = "auto|N",
     .help = "cut products for N of the GPU's multiprocessors, where kernels of collectives take the others "
             "(auto, 0: for all; what is faster is not measured)"},
    {"check-replicas", 0, INT(check_replicas, 0, STEPS_MAX), .fallback = "0",
     .help = "compare replicas' parameters and moments every N steps (0: only at saves)"},
    {"comm-timeout", 0, INT(comm_timeout, 1, 1000000), .fallback = "300",
     .help = "end the job after N seconds without progress, or without a heartbeat of a rank"},
    {"bind", 0, FLAG(bind), .fallback = "on",
     .help = "bind each rank to its share of the cores, next to its GPU"},
    {"threads", 0, INT(threads, 1, 4096), .help = "CPU threads per rank (default: its share of the cores)"},
    {"save-dir", 0, TEXT(save_dir), .fallback = "outputs", .argument = "DIR",
     .help = "where experiments are kept"},
    {"experiment-name", 'e', TEXT(experiment), .argument = "NAME",
     .help = "folder of this run; without it nothing is saved"},
    {"ckpt-freq", 0, INT(ckpt_freq, 0, STEPS_MAX), .fallback = "500",
     .help = "save every N steps (0: never)"},
    {"ckpt-keep", 0, INT(ckpt_keep, 0, 1000000), .fallback = "3",
     .help = "newest checkpoints to keep (0: all)"},
    {"ckpt-best", 0, CHOICE(ckpt_best, bests), .programs = FSDP_PROGRAM_TRAIN | FSDP_PROGRAM_PLAN,
     .fallback = "off", .argument = "off|eval_loss",
     .help = "save after each evaluation that is the best so far, and keep the best one beside the newest"},
    {"ckpt-async", 0, CHOICE(ckpt_async, asyncs), .fallback = "auto", .argument = "auto|on|off",
     .help = "save from a snapshot in host memory while training continues (auto: if it fits)"},
    {"resume", 0, TEXT(resume), .fallback = "auto", .argument = "auto|off|step-N|best|PATH",
     .help =
         "resume from the experiment's newest checkpoint, from none, from that of a step or with the least "
         "evaluation loss, or from PATH"},
    {"overwrite", 0, FLAG(overwrite), .programs = FSDP_PROGRAM_TRAIN | FSDP_PROGRAM_PLAN,
     .help = "with --resume off, remove the checkpoints and the log that the experiment has"},
    {"resume-schedule", 0, CHOICE(resume_schedule, resume_schedules), .fallback = "continue",
     .argument = "continue|restart",
     .help = "the learning-rate schedule of a resumed run: as it was, or a new one over the remaining steps"},
    {"memory-limit", 0, SIZE(memory_limit),
     .help = "refuse a plan that needs more device memory, on a GPU the libraries included (default: its "
             "memory)"},
    {"host-memory-limit", 0, SIZE(host_memory_limit), .help = "refuse a plan that needs more host memory"},
    {"memory-margin", 0, SHARE(memory_margin), .fallback = "3%",
     .help = "share of device memory that --search and --auto leave free; a plan for which it is given takes "
             "none of it to save waits"},
    {"log-freq", 0, INT(log_freq, 1, STEPS_MAX), .fallback = "10", .help = "print a line every N steps"},
    {"log", 0, TEXT(log), .argument = "FILE",
     .help = "write one JSON object per step (default: in the experiment's folder)"},
    {"rank-logs", 0, TEXT(rank_logs), .argument = "DIR",
     .help = "write each rank's output to DIR/rank-N.log too, and the job's first failure to DIR/error.json"},
    {"tensorboard", 0, TEXT(tensorboard), .argument = "DIR",
     .help = "write the log's numbers as TensorBoard event files"},
    {"memory-profile", 0, TEXT(memory_profile), .argument = "FILE",
     .help = "write the memory over one step, as .json or .svg"},
    {"trace", 0, TEXT(trace), .argument = "FILE",
     .help = "write a timeline of all ranks' streams in the Trace Event format (fsdp_plan: with --profile, a "
             "simulated one)"},
    {"trace-steps", 0, .kind = FSDP_OPTION_STEPS, FIELD(trace_steps), .high = STEPS_MAX, .fallback = "3:4",
     .argument = "A:B",
     .help = "steps of which fsdp_train writes a timeline, counted from the first step of the run"},
    {"measure", 0, .knob = true, FLAG(measure), .fallback = "on",
     .help = "trace the bytes accessed in each step, to measure valley and peak"},
    {"poison", 0, .knob = true, FLAG(poison),
     .help = "fill free memory with signalling NaNs (checks the plan)"},
    {"self-test", 0, FLAG(self_test),
     .help = "train a narrow model on threads, cut as in the plan, and compare it with one rank: losses and "
             "gradients (fsdp_train: before the first step)"},
    {"print-model", 0, FLAG(print_model), .help = "print the wrapped module tree"},
    {"print-program", 0, FLAG(print_program), .help = "print the step program"},
    {"print-sharding", 0, FLAG(print_sharding),
     .help = "print every placement as a file for --sharding (fsdp_plan: nothing else)"},
    {"print-config", 0, FLAG(print_config), .programs = FSDP_PROGRAM_TRAIN,
     .help = "print the options as a file for --config, defaults as comments, and stop"},
    {"print-strategies", 0, FLAG(print_strategies), .programs = FSDP_PROGRAM_PLAN,
     .help = "with --op-strategies or --sharding, print every operator's strategy, who decided it, and what "
             "is redistributed, and nothing else"},
    {"graph", 0, TEXT(graph), .programs = FSDP_PROGRAM_PLAN, .argument = "FILE",
     .help = "instead of a model, a network of operators for --op-strategies: a YAML file"},
    {"profile", 0, TEXT(profile), .argument = "NAME|FILE",
     .help =
         "the machine to price steps for: a shipped profile, such as h100-sxm, or a file that fsdp_profile "
         "wrote"},
    {"price", 0, FLAG(price), .programs = FSDP_PROGRAM_PLAN,
     .help =
         "with --profile, print what a step takes, what bounds it, and how that changes with each setting"},
    {"tokens", 0, INT(tokens, 1, INT64_MAX / 2), .programs = FSDP_PROGRAM_PLAN,
     .help = "with --price, --search or --machines, the tokens of the whole run, of which hours and cost are "
             "printed (default: of --data and --num-epochs, or of --max-steps)"},
    {"gpu-hour", 0, REAL(gpu_hour, 0, 1e9), .open_low = true, .programs = FSDP_PROGRAM_PLAN,
     .help = "what an hour of one GPU costs, in any currency"},
    {"machines", 0, TEXT(machines), .programs = FSDP_PROGRAM_PLAN, .argument = "LIST",
     .help =
         "ranks and profiles, such as \"16 a100-40, 8 h100-sxm\": search the best plan for each, or price "
         "the given one with --price, and print one table"},
    {"search", 0, FLAG(search), .programs = FSDP_PROGRAM_PLAN,
     .help = "with --profile, find the fastest plans that fit: options that are given stay, all others of a "
             "plan are searched"},
    {"save-plan", 0, TEXT(save_plan), .programs = FSDP_PROGRAM_PLAN, .argument = "FILE",
     .help = "with --search, write the best plan as a YAML file for --config"},
    {"auto", 0, FLAG(auto_plan), .programs = FSDP_PROGRAM_TRAIN,
     .help = "choose all options of the plan that are not given for this machine, which is measured at the "
             "start unless --profile is given"},
    {"global-batch", 0, INT(global_batch, 1, RANKS_MAX * 1000),
     .help = "with --search or --auto, sequences per step over all ranks (default: as without them)"},
    {"dry-run", 0, FLAG(dry_run), .help = "stop after planning"},
    {"ranks", 0, INT(ranks, 1, RANKS_MAX), .fallback = "1",
     .help = "ranks to plan for; fsdp_train, which mpirun gives its ranks, refuses another number"},
    {"ranks-per-node", 0, INT(ranks_per_node, 1, RANKS_MAX),
     .help = "ranks per node to plan for; fsdp_train refuses another number (default: at most 8)"},
    {"json", 0, FLAG(json), .programs = FSDP_PROGRAM_PLAN | FSDP_PROGRAM_EVAL,
     .help = "print the plan, or what fsdp_eval found, as one JSON object"},
    {"compare", 0, LIST(compare), .programs = FSDP_PROGRAM_PLAN, .argument = "FILE ...",
     .help = "plan each of these YAML files of options and print one table"},
    {"set", 0, .kind = FSDP_OPTION_SET, FIELD(set), .argument = "KEY=VALUE",
     .help = "a knob of experiments, one that --help all lists last; several times, or separated by ;"},
    {"config", 0, TEXT(config), .argument = "FILE", .help = "YAML file of options; the command line wins"},
    {"help", 'h', CHOICE(help, helps), .bare = "on", .fallback = "off", .argument = "all",
     .help = "print the options by task and stop; all: with what each does"},
    {"version", 0, FLAG(version), .help = "print the version and stop"},
    {0},
};

_Static_assert(sizeof fsdp_option_table / sizeof *fsdp_option_table - 1 <= FSDP_OPTION_MAX,
               "fsdp_options.place has a row for every option");

const fsdp_option_row *fsdp_option_find(const char *name) {
  for (const fsdp_option_row *row = fsdp_option_table; row->name; row++)
    if (strcmp(row->name, name) == 0) return row;
  return NULL;
}

bool fsdp_option_is_one_of(const char *name, const char *const *names) {
  for (; *names; names++)
    if (strcmp(name, *names) == 0) return true;
  return false;
}

// Of the options of fsdp_train and fsdp_plan, those that an evaluation has too.
static const char of_evaluations[] =
    " model init data tokenizer resize-embeddings packing long-documents document-mask document-separator "
    "loss-mean "
    "router-dtype verify-data compare-files prompt prompt-tokens chat-template max-new-tokens "
    "temperature top-p seed batch-size seq-length strategy wrap numel-to-wrap mesh "
    "tensor-parallel sequence-parallel context-parallel expert-parallel sharding shard extra-data-axis "
    "expert-blocks expert-capacity op-strategies cpu-offload prefetch param-dtype backend attention "
    "allow-shared-gpu "
    "nccl-register nccl-ctas multiprocessors gemm-multiprocessors comm-timeout bind threads "
    "save-dir experiment-name resume memory-limit host-memory-limit rank-logs measure poison "
    "print-model print-program print-sharding dry-run set config help version ";

static const char of_planners[] =
    " ranks ranks-per-node mesh tensor-parallel context-parallel expert-parallel sequence-parallel "
    "batch-size seq-length grad-accum global-batch strategy wrap numel-to-wrap prefetch accumulate recompute "
    "offload-activations cpu-offload param-dtype reduce-dtype master-dtype moment-dtype grad-clip backend "
    "memory-limit host-memory-limit memory-margin expert-blocks expert-capacity ";

static bool is_listed(const fsdp_option_row *row, const char *names) {
  char name[64];
  snprintf(name, sizeof name, " %s ", row->name);
  return strstr(names, name) != NULL;
}

bool fsdp_option_belongs(const fsdp_option_row *row, fsdp_program_kind program) {
  if (program == FSDP_PROGRAM_PLANNER) return is_listed(row, of_planners);
  if (program == FSDP_PROGRAM_EVAL && is_listed(row, of_evaluations)) return true;
  return (!row->programs && program != FSDP_PROGRAM_EVAL) || row->programs & (int)program;
}

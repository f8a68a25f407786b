/*
 * NCCL's interface for tuner plugins, versions 2 to 7, for the tests' own plugins and harnesses.
 *
 * Written from its documentation, in this project's words; the order of members, their types and the numbers are NCCL's.
 * `abi.rs` beside the host says the same in Rust.
 */
#ifndef RINGFOLD_TESTS_TUNER_H
#define RINGFOLD_TESTS_TUNER_H

#include <stddef.h>
#include <stdint.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_USAGE = 5 };
enum { BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE };
enum { TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT, ALGORITHMS };
enum { LL, LL128, SIMPLE, PROTOCOLS };
enum { WARN = 2, INFO = 3, TRACE = 5 };
#define TUNING 0x40ul
#define IGNORED (-1.0f)

typedef void logger_t(unsigned int level, unsigned long subsystems, const char *file, int line, const char *format, ...);

typedef struct {
    int count, ranks_min, ranks_max;
} domains_t;

#define CONSTANTS(ROWS)                                                                                                    \
    struct {                                                                                                               \
        double base[ALGORITHMS][PROTOCOLS], links[3][ALGORITHMS][PROTOCOLS];                                               \
        double ll[ROWS][3], ring_ll128[ROWS][3], tree_ll128[ROWS][3], tree[ROWS][3], nvls_tree[ROWS][3];                    \
    }
typedef CONSTANTS(4) constants_t;
typedef CONSTANTS(5) constants_v7_t;

typedef int init_t(size_t ranks, size_t nodes, logger_t *log, void **context);
typedef int init_v5_t(void **context, uint64_t id, size_t ranks, size_t nodes, logger_t *log, domains_t *, constants_t *);
typedef int init_v7_t(void **context, uint64_t id, size_t ranks, size_t nodes, logger_t *log, domains_t *, constants_v7_t *);
typedef int pick_t(void *context, int function, size_t bytes, int collnet, int nvls, int group, int *algorithm,
                   int *protocol, int *channels);
typedef int price_v3_t(void *context, int function, size_t bytes, int group, float **table, int algorithms, int protocols,
                       int *channels);
typedef int price_t(void *context, int function, size_t bytes, int group, float **table, int algorithms, int protocols,
                    int registered, int *channels);
typedef int chunk_t(void *context, int function, size_t bytes, int algorithm, int protocol, int channels, size_t *chunk);
typedef int finish_t(void *context);

typedef struct {
    const char *name;
    init_t *init;
    pick_t *pick;
    finish_t *finish;
} tuner_v2_t;

typedef struct {
    const char *name;
    init_t *init;
    price_v3_t *price;
    finish_t *finish;
} tuner_v3_t;

typedef struct {
    const char *name;
    init_t *init;
    price_t *price;
    finish_t *finish;
} tuner_v4_t;

typedef struct {
    const char *name;
    init_v5_t *init;
    price_t *price;
    finish_t *finish;
} tuner_v5_t;

typedef struct {
    const char *name;
    init_v5_t *init;
    price_t *price;
    finish_t *finish;
    chunk_t *chunk;
} tuner_v6_t;

typedef struct {
    const char *name;
    init_v7_t *init;
    price_t *price;
    finish_t *finish;
    chunk_t *chunk;
} tuner_v7_t;

#endif

/*
 * A plugin for the host's tests. VERSION is the interface's version that it speaks, BEHAVIOUR what it does when asked.
 */
#include <math.h>
#include <stdlib.h>

#include "tuner.h"

enum { PREFERS, TALKS_NONSENSE, FAILS, DOES_NOT_BEGIN, IS_HOLLOW };

/* What the tests read: how many communicators began and ended, and what was wrong with a call, if anything. */
int begun, ended, inside;
const char *complaint;

#define EXPECT(holds)                                                                                                      \
    if (!(holds))                                                                                                          \
    complaint = #holds

struct context {
    logger_t *log;
    const constants_t *constants;
};

static int begin(void **context, size_t ranks, size_t nodes, logger_t *log, const void *constants)
{
    struct context *mine = calloc(1, sizeof *mine);

    EXPECT(ranks == 4 && nodes == 2);
    mine->log = log;
    mine->constants = constants;
    log(INFO, TUNING, __FILE__, __LINE__, "began with %zu ranks, %s and %.2f", ranks, "words", 1.5);
    log(TRACE, TUNING, __FILE__, __LINE__, "%s", (const char *)1); /* Not wanted, so it must not be read. */
    *context = mine;
    begun++;
    return BEHAVIOUR == DOES_NOT_BEGIN ? INVALID_USAGE : SUCCESS;
}

/* What versions 3 to 7 have in common; `table` is one array. */
static int answer(struct context *context, int function, size_t bytes, int group, float *table, int *channels)
{
    float (*costs)[PROTOCOLS] = (float (*)[PROTOCOLS])table;

    EXPECT(__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST) == 1);
    EXPECT(function == ALL_REDUCE && bytes == 4096 && group == 3 && *channels == 0);
    EXPECT(costs[TREE][SIMPLE] == 5 && costs[RING][SIMPLE] == 9 && costs[RING][LL] == 7 && costs[TREE][LL] == IGNORED);
    EXPECT(costs[NVLS][SIMPLE] == IGNORED && costs[PAT][SIMPLE] == IGNORED && costs[RING][LL128] == IGNORED);
    if (context->constants)
        EXPECT(context->constants->base[TREE][LL] > 0 && context->constants->tree[3][2] > 0);
    switch (BEHAVIOUR) {
    case PREFERS:
    case FAILS:
        costs[RING][SIMPLE] = 0;
        *channels = 3;
        break;
    case TALKS_NONSENSE:
        costs[RING][SIMPLE] = NAN;
        costs[RING][LL] = -5;
        costs[TREE][LL] = 0;
        costs[NVLS][SIMPLE] = 0;
        costs[TREE][SIMPLE] = 2;
        *channels = -7;
        break;
    default:
        break;
    }
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    return BEHAVIOUR == FAILS ? SYSTEM_ERROR : SUCCESS;
}

static int finish(void *context)
{
    free(context);
    ended++;
    return SUCCESS;
}

#if VERSION <= 4
static int init(size_t ranks, size_t nodes, logger_t *log, void **context)
{
    return begin(context, ranks, nodes, log, NULL);
}
#elif VERSION <= 6
static int init(void **context, uint64_t id, size_t ranks, size_t nodes, logger_t *log, domains_t *domains,
                constants_t *constants)
{
    EXPECT(id == 42 && domains->count == 2 && domains->ranks_min == 1 && domains->ranks_max == 3);
    return begin(context, ranks, nodes, log, constants);
}
#else
static int init(void **context, uint64_t id, size_t ranks, size_t nodes, logger_t *log, domains_t *domains,
                constants_v7_t *constants)
{
    EXPECT(id == 42 && domains->count == 2 && domains->ranks_min == 1 && domains->ranks_max == 3);
    EXPECT(constants->nvls_tree[4][2] > 0);
    /* Up to its first member by generation of GPU it is laid out as before. */
    return begin(context, ranks, nodes, log, constants);
}
#endif

#if VERSION == 2
static int ask(void *context, int function, size_t bytes, int collnet, int nvls, int group, int *algorithm, int *protocol,
               int *channels)
{
    EXPECT(context && function == ALL_REDUCE && bytes == 4096 && group == 3 && !collnet && !nvls && !*channels);
    EXPECT(*algorithm == -1 && *protocol == -1);
    *algorithm = BEHAVIOUR == TALKS_NONSENSE ? NVLS : RING;
    *protocol = BEHAVIOUR == TALKS_NONSENSE ? 99 : SIMPLE;
    *channels = BEHAVIOUR == TALKS_NONSENSE ? -7 : 3;
    return BEHAVIOUR == FAILS ? SYSTEM_ERROR : SUCCESS;
}
#elif VERSION == 3
static int ask(void *context, int function, size_t bytes, int group, float **table, int algorithms, int protocols,
               int *channels)
{
    EXPECT(algorithms == ALGORITHMS && protocols == PROTOCOLS);
    return answer(context, function, bytes, group, (float *)table, channels);
}
#else
static int ask(void *context, int function, size_t bytes, int group, float **table, int algorithms, int protocols,
               int registered, int *channels)
{
    EXPECT(algorithms == ALGORITHMS && protocols == PROTOCOLS && registered == 1);
    return answer(context, function, bytes, group, (float *)table, channels);
}
#endif

#define ASK (BEHAVIOUR == IS_HOLLOW ? NULL : ask)

#if VERSION == 2
const tuner_v2_t ncclTunerPlugin_v2 = {"two", init, ASK, finish};
#elif VERSION == 3
const tuner_v3_t ncclTunerPlugin_v3 = {"three", init, ASK, finish};
#elif VERSION == 4
const tuner_v4_t ncclTunerPlugin_v4 = {"four", init, ASK, finish};
#elif VERSION == 5
const tuner_v5_t ncclTunerPlugin_v5 = {"five", init, ASK, finish};
#elif VERSION == 6
const tuner_v6_t ncclTunerPlugin_v6 = {"six", init, ASK, finish, NULL};
/* An older version beside it, which must not be taken. */
const tuner_v2_t ncclTunerPlugin_v2 = {"two", NULL, NULL, NULL};
#elif VERSION == 7
const tuner_v7_t ncclTunerPlugin_v7 = {"seven", init, ASK, finish, NULL};
#endif

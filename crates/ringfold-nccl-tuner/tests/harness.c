/*
 * Calls a tuner plugin through C as NCCL does: with one array as the cost table, and NCCL's logger, constants and domains.
 *
 *     harness LIBRARY VERSION RANKS NODES [ROWS] <questions
 *
 * A question is a line `function bytes group registered usable`, where bit row*3+column of the hexadecimal `usable` says
 * whether an entry of the table can be chosen. The answer is a line `code channels row/column=cost...` of the entries that
 * changed. Version 2 answers with a way and no table; as in NCCL, that entry becomes 0 if it can be chosen. What the plugin
 * logs goes to standard error.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tuner.h"

#define CANARY 123.0f

static void write_log(unsigned int level, unsigned long subsystems, const char *file, int line, const char *format, ...)
{
    va_list arguments;

    (void)file;
    (void)line;
    fprintf(stderr, "%s %#lx ", level == WARN ? "WARN" : level == INFO ? "INFO" : "TRACE", subsystems);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

static void check(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "harness: %s\n", what);
    exit(2);
}

/* A plugin of one version. */
static int version;
static void *tuner;
static void *context;

static int begin(size_t ranks, size_t nodes)
{
    static domains_t domains = {2, 1, 4};
    static union {
        constants_t four;
        constants_v7_t five;
    } constants, untouched;
    int code;

    memset(&constants, 0x3f, sizeof constants);
    untouched = constants;
    switch (version) {
    case 2:
        code = ((tuner_v2_t *)tuner)->init(ranks, nodes, write_log, &context);
        break;
    case 3:
        code = ((tuner_v3_t *)tuner)->init(ranks, nodes, write_log, &context);
        break;
    case 4:
        code = ((tuner_v4_t *)tuner)->init(ranks, nodes, write_log, &context);
        break;
    case 5:
        code = ((tuner_v5_t *)tuner)->init(&context, 7, ranks, nodes, write_log, &domains, &constants.four);
        break;
    case 6:
        code = ((tuner_v6_t *)tuner)->init(&context, 7, ranks, nodes, write_log, &domains, &constants.four);
        break;
    default:
        code = ((tuner_v7_t *)tuner)->init(&context, 7, ranks, nodes, write_log, &domains, &constants.five);
        break;
    }
    printf("%d %s\n", code, memcmp(&constants, &untouched, sizeof constants) ? "edits constants" : "keeps constants");
    return code;
}

static int ask(int function, size_t bytes, int group, int registered, float *table, int rows, int *channels)
{
    float **costs = (float **)table;
    int algorithm = -1, protocol = -1, code;

    switch (version) {
    case 2:
        code = ((tuner_v2_t *)tuner)
                   ->pick(context, function, bytes, table[COLLNET_CHAIN * PROTOCOLS + SIMPLE] != IGNORED,
                          table[NVLS * PROTOCOLS + SIMPLE] != IGNORED || table[NVLS_TREE * PROTOCOLS + SIMPLE] != IGNORED,
                          group, &algorithm, &protocol, channels);
        if (algorithm >= 0 && protocol >= 0 && table[algorithm * PROTOCOLS + protocol] != IGNORED)
            table[algorithm * PROTOCOLS + protocol] = 0;
        return code;
    case 3:
        return ((tuner_v3_t *)tuner)->price(context, function, bytes, group, costs, rows, PROTOCOLS, channels);
    case 4:
        return ((tuner_v4_t *)tuner)->price(context, function, bytes, group, costs, rows, PROTOCOLS, registered, channels);
    case 5:
        return ((tuner_v5_t *)tuner)->price(context, function, bytes, group, costs, rows, PROTOCOLS, registered, channels);
    case 6:
        return ((tuner_v6_t *)tuner)->price(context, function, bytes, group, costs, rows, PROTOCOLS, registered, channels);
    default:
        return ((tuner_v7_t *)tuner)->price(context, function, bytes, group, costs, rows, PROTOCOLS, registered, channels);
    }
}

static void answer(const char *line, int rows)
{
    float table[ALGORITHMS * PROTOCOLS + 1], before[ALGORITHMS * PROTOCOLS + 1];
    int function, group, registered, channels = 0, i;
    unsigned long usable;
    size_t bytes;

    check(sscanf(line, "%d %zu %d %d %lx", &function, &bytes, &group, &registered, &usable) == 5, "no question");
    for (i = 0; i < rows * PROTOCOLS; i++)
        table[i] = usable >> i & 1 ? 10.0f + i : IGNORED;
    for (; i <= ALGORITHMS * PROTOCOLS; i++)
        table[i] = CANARY;
    memcpy(before, table, sizeof table);
    printf("%d", ask(function, bytes, group, registered, table, rows, &channels));
    printf(" %d", channels);
    for (i = 0; i < rows * PROTOCOLS; i++)
        if (memcmp(&table[i], &before[i], sizeof *table))
            printf(" %d/%d=%g", i / PROTOCOLS, i % PROTOCOLS, table[i]);
    putchar('\n');
    for (; i <= ALGORITHMS * PROTOCOLS; i++)
        check(table[i] == CANARY, "the plugin wrote behind the table");
}

/* What NCCL never does, and a plugin should survive. */
static void abuse(void)
{
    void *kept = context;

    context = NULL;
    answer("4 4096 1 0 1fffff", ALGORITHMS);
    context = kept;
    answer("-1 4096 1 0 1fffff", ALGORITHMS);
    answer("99 4096 -5 7 1fffff", ALGORITHMS);
    answer("4 18446744073709551615 1 0 0", ALGORITHMS);
}

int main(int count, char **words)
{
    char symbol[32], line[128];
    void *library;
    int rows, has_abused = 0;

    check(count >= 5, "LIBRARY VERSION RANKS NODES [ROWS]");
    version = atoi(words[2]);
    rows = count > 5 ? atoi(words[5]) : ALGORITHMS;
    library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fprintf(stderr, "%s\n", dlerror());
    check(library != NULL, "no library");
    snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", version);
    tuner = dlsym(library, symbol);
    check(tuner != NULL, "no symbol");
    printf("%s\n", *(const char **)tuner);
    if (begin(strtoul(words[3], NULL, 10), strtoul(words[4], NULL, 10)))
        return 1;
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "abuse\n")) {
            abuse();
            has_abused = 1;
        } else {
            answer(line, rows);
        }
    }
    /* In all versions it is the fourth member. */
    if (has_abused)
        check(((tuner_v4_t *)tuner)->finish(NULL) == SUCCESS, "ending nothing fails");
    check(((tuner_v4_t *)tuner)->finish(context) == SUCCESS, "ending fails");
    check(dlclose(library) == 0, "it cannot be unloaded");
    return 0;
}

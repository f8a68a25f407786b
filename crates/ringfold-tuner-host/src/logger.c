/* The one thing of the plugins' interface that Rust cannot be: a function with as many arguments as printf has. */

#include <stdarg.h>
#include <stdio.h>

/* What a line of the log may have, with its end; longer ones are cut. */
#define LINE_BYTES 1024

/* Whether lines of a level are written, and what writes them. */
typedef int wanted_t(unsigned int level);
typedef void write_t(unsigned int level, const char *line);

static wanted_t *wanted;
static write_t *write_line;

static void log_line(unsigned int level, unsigned long subsystems, const char *file, int line, const char *format, ...)
{
    char text[LINE_BYTES];
    va_list arguments;

    (void)subsystems;
    (void)file;
    (void)line;
    if (format == NULL || !wanted(level))
        return;
    va_start(arguments, format);
    if (vsnprintf(text, sizeof text, format, arguments) >= 0)
        write_line(level, text);
    va_end(arguments);
}

typedef void logger_t(unsigned int, unsigned long, const char *, int, const char *, ...);

/* The logger that plugins are given. Called once, before any of them is. */
logger_t *ringfold_plugin_logger(wanted_t *is_wanted, write_t *writes)
{
    wanted = is_wanted;
    write_line = writes;
    return log_line;
}

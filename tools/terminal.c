#include "tools/terminal.h"

#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

keel_report_style keel_terminal_style(FILE *out) {
    keel_report_style style = {.width = 100};
    struct winsize size;
    bool terminal = isatty(fileno(out)) == 1;
    const char *name = getenv("TERM"), *no_colour = getenv("NO_COLOR");
    setlocale(LC_CTYPE, "");
    style.ascii = strcmp(nl_langinfo(CODESET), "UTF-8") != 0;
    style.colour = terminal && !(no_colour && no_colour[0]) && name && strcmp(name, "dumb") != 0;
    if (terminal && ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) style.width = size.ws_col;
    return style;
}

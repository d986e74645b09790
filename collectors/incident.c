#include "collectors/incident.h"

#include <string.h>

static const char *const severities[] = {
    [KEEL_INFO] = "info", [KEEL_WARNING] = "warning", [KEEL_CRITICAL] = "critical"};

const char *keel_severity_name(keel_severity severity) {
    return (unsigned)severity <= KEEL_CRITICAL ? severities[severity] : "unknown";
}

bool keel_severity_find(const char *name, keel_severity *severity) {
    for (unsigned i = KEEL_INFO; i <= KEEL_CRITICAL; i++) {
        if (strcmp(name, severities[i]) != 0) continue;
        *severity = (keel_severity)i;
        return true;
    }
    return false;
}

static bool continues_character(char byte) {
    return ((unsigned char)byte & 0xc0) == 0x80;
}

bool keel_text_fit(char *to, size_t size, const char *text) {
    static const char mark[] = "...";
    const size_t length = strnlen(text, size);
    if (length < size) {
        memcpy(to, text, length + 1);
        return true;
    }
    size_t kept = size - sizeof mark;
    while (kept > 0 && continues_character(text[kept])) kept--;
    memcpy(to, text, kept);
    memcpy(to + kept, mark, sizeof mark);
    return false;
}

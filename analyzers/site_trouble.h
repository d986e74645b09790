// What rules on tensors share: the odd sites of a row in the order of the data flow, and a trouble that lasts while
// there are any.
#ifndef KEEL_ANALYZERS_SITE_TROUBLE_H
#define KEEL_ANALYZERS_SITE_TROUBLE_H

#include "analyzers/detector.h"

typedef struct keel_odd_site {
    int64_t site;           // -1: a scalar
    const char *op;         // what of it is odd, or the scalar's name
    double value, expected; // of the op
    double score;
    const char *plain; // said of the site in place of op and value: "is all zero"; NULL: those are told
} keel_odd_site;

typedef struct keel_odd_sites {
    uint32_t count;                         // all
    uint32_t kept;                          // of first
    keel_odd_site first[KEEL_EVIDENCE_MAX]; // in the order of the data flow
    keel_odd_site worst;                    // of the greatest |score|
} keel_odd_sites;

void keel_odd_sites_add(keel_odd_sites *odd, const keel_site_index *index, const keel_odd_site *site);

// How long a site has been odd, after EARLY records that do not count. Plain memory.
typedef struct keel_site_wait {
    uint16_t known, odd; // saturating
} keel_site_wait;
// One record; true if it has been odd for RECORDS.
bool keel_site_wait_add(keel_site_wait *wait, bool odd, uint32_t early, double records);

// Whether the MEAN of all ranks' logarithms lies about as far from the least as from the greatest, so that it does not
// tell which of the two is the odd one.
static inline bool keel_halves(float low, float mean, float high) {
    return high - mean < 2 * (mean - low) && mean - low < 2 * (high - mean);
}

// A trouble of one rule. Plain memory.
typedef struct keel_site_trouble {
    uint32_t active;  // 1: it goes on
    uint32_t key;     // of this trouble, from 1
    uint32_t quiet;   // judged records without an odd site
    uint32_t records; // with one
    uint32_t most;    // sites in one record
    keel_severity severity;
    uint64_t first_step, peak_step, last_step;
    int64_t site;       // the first in the order of the data flow, of the first record
    uint64_t site_hash; // of it
    double value, expected, score;
    uint32_t evidence_count, reserved;
    char series[KEEL_RULE_BYTES];
    char clause[KEEL_CLAUSE_BYTES];
    char evidence[KEEL_EVIDENCE_MAX][KEEL_EVIDENCE_BYTES];
} keel_site_trouble;

enum { KEEL_SITE_TROUBLE_QUIET = 3 }; // judged records without an odd site that end it

// One judged record. VERB: what the value has done, "rose to", "is". True if a finding is to be emitted: there is an
// odd site, or the trouble has just ended. SEVERITY: of this record; the greatest stays.
bool keel_site_trouble_row(keel_site_trouble *trouble, const keel_detector_input *input, const keel_odd_sites *odd,
                           keel_severity severity, const char *verb);
// The finding that tells of it. Valid as long as TROUBLE stays as it is.
keel_finding keel_site_trouble_finding(const keel_site_trouble *trouble);

#endif

// A tap: the one place where the trainer lets a tensor be seen and, in experiments, disturbed. Every layer output,
// gradient, parameter, optimizer state and collective passes one.
#ifndef KEEL_TRAIN_MODEL_TAP_H
#define KEEL_TRAIN_MODEL_TAP_H

#include "configs/train_config.h"
#include "probe/keel.h"

typedef struct keel_taps keel_taps; // all taps of a rank, and the configured faults

// A thread's record of a pass. Threads write to their own all the time: they must not share a line, nor the neighbour
// that is fetched with it.
typedef struct keel_tap_block {
    _Alignas(128) keel_block block;
} keel_tap_block;

typedef struct keel_tap {
    keel_site *site;
    keel_taps *taps;
    uint64_t numel;                   // of what this rank has of the tensor; what OFFSET and a fault's index count in
    keel_tap_block *blocks;           // block form, between begin and end: one per thread
    const keel_fault_config *fault;   // due at this tap in this step, if armed
    struct keel_tap *earlier, *later; // of the same tensor, seen before or after this; see keel_taps_pair
    bool left;                        // to LATER, in this step
    bool gradient;                    // its data are gradients, which hold the loss scale
    bool scaled;                      // and that is not 1 now
    bool armed;
    uint32_t struck; // the fault has struck in this step, in the micro-batch before this number; 0: not yet
    bool busy;       // block form: something is to be done in this pass
} keel_tap;

// FAULTS is borrowed. PROBE may be one that nobody listens to. Block forms serve as many threads as
// omp_get_max_threads() gives now.
keel_status keel_taps_open(keel_probe *probe, uint32_t rank, const keel_fault_config *faults, size_t count,
                           keel_taps **taps);
void keel_taps_close(keel_taps *taps); // NULL is fine
keel_probe *keel_taps_probe(keel_taps *taps);
int keel_taps_threads(const keel_taps *taps); // threads that block forms serve

// Registers the site and gives its tap, owned by TAPS. Where the rank has a part of the tensor only, the caller sets
// the tap's numel. Of activation_grad and grad_unreduced the data are gradients; of other quantities where the caller
// says so in the tap.
keel_status keel_taps_add(keel_taps *taps, const keel_site_info *info, keel_tap **tap);
// EARLIER and LATER see the same tensor, which nothing but faults changes in between: where both are asked the same in
// a step, and no fault is due, it is looked at once. Both in block form.
void keel_taps_pair(keel_tap *earlier, keel_tap *later);
// The site that what LATER's blocks have seen is to be given to as well, at each one's end; NULL if none. Until the
// pass is over.
keel_site *keel_tap_other(const keel_tap *later);
// The pass of block form is over, for who ends blocks itself.
void keel_tap_over(keel_tap *tap);
// True if FAULT strikes at a tap.
bool keel_taps_concern(const keel_fault_config *fault);
// The tap at which FAULT strikes; NULL: there is none here.
const keel_tap *keel_taps_find(const keel_taps *taps, const keel_fault_config *fault);
// The nearest name to that of FAULT's site among those of its quantity here; NULL: there is none.
keel_status keel_taps_nearest(const keel_taps *taps, const keel_fault_config *fault, const char **nearest);
// KEEL_ERR_CONFIG with the place: there is no such quantity, or no such site, NEAREST (or NULL) being the nearest.
keel_status keel_taps_fail_unknown(const keel_fault_config *fault, const char *nearest);
// After all taps are known: KEEL_ERR_CONFIG naming a fault whose element the tensor does not have, or that meets
// another one at its site. Those without a tap here are fine.
keel_status keel_taps_check(const keel_taps *taps);
// Arms the faults of STEP. True if any fault of any kind (on any rank) is due, so that the step is flagged.
bool keel_taps_arm(keel_taps *taps, uint64_t step);

// The loss is multiplied by SCALE from now on (1 at first), and with it activation_grad, grad_unreduced and what is
// reduced over ranks. They are seen without it, so that they can be compared over the run, and SCALE is their sites'
// scale of the half group: what float16 makes of them is counted as it happens to the scaled value.
void keel_taps_set_loss_scale(keel_taps *taps, double scale);

// From here on taps belong to micro-batch MICRO of the step.
void keel_taps_begin_micro(keel_taps *taps, uint32_t micro);
// While AGAIN, what passes is computed a second time: nothing is seen, and faults do what they did to the micro-batch
// the first time. To be called outside any pass.
void keel_taps_set_again(keel_taps *taps, bool again);

// Does to DATA [n], the elements of the tensor from OFFSET on, what the fault of the armed TAP does.
void keel_tap_strike(const keel_tap *tap, float *data, size_t offset, size_t n);

// DATA [n] float32, the elements of the tensor from OFFSET on: a fault writes here before anybody sees it. Serial code;
// a large tensor is looked at by all threads, which would wait meanwhile.
void keel_tap_part_active(keel_tap *tap, float *data, size_t offset, size_t n);
static inline void keel_tap_part(keel_tap *tap, float *data, size_t offset, size_t n) {
    if (tap->armed || tap->site->active) keel_tap_part_active(tap, data, offset, n);
}
// The whole tensor.
static inline void keel_tap_at(keel_tap *tap, float *data, size_t n) {
    keel_tap_part(tap, data, 0, n);
}

// Block form, for a pass that writes the tensor piece by piece, also in parallel: begin, pieces from any thread, end.
// Begin and end are serial; records of the threads are added in their order. TAP NULL: nothing is done. At most 16 taps
// are open.
void keel_tap_begin_active(keel_tap *tap);
static inline void keel_tap_begin(keel_tap *tap) {
    if (tap && (tap->armed || tap->site->active)) keel_tap_begin_active(tap);
}
// DATA [n]: the elements of the tensor from OFFSET on.
void keel_tap_piece_active(keel_tap *tap, int thread, float *data, size_t offset, size_t n);
static inline void keel_tap_piece(keel_tap *tap, int thread, float *data, size_t offset, size_t n) {
    if (tap && tap->busy) keel_tap_piece_active(tap, thread, data, offset, n);
}
// DATA [rows, cols] within rows of STRIDE elements: the tensor itself, DATA being its element OFFSET.
void keel_tap_tile_active(keel_tap *tap, int thread, float *data, size_t offset, size_t stride, size_t rows,
                          size_t cols);
static inline void keel_tap_tile(keel_tap *tap, int thread, float *data, size_t offset, size_t stride, size_t rows,
                                 size_t cols) {
    if (tap && tap->busy) keel_tap_tile_active(tap, thread, data, offset, stride, rows, cols);
}
void keel_tap_end_active(keel_tap *tap);
static inline void keel_tap_end(keel_tap *tap) {
    if (tap && tap->busy) keel_tap_end_active(tap);
}

#endif

#include "probe/schedule.h"

bool keel_schedule_due(const keel_schedule *schedule, uint64_t step) {
    if (schedule->every == 0 || step < schedule->start) return false;
    const uint64_t since = step - schedule->start;
    if (since % schedule->every != 0) return false;
    return schedule->count == 0 || since / schedule->every < schedule->count;
}
